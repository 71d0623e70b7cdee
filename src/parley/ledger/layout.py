"""Where everything lies in a broker's store: one function per kind of entry, and the values that are not the model's.

c/<height>   a committed block          r/<height>   the roots after executing it
e/<height>   its receipts, leaf by leaf h/<node>     a node of the history range
u/<id>       an uncommitted block       m/head       the last executed block and the history up to it
b/<digest>   a batch                    p/<digest>   a mark: this batch waits for order
s/<key>      what the application writes: its state, the nodes of the state map, its indices
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from parley.consensus.types import MAX_BATCHES, U64, Block, Hash, Header
from parley.crypto.encoding import u64
from parley.ledger.history import node_key

__all__ = [
    "HEAD",
    "INDEX",
    "NODE",
    "STATE",
    "UNCOMMITTED",
    "WAITING",
    "Head",
    "StoredBlock",
    "batch",
    "committed",
    "decode_receipts",
    "history_node",
    "receipts",
    "roots",
    "state",
    "state_node",
    "uncommitted",
    "waiting",
]

HEAD = b"m/head"
UNCOMMITTED = b"u/"
WAITING = b"p/"
STATE = b"s/k"
NODE = b"s/n"
INDEX = b"s/i"


class StoredBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A block as it is stored and sent on: its id is computed, never believed."""

    header: Header
    batches: Annotated[tuple[Hash, ...], Meta(max_length=MAX_BATCHES)]

    @classmethod
    def of(cls, block: Block) -> StoredBlock:
        return cls(block.header, block.batches)

    def block(self) -> Block:
        return Block(self.header, self.batches)


class Head(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last executed height, and the encoded history range up to it."""

    height: U64
    history: bytes


def committed(height: int) -> bytes:
    return b"c/" + u64(height)


def roots(height: int) -> bytes:
    return b"r/" + u64(height)


def receipts(height: int) -> bytes:
    return b"e/" + u64(height)


def history_node(level: int, index: int) -> bytes:
    return b"h/" + node_key(level, index)


def batch(digest: bytes) -> bytes:
    return b"b/" + digest


def uncommitted(block: bytes) -> bytes:
    return UNCOMMITTED + block


def waiting(digest: bytes) -> bytes:
    return WAITING + digest


def state(key: bytes) -> bytes:
    return STATE + key


def state_node(path: bytes) -> bytes:
    return NODE + path


def decode_receipts(data: bytes) -> tuple[bytes, ...]:
    return _receipts.decode(data)


_receipts = msgspec.msgpack.Decoder(tuple[bytes, ...])
