"""How far the other members are, as far as the chain shows it: bodies that one of them may still need must not go.

A member that is behind may be one without whose votes the others cannot go on. Then no block would be made, no header
certified, and no snapshot offered (P2): without the bodies of its next blocks it could never catch up, nor could anybody.
"""

from __future__ import annotations

from collections.abc import Callable

from parley.consensus.types import Block
from parley.crypto.qc import voters
from parley.ledger.bodies import GRACE

AWAY = 4_096  # heights without a sign, after which a member comes back by a snapshot, and nobody waits for it


class Progress:
    """To be told of every executed block; `stored` gives those that were executed before."""

    def __init__(self, index: int, size: int, executed: int, stored: Callable[[int], Block | None]) -> None:
        self._index = index
        self._size = size
        self._shown: dict[int, int] = {index: executed}  # the height that each member has executed, at least
        self._executed = executed
        self._last: Block | None = stored(executed)
        self._look_back(stored)

    def executed(self, block: Block) -> None:
        self._show(self._index, block.height)
        self._take(self._last, block)
        self._executed, self._last = block.height, block

    def all_near(self) -> bool:
        """Whether the bodies of the last `GRACE` blocks are all that anybody needs to catch up, but for those who are away."""
        return not any(GRACE < self._executed - shown <= AWAY for shown in self._shown.values())

    def _look_back(self, stored: Callable[[int], Block | None]) -> None:
        """Until all members have been seen, as far as there are blocks."""
        block, height = self._last, self._executed
        while block is not None and len(self._shown) < self._size and self._executed - height < AWAY:
            height -= 1
            parent = stored(height) if height >= 0 else None
            self._take(parent, block)
            block = parent
        for member in range(self._size):
            self._shown.setdefault(member, max(height, 0))

    def _take(self, parent: Block | None, block: Block) -> None:
        """Who proposes a block, or votes for it, has executed what its header names."""
        self._show(block.header.proposer, block.header.executed_height)
        if parent is not None:
            for member in voters(block.header.justify.votes.bitmap, self._size) or ():
                self._show(member, parent.header.executed_height)

    def _show(self, member: int, height: int) -> None:
        self._shown[member] = max(self._shown.get(member, 0), height)
