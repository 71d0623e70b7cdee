"""The tree of blocks that are not final yet, and the rule that makes them final (Galaxy IV-B; P2; T1, T8).

A block is final when it heads a run of `depth` certified blocks of consecutive views: 2 for Jolteon, 3 for HotStuff.
Consecutive *views*, not merely parents: without blank blocks every parent is adjacent, and the rule would be void.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parley.consensus.types import Block, Header

MAX_UNCERTIFIED = 64  # blocks that may still get a QC; one that falls out comes back from disk if it does


@dataclass(slots=True)
class Node:
    """A block and what its ancestry implies."""

    block: Block
    finalises: int  # the height that is final once this block is certified
    child_executes: int  # the executed_height that each child must name (P2)
    last_payload: int  # the newest height up to here with batches in it
    certified: bool = False

    @property
    def is_uncovered(self) -> bool:
        """Whether batches were ordered whose results no header up to here names yet (P2)."""
        return self.last_payload > self.block.header.executed_height


class Forest:
    """Blocks above the last committed one, the root, and as many headers below it as the rules read."""

    def __init__(self, depth: int, history: Sequence[Block], memory: int = 0) -> None:
        """`history`: committed blocks, parent before child, the last one being the root. See `needed_history`."""
        if depth not in (2, 3):
            raise ValueError(f"commit depth must be 2 or 3, not {depth}")
        self._depth = depth
        self._memory = max(memory, depth + 1)
        self._below: OrderedDict[bytes, Block] = OrderedDict((block.id, block) for block in history[:-1])
        self._nodes: dict[bytes, Node] = {}
        self._root = self._restore_root(history[-1])
        self._nodes[self._root.block.id] = self._root

    @staticmethod
    def needed_history(root: Header, depth: int, memory: int) -> int:
        """The lowest height that `history` must reach down to when the chain is loaded from disk."""
        return max(0, min(root.executed_height, root.height - max(memory, depth + 1)))

    @property
    def root(self) -> Block:
        return self._root.block

    def get(self, block: bytes) -> Node | None:
        return self._nodes.get(block)

    def uncommitted(self, block: bytes) -> Iterator[Block]:
        """The blocks from `block` down to the root, the root excluded."""
        while block != self._root.block.id:
            node = self._nodes[block]
            yield node.block
            block = node.block.parent

    def ordered(self, block: bytes) -> frozenset[bytes]:
        """The batches of the uncommitted blocks up to this one; none if it is not here."""
        if block not in self._nodes:
            return frozenset()
        return frozenset(digest for found in self.uncommitted(block) for digest in found.batches)

    def ancestry(self, block: bytes) -> Iterator[Header]:
        """Headers from `block` downwards, through the committed ones that are kept."""
        while (found := self._find(block)) is not None:
            yield found.header
            block = found.parent

    def add(self, block: Block) -> None:
        """Add a child of a known block."""
        parent = self._nodes[block.parent]
        self._nodes[block.id] = Node(
            block,
            finalises=self._final_after(block, parent.finalises),
            child_executes=parent.finalises,
            last_payload=block.height if block.batches else parent.last_payload,
        )

    def trim(self, keep: bytes = b"") -> tuple[Block, ...]:
        """Let the oldest uncertified blocks fall out of the bounded buffer, but not `keep`; returns them."""
        loose = [node.block for id_, node in self._nodes.items() if not node.certified and id_ != keep]
        surplus = sorted(loose, key=lambda block: block.view)[: max(0, len(loose) - MAX_UNCERTIFIED + 1)]
        for block in surplus:
            del self._nodes[block.id]
        return tuple(surplus)

    def certify(self, block: bytes) -> tuple[tuple[Block, ...], tuple[bytes, ...]]:
        """Note a QC on a known block; returns the blocks that are final now, oldest first, and the ids abandoned."""
        node = self._nodes[block]
        node.certified = True
        if node.finalises <= self._root.block.height:
            return (), ()
        return self._commit(node)

    def _commit(self, node: Node) -> tuple[tuple[Block, ...], tuple[bytes, ...]]:
        # Walk by parent, not by view: gaps neither repeat nor reorder a block (T8).
        final: list[Block] = []
        walk: Block | None = node.block
        while walk is not None and walk.height > self._root.block.height:
            if walk.height <= node.finalises:
                final.append(walk)
            walk = self._find(walk.parent)
        assert walk is self._root.block, "every block here descends from the last committed one"
        final.reverse()
        return tuple(final), self._move_root(final)

    def _move_root(self, final: list[Block]) -> tuple[bytes, ...]:
        before = self._nodes
        done = {self._root.block.id, *(block.id for block in final)}
        for block in [self._root.block, *final[:-1]]:
            self._below[block.id] = block
        while len(self._below) > self._memory:
            self._below.popitem(last=False)
        self._root = before[final[-1].id]
        kept = {self._root.block.id: self._root}
        for id_, node in before.items():  # parents were inserted before their children
            if node.block.parent in kept:
                kept[id_] = node
        self._nodes = kept
        return tuple(id_ for id_ in before if id_ not in kept and id_ not in done)

    def _final_after(self, block: Block, otherwise: int) -> int:
        """The height that is final once `block` is certified, if the run that ends in it has consecutive views."""
        for _ in range(self._depth - 1):
            parent = self._find(block.parent)
            if parent is None or parent.view + 1 != block.view:
                return otherwise
            block = parent
        return block.height

    def _restore_root(self, root: Block) -> Node:
        # A header names what its grandparent finalised, so the inherited height needs no deeper walk.
        executed = root.header.executed_height
        parent = self._below.get(root.parent)
        parent_finalises = executed if parent is None else self._final_after(parent, executed)
        payload = [block.height for block in [*self._below.values(), root] if block.batches]
        return Node(
            root,
            finalises=self._final_after(root, parent_finalises),
            child_executes=parent_finalises,
            last_payload=max(payload, default=0),
            certified=True,
        )

    def _find(self, block: bytes) -> Block | None:
        node = self._nodes.get(block)
        return self._below.get(block) if node is None else node.block
