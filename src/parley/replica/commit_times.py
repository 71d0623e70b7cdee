"""How long blocks take from their proposal to their commit: for people who watch, never for a decision."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from parley.consensus.types import Block

# In ms: the upper ends of what is counted together. Longer ones are counted, too.
BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
MAX_SEEN = 1_024  # proposals that are remembered until they are committed or abandoned


class Durations:
    """A histogram of whole milliseconds: one addition for each, whatever their number."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # up to each bound, and beyond the last one
        self.total = 0

    def add(self, ms: int) -> None:
        self.counts[bisect_left(BOUNDS, ms)] += 1
        self.total += ms


class CommitTimes:
    """`took`: from the proposal of a block with batches, as it was seen here, to its commit.

    An empty block waits for the next heartbeat before it is committed, which says nothing about how fast consensus is.
    Blocks that were fetched after they had been certified do not count either: they were never proposed here.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self.took = Durations()

    def proposed(self, block: Block, now: int) -> None:
        if block.batches:
            self._seen.setdefault(block.id, now)
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    def committed(self, blocks: Iterable[Block], now: int) -> None:
        for block in blocks:
            if (since := self._seen.pop(block.id, None)) is not None:
                self.took.add(max(0, now - since))

    def abandoned(self, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            self._seen.pop(block, None)
