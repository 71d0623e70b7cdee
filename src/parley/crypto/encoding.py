"""One unambiguous byte form for lists of byte strings, so that no two different values hash or sign alike."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">I")
_LENGTH_SIZE = _LENGTH.size
_pack_length = _LENGTH.pack
_unpack_length = _LENGTH.unpack_from
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


def dec(data: bytes, count: int) -> tuple[bytes, ...]:
    """Undo `enc` of exactly `count` items; whatever `enc` cannot have produced is refused."""
    if count < 0:
        raise EncodingError(f"cannot decode {count} items")
    items: list[bytes] = []
    position, end = 0, len(data)
    for number in range(count):
        start = position + _LENGTH_SIZE
        if start > end:
            raise EncodingError(f"item {number} of {count}: the length is truncated")
        position = start + _unpack_length(data, position)[0]
        if position > end:
            raise EncodingError(f"item {number} of {count}: {position - end} bytes are missing")
        items.append(data[start:position])
    if position != end:
        raise EncodingError(f"{end - position} bytes trail after item {count - 1} of {count}")
    return tuple(items)


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
