"""Who votes: how many of the last blocks each member has certified. For people who watch, never for a decision."""

from __future__ import annotations

from collections import deque

from parley.consensus.types import Block
from parley.crypto.qc import voters

BLOCKS = 100  # that are looked back at


class RecentVotes:
    """Votes in the certificates of the last executed blocks. A certificate need not hold more than a quorum of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[tuple[int, ...]] = deque()
        self.total = [0] * size  # by member, since the start
        self.counts = [0] * size  # by member, of the last blocks

    @property
    def blocks(self) -> int:
        """How many blocks `counts` is about."""
        return len(self._recent)

    def executed(self, block: Block) -> None:
        """Count the votes for the parent of this block, which are in its header."""
        members = voters(block.header.justify.votes.bitmap, self._size) or ()
        if not members:  # the first block's parent has no certificate
            return
        self._recent.append(members)
        for member in members:
            self.total[member] += 1
            self.counts[member] += 1
        if len(self._recent) > BLOCKS:
            for member in self._recent.popleft():
                self.counts[member] -= 1
