"""One unambiguous byte form for lists of byte strings, so that no two different values hash or sign alike."""

from __future__ import annotations

import struct

_pack_length = struct.Struct(">I").pack
_SHORT = tuple(map(_pack_length, range(1024)))


class EncodingError(ValueError):
    """The bytes are not the one valid encoding, or the value has none."""


def enc(*items: bytes) -> bytes:
    """Concatenate the items, each after its length as a 32-bit big-endian integer."""
    try:
        return b"".join([part for item in items for part in (_SHORT[len(item)], item)])
    except IndexError:  # a long item: the table of short lengths is what makes this fast
        return _enc_long(items)


def _enc_long(items: tuple[bytes, ...]) -> bytes:
    parts: list[bytes] = []
    try:
        for item in items:
            parts += (_pack_length(len(item)), item)
    except struct.error:
        raise EncodingError(f"item {len(parts) // 2} is longer than 4 GiB") from None
    return b"".join(parts)


def u16(x: int) -> bytes:
    """The two bytes of `x`, big-endian."""
    return _fixed(x, 2)


def u32(x: int) -> bytes:
    """The four bytes of `x`, big-endian."""
    return _fixed(x, 4)


def u64(x: int) -> bytes:
    """The eight bytes of `x`, big-endian."""
    try:
        return x.to_bytes(8, "big")
    except OverflowError:
        return _fixed(x, 8)  # which says what is wrong


def _fixed(x: int, width: int) -> bytes:
    try:
        return x.to_bytes(width, "big")
    except OverflowError:
        raise EncodingError(f"{x} does not fit an unsigned integer of {8 * width} bits") from None
