"""What decoding bytes from outside may raise, and records as they are shown in JSON, each in one place."""

from __future__ import annotations

import msgspec

# msgspec lets the errors of broken text through as they are.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def by_name(value: object) -> object:
    """The value for JSON: records as mappings by the names of their fields, bytes as hexadecimal digits."""
    match value:
        case msgspec.Struct():
            return {name: by_name(item) for name, item in msgspec.structs.asdict(value).items()}
        case dict():
            return {name: by_name(item) for name, item in value.items()}
        case list() | tuple():
            return [by_name(item) for item in value]
        case bytes():
            return value.hex()
        case _:
            return value
