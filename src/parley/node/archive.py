"""The executed blocks and stored batches of this broker, decoded once and ready to be proven from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from parley.application.application import Application
from parley.application.keeping import RECEIPTS, ReceiptPlace
from parley.application.tables import K, R, Table
from parley.consensus.types import Block, Header
from parley.crypto import merkle
from parley.ledger import history, layout
from parley.ledger.erasure import Remains
from parley.ledger.layout import StateView, StoredBlock
from parley.ledger.proofs import BlockProof
from parley.model.batches import Batch, BatchHeader
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Position
from parley.model.receipts import Leaf
from parley.model.refusals import NotFound
from parley.modules.publishing.tables import OFFSETS, BatchPlace
from parley.modules.registry.tables import NAMES
from parley.modules.subscriptions.tables import ORDER_LEAVES, LeafPlace
from parley.node.cache import Cache
from parley.store.interface import StoreReader

BLOCK_BUDGET = 16 * 1024 * 1024  # bytes of memory, about: receipts and readers mostly ask for the last minute
TREE_BUDGET = 16 * 1024 * 1024  # of trees that execution made: to hash takes longer than to read
BATCH_BUDGET = 48 * 1024 * 1024
STORED_BUDGET = 16 * 1024 * 1024  # for batches that are sent as they are stored
# What things take besides the bytes they are stored in.
_DECODED = 5  # times the bytes of a leaf, once it has been looked into
_LEAF_COST = 160  # its hash and its share of those above
_BLOCK_COST = 8 * 1024
_TREE_COST = 1024
_MESSAGE_COST = 256
_STORED_COST = 1024


class ExecutedBlock:
    """A block that has at least one receipt."""

    def __init__(
        self,
        header: Header,
        leaves: tuple[bytes, ...],
        decode_leaf: Callable[[bytes], Leaf],
        tree: merkle.Tree,
    ) -> None:
        self.header = header
        self._leaves = leaves
        self._decode_leaf = decode_leaf
        self._tree = tree
        self._decoded: dict[int, Leaf] = {}

    @property
    def root(self) -> bytes:
        return self._tree.root

    @property
    def size(self) -> int:
        """How many leaves it has."""
        return self._tree.size

    def leaf(self, position: int) -> Leaf:
        found = self._decoded.get(position)
        if found is None:
            found = self._decoded[position] = self._decode_leaf(self._leaves[position])
        return found

    def prove(self, positions: Sequence[int], place: merkle.Proof) -> BlockProof:
        """These leaves, and the block's place in a certified history."""
        return BlockProof(
            self.header,
            self._tree.root,
            place,
            tuple(self._leaves[position] for position in positions),
            self._tree.prove(positions),
        )


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

    def __init__(self, store: StoreReader, application: Application) -> None:
        self.application = application
        self._store = store
        self._entries = StateView(store)
        self._blocks: Cache[int, ExecutedBlock] = Cache(BLOCK_BUDGET)
        self._trees: Cache[int, merkle.Tree] = Cache(TREE_BUDGET)
        self._batches: Cache[bytes, Batch] = Cache(BATCH_BUDGET)
        self._stored: Cache[bytes, StoredBatch] = Cache(STORED_BUDGET)

    def applied(self, block: Block, leaves: tuple[bytes, ...], tree: merkle.Tree) -> None:
        """Keep a block that was just executed, within the budget: clients wait for its receipts."""
        if leaves:
            self._trees.put(block.height, tree, _TREE_COST + _LEAF_COST * tree.size)
            self._blocks.put(block.height, *self._executed(block.header, leaves, tree))

    def block(self, height: int) -> ExecutedBlock:
        return self._blocks.get(height, lambda: self._read_block(height))

    def batch(self, digest: bytes) -> Batch:
        return self._batches.get(digest, lambda: self._read_batch(digest))

    def stored(self, digest: bytes) -> StoredBatch:
        """The same, without an object for every message."""
        return self._stored.get(digest, lambda: self._read_stored(digest))

    def history(self, height: int, size: int) -> merkle.Proof:
        """That the block of this height stands in the history of the first `size` blocks."""
        return history.prove(layout.history_nodes(self._store), height - 1, size)

    def history_range(self, first: int, count: int, size: int) -> merkle.MultiProof:
        """That `count` blocks from the height `first` on stand in the history of the first `size` blocks."""
        return history.prove_range(layout.history_nodes(self._store), first - 1, count, size)

    def header(self, height: int) -> tuple[Header, bytes, int, int]:
        """Of an executed block, with root and number of its receipts, and what it took to compute that, in bytes."""
        block, leaves = self.raw_block(height)
        work = sum(map(len, leaves)) + _LEAF_COST * len(leaves)
        return block.header, self.block(height).root if leaves else merkle.EMPTY_ROOT, len(leaves), work

    def raw_block(self, height: int) -> tuple[StoredBlock, tuple[bytes, ...]]:
        """A whole executed block and its receipts, which are not kept in memory: whoever reads these reads all of them."""
        stored, receipts = self._store.get(layout.committed(height)), self._store.get(layout.receipts(height))
        try:
            if stored is not None and receipts is not None:
                return _blocks.decode(stored), layout.decode_receipts(receipts)
        except DECODE_ERRORS:
            pass  # the scrub finds it, and mends it
        raise NotFound("block", height=height)

    def raw_batch(self, digest: bytes) -> bytes | Remains | None:
        """A batch as it was submitted, or what stays of it."""
        if (body := self._store.get(layout.batch(digest))) is not None:
            return body
        left = self._store.get(layout.erased(digest))
        try:
            return None if left is None else _remains.decode(left)
        except DECODE_ERRORS:
            return None

    def evidence(self) -> Iterator[bytes]:
        """The proofs of misbehaviour that are kept, always in the same order."""
        return (record for _, record in self._store.scan(layout.EVIDENCE))

    def receipt(self, digest: bytes) -> ReceiptPlace | None:
        """Where the batch got its newest receipt, certified or not."""
        return self.read(RECEIPTS, digest)

    def waits(self, digest: bytes) -> bool:
        """Whether the batch is stored here and waits for order."""
        return self._store.get(layout.waiting(digest)) is not None

    def is_whole(self) -> bool:
        """Whether the records of all executed blocks are here: after a snapshot older ones come later."""
        return self._store.get(layout.BACKFILL) is None

    def read(self, table: Table[R, *K], *key: *K) -> R | None:
        """An entry after the newest executed block; it need not be certified yet."""
        return table.stored(self._entries, *key)

    def holds(self, key: bytes) -> bool:
        """Whether the state after the newest executed block has this entry; it need not be certified yet."""
        return self._store.get(layout.state(key)) is not None

    def key_of(self, client: str) -> bytes | None:
        """The key of a live client by its organisation/name, after the newest executed block."""
        organisation, _, name = client.partition("/")
        return self.read(NAMES, organisation, name)

    def batches_from(self, topic: str, partition: int, offset: int) -> Iterator[tuple[int, BatchPlace]]:
        """The first offset and the place of the batch that holds `offset`, then of those after it."""
        prefix = layout.APPLICATION + OFFSETS.places(topic, partition)
        start = layout.APPLICATION + OFFSETS.place(topic, partition, offset)
        found = self._store.last_at_or_before(prefix, start)
        for key, value in self._store.scan(prefix, start if found is None else found[0]):
            _, _, first = OFFSETS.unpack(key.removeprefix(layout.INDEX))
            yield first, OFFSETS.decode(value)

    def order_at(
        self, topic: str, partition: int, constraint: bytes, incarnation: Position, ps: int
    ) -> LeafPlace | None:
        """The leaf of an order that holds the number `ps`, or the last one before it."""
        order = (topic, partition, constraint, incarnation)
        found = self._store.last_at_or_before(
            layout.APPLICATION + ORDER_LEAVES.places(*order),
            layout.APPLICATION + ORDER_LEAVES.place(*order, ps),
        )
        return None if found is None else ORDER_LEAVES.decode(found[1])

    def keys_after(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """The keys of the state under a prefix, after a key, as of now."""
        for stored, _ in self._store.scan(layout.state(prefix), layout.state(after)):
            if (key := stored.removeprefix(layout.STATE)) != after:
                yield key

    def _read_block(self, height: int) -> tuple[ExecutedBlock, int]:
        stored, receipts = self._store.get(layout.committed(height)), self._store.get(layout.receipts(height))
        if stored is None or receipts is None:
            raise NotFound("block", height=height)
        leaves = layout.decode_receipts(receipts)
        tree = self._trees.find(height)
        return self._executed(_blocks.decode(stored).header, leaves, tree or merkle.Tree(leaves))

    def _executed(
        self, header: Header, leaves: tuple[bytes, ...], tree: merkle.Tree
    ) -> tuple[ExecutedBlock, int]:
        """With what it costs to keep it."""
        cost = _BLOCK_COST + _DECODED * sum(map(len, leaves)) + _LEAF_COST * len(leaves)
        return ExecutedBlock(header, leaves, self.application.decode_leaf, tree), cost

    def _body(self, digest: bytes) -> bytes:
        body = self._store.get(layout.batch(digest))
        if body is None:
            raise NotFound("batch", digest=digest)
        return body

    def _read_stored(self, digest: bytes) -> tuple[StoredBatch, int]:
        body = self._body(digest)
        header, messages, signature = _closed.decode(body)
        rules = frozenset(rule for _, _, _, rule, _ in _opened.decode(messages) if rule)
        return StoredBatch(header, signature, messages, rules, len(body)), len(body) + _STORED_COST

    def _read_batch(self, digest: bytes) -> tuple[Batch, int]:
        body = self._body(digest)
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
