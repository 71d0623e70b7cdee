"""The replica's own chain in the local store (ledger/layout.py): what it writes, and what to load when it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from parley.consensus.forest import Forest
from parley.consensus.types import U16, U64, Block, Roots
from parley.crypto.encoding import EncodingError, u64
from parley.crypto.merkle import MountainRange, Tree, leaf_hash, root
from parley.ledger import layout
from parley.ledger.proofs import history_leaf, history_leaf_of
from parley.mempool.pool import Pending, StoreBatch
from parley.replica.ports import Results
from parley.store.interface import KeyValue
from parley.sync.messages import SnapshotOffer

T = TypeVar("T")
Entries = list[tuple[bytes, bytes | None]]


class StoreError(Exception):
    """The replica must not start from this store."""


class Unusable(StoreError):  # noqa: N818 - the condition, not an error of the caller
    """The store is this replica's own, but it is damaged or half made: a certified snapshot puts it in order again."""

    def __init__(self, entry: str, what: str) -> None:
        super().__init__(
            f"Entry {entry} of the local store {what}, so the store is damaged or belongs to another replica. Repair the "
            f"disk and start again, or run `parley node recover`; the safety record must stay as it is."
        )
        self.entry = entry
        self.what = what


class Mark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    entry: U16
    height: U64
    author: bytes


decode_mark = msgspec.msgpack.Decoder(Mark).decode


