"""Executed blocks under the search for damage: receipts, history, roots, bodies and indices of one height at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from parley.consensus.types import Block, Roots
from parley.crypto.hashing import DIGEST_SIZE
from parley.crypto.merkle import node_hash
from parley.ledger import history, layout
from parley.ledger.application import BodyKeeper
from parley.ledger.bodies import GRACE, Judgement, judge
from parley.ledger.derived import Derived
from parley.ledger.erasure import RemainsError, check_remains
from parley.ledger.steps import each
from parley.model.codec import DECODE_ERRORS
from parley.replica.findings import Finding, FromBody, FromRecord, Put
from parley.replica.memory import Memory
from parley.replica.records import (
    fits,
    leaf_node_in_parts,
    read_block,
    read_leaves,
    read_unchecked,
    root_in_parts,
)
from parley.store.interface import KeyValue

NAMED_WITHIN = 16  # heights above a block in which a header may name its results
LEAF_COST = 64  # of a leaf or a digest that is hashed, read or compared
BODY_COST = 1024  # of a body besides its bytes: its signature is checked

T = TypeVar("T")


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
        block, leaves = read_unchecked(self._store, height), read_leaves(self._store, height)
        if block is not None:
            found = yield from _charged(root_in_parts(block.batches))
            block = block if found == block.header.batches_root else None
        for key, read in ((layout.committed(height), block), (layout.receipts(height), leaves)):
            if read is None:
                what = "is missing" if self._store.get(key) is None else "cannot be read"
                yield Finding(key, what, FromRecord(height))
        if block is None or leaves is None:
            return
        yield sum(map(len, leaves))
        fault = yield from self._leaf(block, leaves)
        if fault is not None:
            yield fault
            if isinstance(fault.remedy, FromRecord):
                return
        else:
            yield from self._nodes(height)
        yield from self._roots(height)
        yield from self._bodies(block, leaves)
        for step in self._derived.compare(height, leaves):
            if isinstance(step, int):
                yield step * LEAF_COST
            else:
                entry, value = step
                yield Finding(layout.APPLICATION + entry, "does not lead to what it should", Put(value))

    # -- history -----------------------------------------------------------------------------------------------------------

    def _leaf(self, block: Block, leaves: tuple[bytes, ...]) -> Generator[int, None, Finding | None]:
        height, key = block.height, layout.history_node(0, block.height - 1)
        node = yield from _charged(leaf_node_in_parts(block, leaves))
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

    def _roots(self, height: int) -> Iterator[Finding | int]:
        key = layout.roots(height)
        value = self._store.get(key)
        known = self._memory.roots.get(height)
        named = self._named(height) if known is None else None
        if named is not None:
            known = Roots(named.header.state_root, named.header.history_root)
        if known is not None:
            if value == layout.encode(known):
                return
            if named is None or (yield from _charged(self._is_sound(named))):
                yield Finding(key, "is not what a quorum certified", Put(layout.encode(known)))
        elif value is not None and not self._may_be(value, height):
            # No header names it, so nobody can say what it was, and nobody will ask.
            yield Finding(key, "cannot be right, and no header names it", Put(None))

    def _is_sound(self, block: Block) -> Generator[int, None, bool]:
        """Whether the block itself is what the history says: a damaged one claims anything."""
        leaves = read_leaves(self._store, block.height)
        node = None if leaves is None else (yield from leaf_node_in_parts(block, leaves))
        return node == self._store.get(layout.history_node(0, block.height - 1))

    def _named(self, height: int) -> Block | None:
        """The block whose header names the results of this height. They are certified: the block is executed."""
        for above in range(height + 1, min(height + NAMED_WITHIN, self._memory.executed) + 1):
            block = read_unchecked(self._store, above)
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
        highest = self._memory.executed
        judged = yield from _charged(judge(block, leaves, self._keeper, self._state, highest=highest))
        kept = frozenset(judged.kept)
        for name in dict.fromkeys(block.batches):
            key = layout.batch(name)
            body = self._store.get(key)
            yield BODY_COST + len(body or b"")
            if body is not None and self._keeper.is_body(body, name):
                if (
                    name not in kept
                    and highest - block.height > GRACE
                    and not self._is_kept_elsewhere(name, block, judged)
                ):
                    yield Outdated(name)
            elif name in kept:
                what = "is missing" if body is None else "is not the batch that it is named after"
                yield Finding(key, what, FromBody(block, name))
            elif body is not None:
                yield Finding(key, "is not the batch that it is named after", Put(None))

    def needed(self, block: Block) -> Generator[int, None, frozenset[bytes]]:
        """The batches of an executed block whose bodies are still to be kept."""
        leaves, highest = read_leaves(self._store, block.height), self._memory.executed
        if leaves is None:
            return frozenset(block.batches)
        judged = yield from judge(block, leaves, self._keeper, self._state, highest=highest)
        return frozenset(judged.kept)

    def _is_kept_elsewhere(self, name: bytes, block: Block, judged: Judgement) -> bool:
        """A batch that waits, or that has its receipt in another block, is judged there."""
        if self._store.get(layout.waiting(name)) is not None:
            return True
        height = self._keeper.receipt_height(name, self._state)
        return height is not None and height != block.height and name not in judged.unfinished

    def is_executed(self, name: bytes) -> bool:
        return self._keeper.receipt_height(name, self._state) is not None

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
            self._keeper.place_of(key.removeprefix(layout.APPLICATION), value)
        except (*DECODE_ERRORS, ValueError):
            return False
        return True


def _charged(steps: Generator[int, None, T]) -> Generator[int, None, T]:
    """The cost of steps that tell how many leaves they have looked at."""
    return each(steps, lambda leaves: leaves * LEAF_COST)
