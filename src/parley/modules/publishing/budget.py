"""What matching may cost a block: all replicas must have applied it before they can vote."""

from __future__ import annotations

from parley.application.block import PerBlock
from parley.model.refusals import Busy, LimitExceeded

# Comparisons in the constraints that are evaluated; each takes about half a microsecond. Constraints are of very different
# sizes, so counting them would not do. A message gets a number only in the order of a constraint that was evaluated for
# it, so this limits numbers too.
MAX_COMPARED_PER_BATCH = 300_000
MAX_COMPARED_PER_BLOCK = 600_000


def require_affordable(compared: int) -> None:
    """Raises `LimitExceeded` if a batch costs too much by itself."""
    if compared > MAX_COMPARED_PER_BATCH:
        raise LimitExceeded("comparisons", compared=compared, limit=MAX_COMPARED_PER_BATCH)


class Budget:
    """What is left for matching in one block. A batch is refused for its own cost only.

    A batch that others leave no room for is put off, not decided. A block takes at least the first of its batches that is
    not refused, so there is always progress.
    """

    def __init__(self) -> None:
        self._left = MAX_COMPARED_PER_BLOCK

    def spend(self, compared: int) -> None:
        """Take comparisons for a batch. Raises `LimitExceeded`, or `Busy` if there is no room."""
        require_affordable(compared)
        if not self.take(compared):
            raise Busy("block_full")

    def reserve(self) -> None:
        """Make room for one more batch, even if the others have spent it: staged ones have their turn in every block."""
        self._left = max(self._left, MAX_COMPARED_PER_BATCH)

    def take(self, compared: int) -> bool:
        """Take comparisons; returns whether there was room."""
        if compared > self._left:
            return False
        self._left -= compared
        return True


BUDGET = PerBlock(lambda _: Budget())