class Chain:
    """Reads the chain through a view of the store; what does not decode or is not there stops the replica."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def check(self, genesis: Block) -> None:
        """What can be told at start; the rest shows when it is read."""
        first = self._committed(0)
        if (
            first.header.chain != genesis.header.chain
            and self._newest(first).header.chain != genesis.header.chain
        ):
            raise StoreError(
                "The local store was made under another genesis file. Point the broker at the genesis file and data "
                "directory that belong together."
            )
        if self._store.get(layout.JOINING) is not None:
            raise _damaged(layout.JOINING, "says that a snapshot is being fetched")
        if first.id != genesis.id:
            raise _damaged(layout.committed(0), "is not the block of the genesis file")
        self._check_head()

    def _newest(self, otherwise: Block) -> Block:
        """The last executed block: a second witness to which network this is, where a disk may have damaged the first."""
        try:
            return self._committed(self.head().height)
        except Unusable:
            return otherwise

    def _check_head(self) -> None:
        height, history = self.head().height, self.history_range()
        if history.size != height:
            raise _damaged(layout.HEAD, "holds the history of another height")
        if self._read(layout.decode_roots, layout.roots(height)).history != history.root():
            raise _damaged(layout.HEAD, "and the roots of its height contradict each other")
        block = self._committed(height)
        leaves = layout.readable(layout.decode_receipts, self._store.get(layout.receipts(height)))
        leaf = self._store.get(layout.history_node(0, height - 1)) if height else None
        if leaves is None or leaf is None:  # the caretaker fills them in after a snapshot, and mends them
            return
        if leaf != leaf_hash(history_leaf_of(height, block.id, leaves)):
            raise _damaged(
                layout.committed(height), "is not the block of the history, or its receipts are not"
            )

    def head(self) -> layout.Head:
        return self._read(layout.decode_head, layout.HEAD)

    def history_range(self) -> MountainRange:
        try:
            return MountainRange.decode(self.head().history)
        except EncodingError:
            raise _damaged(layout.HEAD, "holds no history range") from None

    def block(self, height: int) -> Block | None:
        """None also for one that cannot be read: the caretaker mends it, and others have it."""
        try:
            return self._committed(height)
        except Unusable:
            return None

    def history(self, depth: int, memory: int) -> list[Block]:
        """The committed blocks that consensus needs, parent before child, up to the last executed one."""
        head = self._committed(self.head().height)
        lowest = Forest.needed_history(head.header, depth, memory)
        blocks = [self._committed(height) for height in range(lowest, head.height)] + [head]
        for parent, child in pairwise(blocks):
            if child.parent != parent.id:
                raise _damaged(layout.committed(parent.height), "is not the parent of the next block")
        return blocks

    def roots(self) -> dict[int, Roots]:
        """The results that the last executed block names, and those that headers above it may still name.

        What the last executed block names is certified, so it is taken from the header and not from the disk, which may be
        damaged. After a snapshot there are only results that certified headers have named. If a header names another one,
        this broker does not vote on it; nothing else is lost.
        """
        head = self._committed(self.head().height)
        named = head.header
        known = {named.executed_height: Roots(named.state_root, named.history_root)}
        for height in range(named.executed_height + 1, head.height + 1):
            if (value := self._store.get(layout.roots(height))) is not None:
                known[height] = _decoded(layout.decode_roots, layout.roots(height), value)
        return known

    def uncommitted_block(self, id_: bytes) -> Block | None:
        """None also for one that cannot be read: if it is certified, others have it."""
        try:
            block = layout.decode_block(self._store.get(layout.uncommitted(id_)) or b"").block()
        except msgspec.MsgspecError:
            return None
        # The id is the header's alone: other batches than it commits to would be executed, and fail the others' checks.
        return block if block.id == id_ and root(block.batches) == block.header.batches_root else None

    def uncommitted(self) -> list[Block]:
        """Those that can be read: what the others were, block sync finds if it is certified."""
        ids = [key[len(layout.UNCOMMITTED) :] for key, _ in self._store.scan(layout.UNCOMMITTED)]
        blocks = map(self.uncommitted_block, ids)
        return [block for block in blocks if block is not None]

    def batch(self, name: bytes) -> bytes | None:
        return self._store.get(layout.batch(name))

    def batch_size(self, name: bytes) -> int | None:
        body = self.batch(name)
        return None if body is None else len(body)

    def waiting(self) -> Iterator[tuple[bytes, Pending]]:
        for key, value in self._store.scan(layout.WAITING):
            name = key[len(layout.WAITING) :]
            body = self.batch(name)
            try:
                mark = _decoded(decode_mark, key, value)
            except Unusable:  # the caretaker's business
                continue
            if body is not None:
                yield name, Pending(mark.entry, mark.height, body, mark.author)

    def _committed(self, height: int) -> Block:
        key = layout.committed(height)
        block = self._read(layout.decode_block, key).block()
        if block.height != height:
            raise _damaged(key, "is a block of another height")
        return block

    def _read(self, decode: Callable[[bytes], T], key: bytes) -> T:
        value = self._store.get(key)
        if value is None:
            raise _damaged(key, "is missing")
        return _decoded(decode, key, value)


def store_block(block: Block) -> Entries:
    return [(layout.uncommitted(block.id), layout.encode(layout.StoredBlock.of(block)))]


def store_batch(effect: StoreBatch) -> Entries:
    pending = effect.pending
    entries: Entries = [(layout.batch(effect.digest), pending.data)]
    if effect.waits:
        entries.append(
            (
                layout.waiting(effect.digest),
                layout.encode(Mark(pending.entry, pending.height, pending.author)),
            )
        )
    return entries


def genesis_entries(genesis: Block, results: Results) -> Entries:
    return _results(genesis, results, MountainRange())[0]


def applied_entries(
    block: Block, results: Results, tree: Tree, history: MountainRange, done: tuple[bytes, ...]
) -> tuple[Entries, Roots]:
    """The one write of an executed block: the block, its results, the new state, and the batches that are done.

    `tree` is over the leaves of the results.
    """
    nodes = history.append(history_leaf(block.height, block.id, tree.root, tree.size))
    entries, roots = _results(block, results, history)
    entries += [(layout.history_node(level, index), node) for level, index, node in nodes]
    entries += [(layout.receipts(block.height), layout.encode(results.leaves))]
    entries += [(layout.uncommitted(block.id), None)]
    entries += [(layout.waiting(name), None) for name in done]
    return entries, roots


def joined_entries(genesis: Block, offer: SnapshotOffer, blocks: Sequence[Block]) -> Entries:
    """The one write that makes a fetched state valid: what a replica starts from, at the height of the snapshot."""
    height = offer.header.executed_height
    headers = [block.header for block in blocks if block.height >= height] + [offer.header]
    roots = {h.executed_height: Roots(h.state_root, h.history_root) for h in headers}
    roots[0] = Roots(genesis.header.state_root, genesis.header.history_root)
    entries: Entries = [(layout.committed(0), layout.encode(layout.StoredBlock.of(genesis)))]
    for block in blocks:
        key = layout.committed(block.height) if block.height <= height else layout.uncommitted(block.id)
        entries.append((key, layout.encode(layout.StoredBlock.of(block))))
    entries += [(layout.roots(h), layout.encode(named)) for h, named in roots.items() if h <= height]
    entries.append((layout.HEAD, layout.encode(layout.Head(height, offer.history))))
    # No receipts and no indices came with the state, so the records of all blocks up to here are to be filled in.
    entries.append((layout.BACKFILL, u64(height + 1)))
    return entries


def _decoded(decode: Callable[[bytes], T], key: bytes, value: bytes) -> T:
    try:
        return decode(value)
    except msgspec.MsgspecError:
        raise _damaged(key, "cannot be read") from None


def _damaged(key: bytes, what: str) -> Unusable:
    kind, rest = layout.split(key)
    return Unusable(key.decode() if kind == b"m/" else f"{kind.decode()}{rest.hex()}", what)


def _results(block: Block, results: Results, history: MountainRange) -> tuple[Entries, Roots]:
    roots = Roots(results.state_root, history.root())
    entries: Entries = [
        (layout.committed(block.height), layout.encode(layout.StoredBlock.of(block))),
        (layout.roots(block.height), layout.encode(roots)),
        (layout.HEAD, layout.encode(layout.Head(block.height, history.encode()))),
    ]
    entries += [(layout.APPLICATION + key, value) for key, value in results.writes]
    return entries, roots
