"""Where everything lies in a broker's store: one function per kind of entry, and the values that are not the model's.

c/<height>   a committed block          r/<height>   the roots after executing it
e/<height>   its receipts, leaf by leaf h/<node>     a node of the history range
u/<id>       an uncommitted block       m/head       the last executed block and the history up to it
b/<digest>   a batch                    p/<digest>   a mark: this batch waits for order
d/<digest>   what stays of an erased batch           v/<member><view>  proof that a member broke the rules
m/joining    a mark: the state here is not to be used, a snapshot of a height above the one in it is being fetched
m/joins      how many snapshots were fetched in quick succession, and the height of the last
m/backfill   the height below which records of blocks (c/ e/ h/ r/, indices) may be missing or wrong after a snapshot
s/<key>      what the application writes: its state, the nodes of the state map, its indices
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

import msgspec

from parley.consensus.types import MAX_BATCHES, U64, Block, Hash, Header, Roots
from parley.crypto.encoding import u32, u64
from parley.ledger.history import node_key
from parley.model.codec import DECODE_ERRORS
from parley.store.interface import KeyValue

T = TypeVar("T")

HEAD = b"m/head"
JOINING = b"m/joining"
JOINS = b"m/joins"
BACKFILL = b"m/backfill"
EVIDENCE = b"v/"
HISTORY = b"h/"
UNCOMMITTED = b"u/"
WAITING = b"p/"
APPLICATION = b"s/"
# Within what the application writes: what the state map is over, the map's own nodes, and the derived indices.
ENTRIES = b"k"
NODES = b"n"
INDICES = b"i"
STATE = APPLICATION + ENTRIES
NODE = APPLICATION + NODES
INDEX = APPLICATION + INDICES


class StoredBlock(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A block as it is stored and sent on: its id is computed, never believed."""

    header: Header
    batches: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=MAX_BATCHES)]

    @classmethod
    def of(cls, block: Block) -> StoredBlock:
        return cls(block.header, block.batches)

    def block(self) -> Block:
        return Block(self.header, self.batches)


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last executed height, and the encoded history range up to it."""

    height: U64
    history: bytes


class Joins(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Snapshots that were fetched with few heights between them, and the height of the last one."""

    count: U64
    height: U64


def committed(height: int) -> bytes:
    return b"c/" + u64(height)


def roots(height: int) -> bytes:
    return b"r/" + u64(height)


def receipts(height: int) -> bytes:
    return b"e/" + u64(height)


def history_node(level: int, index: int) -> bytes:
    return HISTORY + node_key(level, index)


def batch(digest: bytes) -> bytes:
    return b"b/" + digest


def erased(digest: bytes) -> bytes:
    return b"d/" + digest


def evidence(member: int, view: int) -> bytes:
    return EVIDENCE + u32(member) + u64(view)


def uncommitted(block: bytes) -> bytes:
    return UNCOMMITTED + block


def waiting(digest: bytes) -> bytes:
    return WAITING + digest


def state(key: bytes) -> bytes:
    return STATE + key


def state_node(path: bytes) -> bytes:
    return NODE + path


def split(entry: bytes) -> tuple[bytes, bytes]:
    """The kind of an entry, such as `c/`, and the rest of its key."""
    return entry[:2], entry[2:]


def name(entry: bytes) -> str:
    """An entry for people: readable as far as it is text, heights as numbers."""
    kind, rest = split(entry)
    if kind in {b"c/", b"r/", b"e/"} and len(rest) == 8:
        return f"{kind.decode()}{int.from_bytes(rest, 'big')}"
    return "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in entry)


def without_key(name: str) -> str:
    """The name of an entry, but of the application only the table or index: a key tells who subscribes to what."""
    found = re.match(r"s/(?:[ki][a-z0-9_-]*/|.)", name)
    return name if found is None else f"{found[0]}..."


encode = msgspec.msgpack.Encoder().encode
decode_block = msgspec.msgpack.Decoder(StoredBlock).decode
decode_head = msgspec.msgpack.Decoder(Head).decode
decode_joins = msgspec.msgpack.Decoder(Joins).decode
decode_receipts = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode
decode_roots = msgspec.msgpack.Decoder(Roots).decode


def readable(decode: Callable[[bytes], T], value: bytes | None) -> T | None:
    """What an entry says; None if it is missing or cannot be read."""
    try:
        return decode(value or b"")
    except DECODE_ERRORS:
        return None


# -- parts of a store under their own keys -----------------------------------------------------------------------------


class StateView:
    """What the application writes."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(APPLICATION + key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        found = self._store.scan(APPLICATION + prefix, APPLICATION + start)
        return ((key.removeprefix(APPLICATION), value) for key, value in found)


class StateNodes:
    """The nodes of the state map, by path."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def get(self, path: bytes, /) -> bytes | None:
        return self._store.get(NODE + path)


def history_nodes(store: KeyValue) -> Callable[[bytes], bytes | None]:
    """The nodes of the history range, by `history.node_key`."""
    return lambda key: store.get(HISTORY + key)
