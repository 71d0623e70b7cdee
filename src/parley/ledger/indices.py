"""Where a broker finds what it serves and what it has to erase: derived from the receipts and no part of the certified
state. Places are only added; what is to be erased goes when that is done.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from parley.crypto.encoding import u32, u64
from parley.model.names import U32, U64, Hash, Position

__all__ = [
    "BODIES_TO_ERASE",
    "LOGS_TO_ERASE",
    "TO_ERASE",
    "BatchPlace",
    "LeafPlace",
    "LogToErase",
    "ReceiptPlace",
    "body_to_erase_key",
    "decode_place",
    "encode_place",
    "log_to_erase_key",
    "offset_key",
    "offset_prefix",
    "order_key",
    "order_prefix",
    "receipt_key",
]

T = TypeVar("T", bound=Struct)

TO_ERASE = b"ie"  # everything that is not there for ever: entries come by execution and go by erasure
LOGS_TO_ERASE = TO_ERASE + b"l"
BODIES_TO_ERASE = TO_ERASE + b"b"


class BatchPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`io`: the batch whose messages begin at an offset, and the leaf of its receipt."""

    height: U64
    position: U32
    digest: Hash
    count: U32  # of its messages


class LeafPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`ip`: the `Match` that begins at a ps, or the `Closed` that ends there."""

    height: U64
    position: U32


class ReceiptPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`id`: the receipt of a batch. Until it is final the batch may be ordered again and the place may change (P3)."""

    height: U64
    position: U32
    final: bool
    first_offset: U64 | None = None  # if it was published
    staged: bool = False  # it waits for its stage to be committed, or did so in vain


class LogToErase(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`iel`: the bodies of a partition from the offset `start` up to `end`, some blocks after `height` (P21)."""

    start: U64
    end: U64
    height: U64


def offset_prefix(topic: str, partition: int) -> bytes:
    return b"io" + topic.encode() + b"\0" + u32(partition)


def offset_key(topic: str, partition: int, first_offset: int) -> bytes:
    return offset_prefix(topic, partition) + u64(first_offset)


def order_prefix(topic: str, partition: int, constraint: bytes, incarnation: Position) -> bytes:
    height, position = incarnation
    return b"ip" + topic.encode() + b"\0" + u32(partition) + constraint + u64(height) + u32(position)


def order_key(topic: str, partition: int, constraint: bytes, incarnation: Position, ps: int) -> bytes:
    return order_prefix(topic, partition, constraint, incarnation) + u64(ps)


def receipt_key(digest: bytes) -> bytes:
    return b"id" + digest


def log_to_erase_key(topic: str, partition: int) -> bytes:
    return LOGS_TO_ERASE + topic.encode() + b"\0" + u32(partition)


def body_to_erase_key(digest: bytes) -> bytes:
    """Holds the height at which a batch came again whose body had been erased, or at which a staged one was dropped."""
    return BODIES_TO_ERASE + digest


def encode_place(place: Struct) -> bytes:
    return _encode(place)


def decode_place(kind: type[T], data: bytes) -> T:
    """Of one's own store."""
    return msgspec.msgpack.decode(data, type=kind)


_encode = msgspec.msgpack.Encoder().encode
