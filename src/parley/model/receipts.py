"""What applying a block gave, leaf by leaf: the receipts tree, whose root the history range certifies (P2, P6).

A block's leaves are the receipts of its batches in the order of their application, then a receipt per staged batch of
an earlier block that was numbered in this one, then a `Match` per (topic, partition, constraint) that something matched,
then a `Closed` per order that ended.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Code
from parley.model.names import U32, U64, Hash, Key, Position

__all__ = [
    "BatchReceipt",
    "Closed",
    "Done",
    "Duplicate",
    "Leaf",
    "Match",
    "Outcome",
    "PartitionStart",
    "Published",
    "Refused",
    "Staged",
    "Subscribed",
    "decode_leaf",
    "encode_leaf",
]


class Published(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The messages took the offsets from `first_offset` on, as many as the batch counts."""

    first_offset: U64


class Done(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """An operation took effect."""


class PartitionStart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a subscriber's order begins in one partition (P6)."""

    partition: U32
    incarnation: Position
    next_ps: U64
    next_offset: U64


class Subscribed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """A subscription, new or renewed, and its lease in block time."""

    constraint: Hash
    partitions: tuple[PartitionStart, ...]
    lease_until: U64


class Duplicate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """This very batch was applied before, at this place: (height, leaf of that block)."""

    original: Position


class Refused(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """Nothing changed but, for an in-sequence batch, the session's sequence. `next_sequence` is the session's."""

    code: Code
    detail: Annotated[str, Meta(max_length=512)]
    next_sequence: U64


class Staged(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """Stored and invisible; its stage may be committed up to height `until`, after which it is forgotten (P23)."""

    until: U64


Outcome = Published | Done | Subscribed | Duplicate | Refused | Staged


class BatchReceipt(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """What one ordered batch did. `client` is "organisation/name" as the registry had it, or empty."""

    digest: Hash
    publisher: Key
    client: str
    topic: str
    partition: U32
    count: U32
    outcome: Outcome

    @property
    def code(self) -> Code:
        match self.outcome:
            case Refused():
                return self.outcome.code
            case Duplicate():
                return Code.DUPLICATE
            case _:
                return Code.OK


class Match(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """What one block added to the order of one constraint in one partition: (offset, leaf) from `first_ps` on."""

    topic: str
    partition: U32
    constraint: Hash
    incarnation: Position
    first_ps: U64
    items: tuple[tuple[U64, Hash], ...]


class Closed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """The last subscription of a constraint ended, or its topic did: no number from `final_ps` on will be given."""

    topic: str
    partition: U32
    constraint: Hash
    incarnation: Position
    final_ps: U64


Leaf = BatchReceipt | Match | Closed


def encode_leaf(leaf: Leaf) -> bytes:
    return _encode(leaf)


def decode_leaf(data: bytes) -> Leaf:
    """Raises `ValueError` for anything but the one canonical form of a leaf."""
    try:
        leaf = _leaves.decode(data)
    except DECODE_ERRORS as error:
        raise ValueError(str(error)) from None
    if _encode(leaf) != data:
        raise ValueError("the leaf is not in its one canonical encoding")
    return leaf


_encode = msgspec.msgpack.Encoder().encode
_leaves: msgspec.msgpack.Decoder[Leaf] = msgspec.msgpack.Decoder(Leaf)
