"""The executed blocks and stored batches of this broker, decoded once and ready to be proven from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec

from parley.consensus.types import Header
from parley.crypto import merkle
from parley.ledger import history, layout
from parley.ledger.erasure import Remains
from parley.ledger.indices import (
    BatchPlace,
    LeafPlace,
    ReceiptPlace,
    decode_place,
    offset_key,
    offset_prefix,
    order_key,
    order_prefix,
    receipt_key,
)
from parley.ledger.layout import StoredBlock
from parley.ledger.proofs import BlockProof
from parley.model.batches import Batch, BatchHeader
from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Code, Refusal
from parley.model.names import Position
from parley.model.receipts import Leaf, decode_leaf
from parley.model.records import name_key
from parley.node.cache import Cache

__all__ = ["Archive", "ExecutedBlock", "Reader", "ReceiptTree", "StoredBatch"]

BLOCK_BUDGET = 16 * 1024 * 1024  # bytes of memory, about: receipts and readers mostly ask for the last minute
BATCH_BUDGET = 48 * 1024 * 1024
STORED_BUDGET = 16 * 1024 * 1024  # for batches that are sent as they are stored
# What things take besides the bytes they are stored in.
_DECODED = 5  # times the bytes of a leaf, once it has been looked into
_LEAF_COST = 160  # its hash and its share of those above
_BLOCK_COST = 8 * 1024
_MESSAGE_COST = 256
_STORED_COST = 1024


class Reader(Protocol):
    """The local store, as of now."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]: ...

    def last_at_or_before(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None: ...


class ReceiptTree:
    """All levels of a block's receipts tree: many ask for one receipt each, and none should cost the whole tree."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [[merkle.leaf_hash(leaf) for leaf in leaves]]
        while len(level := self._levels[-1]) > 1:
            above = [
                merkle.node_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=False)
            ]
            self._levels.append(above + level[len(above) * 2 :])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def prove(self, positions: Sequence[int]) -> merkle.MultiProof:
        """What `merkle.prove_many` would give; the positions are ascending."""
        assert all(low < high for low, high in pairwise(positions)), "positions are ascending"
        siblings: list[bytes] = []
        known = list(positions)
        for level in self._levels[:-1]:
            present = set(known)
            siblings += [level[at ^ 1] for at in known if at ^ 1 not in present and at ^ 1 < len(level)]
            known = sorted({at >> 1 for at in known})
        return merkle.MultiProof(len(self._levels[0]), tuple(positions), tuple(siblings))


class ExecutedBlock:
    """A block that has at least one receipt."""

    def __init__(self, header: Header, leaves: tuple[bytes, ...]) -> None:
        self.header = header
        self._leaves = leaves
        self._tree = ReceiptTree(leaves)
        self._decoded: dict[int, Leaf] = {}

    @property
    def root(self) -> bytes:
        return self._tree.root

    def leaf(self, position: int) -> Leaf:
        found = self._decoded.get(position)
        if found is None:
            found = self._decoded[position] = decode_leaf(self._leaves[position])
        return found

    def prove(self, positions: Sequence[int], place: merkle.Proof) -> BlockProof:
        """These leaves, and the block's place in a certified history."""
        shown = tuple(self._leaves[position] for position in positions)
        return BlockProof(self.header, self._tree.root, place, shown, self._tree.prove(positions))


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch whose messages are left as they are stored; of them only the rules were looked at."""

    header: BatchHeader
    signature: bytes
    messages: msgspec.Raw
    rules: frozenset[str]
    size: int


class Archive:
    """Reads what never changes: blocks, receipts, batches, and the indices that lead to them."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._blocks: Cache[int, ExecutedBlock] = Cache(BLOCK_BUDGET)
        self._batches: Cache[bytes, Batch] = Cache(BATCH_BUDGET)
        self._stored: Cache[bytes, StoredBatch] = Cache(STORED_BUDGET)

    def block(self, height: int) -> ExecutedBlock:
        return self._blocks.get(height, lambda: self._read_block(height))

    def batch(self, name: bytes) -> Batch:
        return self._batches.get(name, lambda: self._read_batch(name))

    def stored(self, name: bytes) -> StoredBatch:
        """The same, without an object for every message."""
        return self._stored.get(name, lambda: self._read_stored(name))

    def history(self, height: int, size: int) -> merkle.Proof:
        """That the block of this height stands in the history of the first `size` blocks."""
        return history.prove(lambda key: self._store.get(b"h/" + key), height - 1, size)

    def history_range(self, first: int, count: int, size: int) -> merkle.MultiProof:
        """That `count` blocks from the height `first` on stand in the history of the first `size` blocks."""
        return history.prove_range(lambda key: self._store.get(b"h/" + key), first - 1, count, size)

    def header(self, height: int) -> tuple[Header, bytes, int]:
        """Of an executed block, with the root of its receipts, and what it took to compute that, in bytes."""
        block, leaves = self.raw_block(height)
        work = sum(map(len, leaves)) + _LEAF_COST * len(leaves)
        return block.header, self.block(height).root if leaves else merkle.EMPTY_ROOT, work

    def raw_block(self, height: int) -> tuple[StoredBlock, tuple[bytes, ...]]:
        """A whole executed block and its receipts, which are not kept in memory: whoever reads these reads all of them."""
        stored, receipts = self._store.get(layout.committed(height)), self._store.get(layout.receipts(height))
        try:
            if stored is not None and receipts is not None:
                return _blocks.decode(stored), layout.decode_receipts(receipts)
        except DECODE_ERRORS:
            pass  # the scrub finds it, and mends it
        raise Refusal(Code.NOT_FOUND, f"this broker does not have block {height}; ask another one")

    def raw_batch(self, name: bytes) -> bytes | Remains | None:
        """A batch as it was submitted, or what stays of it."""
        body = self._store.get(layout.batch(name))
        if body is not None:
            return body
        left = self._store.get(layout.erased(name))
        try:
            return None if left is None else _remains.decode(left)
        except DECODE_ERRORS:
            return None

    def evidence(self) -> Iterator[bytes]:
        """The proofs of misbehaviour that are kept, always in the same order."""
        return (record for _, record in self._store.scan_from(layout.EVIDENCE, layout.EVIDENCE))

    def receipt(self, name: bytes) -> ReceiptPlace | None:
        """Where the batch got its newest receipt, certified or not."""
        found = self._store.get(b"s/" + receipt_key(name))
        return None if found is None else decode_place(ReceiptPlace, found)

    def waits(self, name: bytes) -> bool:
        """Whether the batch is stored here and waits for order."""
        return self._store.get(layout.waiting(name)) is not None

    def is_whole(self) -> bool:
        """Whether the records of all executed blocks are here: after a snapshot older ones come later."""
        return self._store.get(layout.BACKFILL) is None

    def holds(self, key: bytes) -> bool:
        """Whether the state after the newest executed block has this entry; it need not be certified yet."""
        return self._store.get(layout.state(key)) is not None

    def key_of(self, client: str) -> bytes | None:
        """The key of a live client by its organisation/name, after the newest executed block."""
        organisation, _, name = client.partition("/")
        return self._store.get(layout.state(name_key(organisation, name)))

    def batches_from(self, topic: str, partition: int, offset: int) -> Iterator[tuple[int, BatchPlace]]:
        """The first offset and the place of the batch that holds `offset`, then of those after it."""
        prefix = b"s/" + offset_prefix(topic, partition)
        start = b"s/" + offset_key(topic, partition, offset)
        first = self._store.last_at_or_before(prefix, start)
        for key, value in self._store.scan_from(prefix, start if first is None else first[0]):
            yield int.from_bytes(key[len(prefix) :], "big"), decode_place(BatchPlace, value)

    def order_at(
        self, topic: str, partition: int, constraint: bytes, incarnation: Position, ps: int
    ) -> LeafPlace | None:
        """The leaf of an order that holds the number `ps`, or the last one before it."""
        prefix = b"s/" + order_prefix(topic, partition, constraint, incarnation)
        found = self._store.last_at_or_before(
            prefix, b"s/" + order_key(topic, partition, constraint, incarnation, ps)
        )
        return None if found is None else decode_place(LeafPlace, found[1])

    def keys_after(self, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the state under a prefix, after a key, as of now."""
        for stored, value in self._store.scan_from(layout.state(prefix), layout.state(after)):
            key = stored[len(layout.STATE) :]
            if key != after:
                yield key, value

    def _read_block(self, height: int) -> tuple[ExecutedBlock, int]:
        stored, receipts = self._store.get(layout.committed(height)), self._store.get(layout.receipts(height))
        if stored is None or receipts is None:
            raise Refusal(Code.NOT_FOUND, f"this broker does not have block {height}; ask another one")
        leaves = layout.decode_receipts(receipts)
        cost = _BLOCK_COST + _DECODED * len(receipts) + _LEAF_COST * len(leaves)
        return ExecutedBlock(_blocks.decode(stored).header, leaves), cost

    def _body(self, name: bytes) -> bytes:
        body = self._store.get(layout.batch(name))
        if body is None:
            raise Refusal(Code.NOT_FOUND, f"this broker does not have batch {name.hex()}; ask another one")
        return body

    def _read_stored(self, name: bytes) -> tuple[StoredBatch, int]:
        body = self._body(name)
        header, messages, signature = _closed.decode(body)
        rules = frozenset(rule for _, _, _, rule, _ in _opened.decode(messages))
        stored = StoredBatch(header, signature, messages, rules - {""}, len(body))
        return stored, len(body) + _STORED_COST

    def _read_batch(self, name: bytes) -> tuple[Batch, int]:
        body = self._body(name)
        batch = _batches.decode(body)
        return batch, len(body) + _MESSAGE_COST * len(batch.messages)


_blocks = msgspec.msgpack.Decoder(StoredBlock)
_batches = msgspec.msgpack.Decoder(Batch)
_closed: msgspec.msgpack.Decoder[tuple[BatchHeader, msgspec.Raw, bytes]] = msgspec.msgpack.Decoder(
    tuple[BatchHeader, msgspec.Raw, bytes]
)
# Copies are cheaper than views here: most parts are small.
_opened: msgspec.msgpack.Decoder[list[tuple[int, bytes, bytes, str, bytes]]] = msgspec.msgpack.Decoder(
    list[tuple[int, bytes, bytes, str, bytes]]
)
_remains = msgspec.msgpack.Decoder(Remains)
