"""The replica's own chain in the local store (ledger/layout.py): what it writes, and what to load when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from parley.consensus.forest import Forest
from parley.consensus.types import U16, U64, Block, Roots
from parley.crypto.encoding import EncodingError
from parley.crypto.merkle import MountainRange, root
from parley.ledger import layout
from parley.ledger.layout import Head, StoredBlock
from parley.ledger.proofs import history_leaf
from parley.mempool.pool import Pending, StoreBatch
from parley.replica.ports import KeyValue, Outcome

__all__ = [
    "Chain",
    "Entries",
    "StateView",
    "StoreError",
    "genesis_entries",
    "store_batch",
    "store_block",
]

T = TypeVar("T")
Entries = list[tuple[bytes, bytes | None]]


class StoreError(Exception):
    """The local store contradicts itself: the replica must not start from it."""


class Mark(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    entry: U16
    height: U64
    author: bytes

    @classmethod
    def of(cls, pending: Pending) -> Mark:
        return cls(pending.entry, pending.height, pending.author)


class Chain:
    """Reads the chain through a view of the store; what does not decode or is not there stops the replica."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def check(self, genesis: Block) -> None:
        """What can be told at start; the rest shows when it is read."""
        self.history_range()
        if self._committed(0).id != genesis.id:
            raise StoreError(
                "The local store was made under another genesis file. Point the broker at the genesis file and data "
                "directory that belong together."
            )

    def head(self) -> Head:
        return _decoded(_heads, layout.HEAD, self._required(layout.HEAD))

    def history_range(self) -> MountainRange:
        try:
            return MountainRange.decode(self.head().history)
        except EncodingError:
            raise _damaged(layout.HEAD, "holds no history range") from None

    def block(self, height: int) -> Block | None:
        found = self._store.get(layout.committed(height))
        return None if found is None else self._committed(height)

    def history(self, depth: int, memory: int) -> list[Block]:
        """The committed blocks that consensus needs, parent before child, up to the last executed one."""
        head = self._committed(self.head().height)
        lowest = Forest.needed_history(head.header, depth, memory)
        return [self._committed(height) for height in range(lowest, head.height)] + [head]

    def roots(self) -> dict[int, Roots]:
        """The results that headers above the last executed block may still name."""
        head = self._committed(self.head().height)
        keys = {
            height: layout.roots(height) for height in range(head.header.executed_height, head.height + 1)
        }
        return {height: _decoded(_roots, key, self._required(key)) for height, key in keys.items()}

    def uncommitted_block(self, id_: bytes) -> Block | None:
        key = layout.uncommitted(id_)
        value = self._store.get(key)
        return None if value is None else _decoded(_blocks, key, value).block()

    def uncommitted(self) -> list[Block]:
        return [_decoded(_blocks, key, value).block() for key, value in self._store.scan(layout.UNCOMMITTED)]

    def batch(self, name: bytes) -> bytes | None:
        return self._store.get(layout.batch(name))

    def batch_size(self, name: bytes) -> int | None:
        body = self.batch(name)
        return None if body is None else len(body)

    def waiting(self) -> Iterator[tuple[bytes, Pending]]:
        for key, value in self._store.scan(layout.WAITING):
            mark, name = _decoded(_marks, key, value), key[2:]
            yield name, Pending(mark.entry, mark.height, self._required(layout.batch(name)), mark.author)

    def _committed(self, height: int) -> Block:
        key = layout.committed(height)
        return _decoded(_blocks, key, self._required(key)).block()

    def _required(self, key: bytes) -> bytes:
        value = self._store.get(key)
        if value is None:
            raise _damaged(key, "is missing")
        return value


class StateView:
    """The application's part of the store."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(b"s/" + key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key[2:], value) for key, value in self._store.scan(b"s/" + prefix))


def store_block(block: Block) -> Entries:
    return [(layout.uncommitted(block.id), _encode(StoredBlock.of(block)))]


def store_batch(effect: StoreBatch) -> Entries:
    entries: Entries = [(layout.batch(effect.digest), effect.pending.data)]
    if effect.waits:
        entries.append((layout.waiting(effect.digest), _encode(Mark.of(effect.pending))))
    return entries


def genesis_entries(genesis: Block, outcome: Outcome) -> Entries:
    return _results(genesis, outcome, MountainRange())[0]


def applied_entries(
    block: Block, outcome: Outcome, history: MountainRange, done: tuple[bytes, ...]
) -> tuple[Entries, Roots]:
    """The one write of an executed block: the block, its results, the new state, and the batches that are done."""
    receipts_root = root(outcome.leaves)
    nodes = history.append(history_leaf(block.height, block.id, receipts_root))
    entries, roots = _results(block, outcome, history)
    entries += [(layout.history_node(level, index), node) for level, index, node in nodes]
    entries += [(layout.receipts(block.height), _encode(outcome.leaves))]
    entries += [(layout.uncommitted(block.id), None)]
    entries += [(layout.waiting(name), None) for name in done]
    return entries, roots


def _decoded(decoder: msgspec.msgpack.Decoder[T], key: bytes, value: bytes) -> T:
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError:
        raise _damaged(key, "cannot be read") from None


def _damaged(key: bytes, what: str) -> StoreError:
    name = key.decode() if key.startswith(b"m/") else f"{key[:2].decode()}{key[2:].hex()}"
    return StoreError(
        f"Entry {name} of the local store {what}, so the store is damaged or belongs to another replica. Repair the disk "
        f"and start again, or let the broker rejoin with an empty store; its safety record must stay as it is."
    )


def _results(block: Block, outcome: Outcome, history: MountainRange) -> tuple[Entries, Roots]:
    roots = Roots(outcome.state_root, history.root())
    entries: Entries = [
        (layout.committed(block.height), _encode(StoredBlock.of(block))),
        (layout.roots(block.height), _encode(roots)),
        (layout.HEAD, _encode(Head(block.height, history.encode()))),
    ]
    entries += [(b"s/" + key, value) for key, value in outcome.writes]
    return entries, roots


_encode = msgspec.msgpack.Encoder().encode
_blocks = msgspec.msgpack.Decoder(StoredBlock)
_heads = msgspec.msgpack.Decoder(Head)
_marks = msgspec.msgpack.Decoder(Mark)
_roots = msgspec.msgpack.Decoder(Roots)
