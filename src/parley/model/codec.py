"""What decoding bytes from outside may raise, in one place: msgspec lets the errors of broken text through as they are."""

from __future__ import annotations

import msgspec

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
