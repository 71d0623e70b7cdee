"""Executed blocks under the search for damage: receipts, history, roots, bodies and indices of one height at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parley.consensus.types import Block, Roots
from parley.crypto.hashing import DIGEST_SIZE
from parley.crypto.merkle import node_hash
from parley.ledger import history, layout
from parley.ledger.application import BodyKeeper, KeyValue
from parley.ledger.bodies import GRACE, kept_batches, unfinished
from parley.ledger.derived import Derived
from parley.ledger.erasure import RemainsError, check_remains
from parley.model.codec import DECODE_ERRORS
from parley.replica.findings import Finding, FromBody, FromRecord, Put
from parley.replica.memory import Memory
from parley.replica.records import fits, leaf_node, read_block, read_leaves

NAMED_WITHIN = 16  # heights above a block in which a header may name its results


@dataclass(frozen=True, slots=True)
class Outdated:
    """A body that should have been erased."""

    name: bytes


class BlockScrub:
    """Each check yields what is wrong, and the bytes that it had to read."""

    def __init__(self, store: KeyValue, keeper: BodyKeeper, memory: Memory) -> None:
        self._store = store
        self._keeper = keeper
        self._memory = memory
        self._state = layout.StateView(store)
        self._derived = Derived(keeper, store, self._state)

    def genesis(self) -> Iterator[Finding]:
        """Block 0 is known by heart."""
        genesis = self._memory.genesis
        block = layout.encode(layout.StoredBlock.of(genesis))
        roots = layout.encode(Roots(genesis.header.state_root, genesis.header.history_root))
        for key, value in ((layout.committed(0), block), (layout.roots(0), roots)):
            if self._store.get(key) != value:
                yield Finding(key, "is not what the genesis file gives", Put(value))

    def height(self, height: int) -> Iterator[Finding | Outdated | int]:
        block, leaves = read_block(self._store, height), read_leaves(self._store, height)
        for key, found in ((layout.committed(height), block), (layout.receipts(height), leaves)):
            if found is None:
                what = "is missing" if self._store.get(key) is None else "cannot be read"
                yield Finding(key, what, FromRecord(height))
        if block is None or leaves is None:
            return
        yield sum(map(len, leaves))
        fault = self._leaf(block, leaves)
        if fault is not None:
            yield fault
            if isinstance(fault.remedy, FromRecord):
                return
        else:
            yield from self._nodes(height)
        yield from self._roots(height)
        yield from self._bodies(block, leaves)
        for key, value in self._derived.wrong(height, leaves):
            yield Finding(layout.APPLICATION + key, "does not lead to what it should", Put(value))

    # -- history -----------------------------------------------------------------------------------------------------------

    def _leaf(self, block: Block, leaves: tuple[bytes, ...]) -> Finding | None:
        height, key = block.height, layout.history_node(0, block.height - 1)
        node = leaf_node(block, leaves)
        if self._store.get(key) == node:
            return None
        if fits(self._store, (0, height - 1), node, self._memory.trusted()):
            return Finding(key, "is not the history's node", Put(node))
        after = read_block(self._store, height + 1)
        wrong_block = after is not None and after.parent != block.id
        suspect = layout.committed(height) if wrong_block else layout.receipts(height)
        return Finding(suspect, "is not what the history says", FromRecord(height))

    def _nodes(self, height: int) -> Iterator[Finding]:
        """The nodes that this block completed, from those below them."""
        level, index = 0, height - 1
        while index & 1:
            left, right = (self._store.get(layout.history_node(level, at)) for at in (index - 1, index))
            level, index = level + 1, index >> 1
            if left is None or right is None or len(left) != DIGEST_SIZE or len(right) != DIGEST_SIZE:
                return  # told already, or still to be filled in
            key, node = layout.history_node(level, index), node_hash(left, right)
            if self._store.get(key) != node:
                sound = fits(self._store, (level, index), node, self._memory.trusted())
                yield Finding(key, "is not the history's node", Put(node) if sound else FromRecord(height))
                return

    # -- results -----------------------------------------------------------------------------------------------------------

    def _roots(self, height: int) -> Iterator[Finding]:
        key = layout.roots(height)
        value = self._store.get(key)
        known = self._memory.roots(height)
        named = self._named(height) if known is None else None
        if named is not None:
            known = Roots(named.header.state_root, named.header.history_root)
        if known is not None:
            if value != layout.encode(known) and (named is None or self._is_sound(named)):
                yield Finding(key, "is not what a quorum certified", Put(layout.encode(known)))
        elif value is not None and not self._may_be(value, height):
            # No header names it, so nobody can say what it was, and nobody will ask.
            yield Finding(key, "cannot be right, and no header names it", Put(None))

    def _is_sound(self, block: Block) -> bool:
        """Whether the block itself is what the history says: a damaged one claims anything."""
        leaves = read_leaves(self._store, block.height)
        node = None if leaves is None else leaf_node(block, leaves)
        return node == self._store.get(layout.history_node(0, block.height - 1))

    def _named(self, height: int) -> Block | None:
        """The block whose header names the results of this height. They are certified: the block is executed."""
        for above in range(height + 1, min(height + NAMED_WITHIN, self._memory.executed()) + 1):
            block = read_block(self._store, above)
            if block is not None and block.header.executed_height >= height:
                return block if block.header.executed_height == height else None
        return None

    def _may_be(self, value: bytes, height: int) -> bool:
        try:
            return layout.decode_roots(value).history == history.root(
                layout.history_nodes(self._store), height
            )
        except history.MissingNode:
            return True
        except DECODE_ERRORS:
            return False

    # -- bodies ------------------------------------------------------------------------------------------------------------

    def _bodies(self, block: Block, leaves: tuple[bytes, ...]) -> Iterator[Finding | Outdated | int]:
        highest = self._memory.executed()
        kept = kept_batches(block, leaves, self._keeper, self._state, highest=highest)
        for name in dict.fromkeys(block.batches):
            key = layout.batch(name)
            body = self._store.get(key)
            yield len(body or b"")
            if body is not None and self._keeper.is_body(body, name):
                if (
                    name not in kept
                    and highest - block.height > GRACE
                    and not self._is_kept_elsewhere(name, block, leaves)
                ):
                    yield Outdated(name)
            elif name in kept:
                what = "is missing" if body is None else "is not the batch that it is named after"
                yield Finding(key, what, FromBody(block, name))
            elif body is not None:
                yield Finding(key, "is not the batch that it is named after", Put(None))

    def needs(self, block: Block, name: bytes) -> bool:
        leaves, highest = read_leaves(self._store, block.height), self._memory.executed()
        return leaves is None or name in kept_batches(
            block, leaves, self._keeper, self._state, highest=highest
        )

    def _is_kept_elsewhere(self, name: bytes, block: Block, leaves: tuple[bytes, ...]) -> bool:
        """A batch that waits, or that has its receipt in another block, is judged there."""
        if self._store.get(layout.waiting(name)) is not None:
            return True
        height = self._keeper.receipt_height(name, self._state)
        return height is not None and height != block.height and name not in unfinished(leaves, self._keeper)

    def is_placed(self, name: bytes) -> bool:
        """Whether a block that was executed, or may still be, names the batch."""
        if self._keeper.receipt_height(name, self._state) is not None:
            return True
        entries = self._store.scan(layout.UNCOMMITTED)
        blocks = (layout.readable(layout.decode_block, value) for _, value in entries)
        return any(block is not None and name in block.batches for block in blocks)

    def remains(self, key: bytes, value: bytes) -> Iterator[Finding]:
        try:
            check_remains(value, key[len(layout.erased(b"")) :], self._memory.genesis.header.chain)
        except RemainsError:
            # The receipt and the history still prove what it was; the signature is at others.
            yield Finding(key, "is not what stayed of the batch", Put(None))

    def is_readable(self, key: bytes, value: bytes) -> bool:
        """Whether an entry of what waits to be erased can be read. One that is lost does no harm: `Outdated` bodies are
        found by their blocks.
        """
        try:
            self._keeper.height_of(key.removeprefix(layout.APPLICATION), value)
        except (*DECODE_ERRORS, ValueError):
            return False
        return True
