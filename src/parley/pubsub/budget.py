"""What matching and committing may cost a block: all replicas must have applied it before they can vote."""

from __future__ import annotations

from parley.model.errors import Code, Refusal

__all__ = ["MAX_COMPARED_PER_BATCH", "MAX_COMPARED_PER_BLOCK", "Budget", "require_affordable"]

# Comparisons in the constraints that are asked; each takes about half a microsecond. Constraints are of very different
# sizes, so counting them would not do. Whatever is given a place in an order was asked first, so this limits places too.
MAX_COMPARED_PER_BATCH = 300_000
MAX_COMPARED_PER_BLOCK = 600_000
MAX_COMMITTED_PER_BLOCK = 16_384  # staged batches; each takes about 25 microseconds
MAX_COUNTED_PER_BLOCK = 100_000  # messages of staged batches that commits make it look at anew


def require_affordable(compared: int) -> None:
    """That a batch does not cost too much by itself."""
    if compared > MAX_COMPARED_PER_BATCH:
        raise Refusal(
            Code.LIMIT_EXCEEDED,
            f"its messages take {compared} comparisons with what subscribers ask for; "
            f"{MAX_COMPARED_PER_BATCH} are allowed, so split the batch",
        )


class Budget:
    """A batch is refused for its own cost only. One that others leave no room for is put off, not decided.

    A block takes at least the first of its batches that is not refused, so there is always progress.
    """

    def __init__(self) -> None:
        self._left = MAX_COMPARED_PER_BLOCK
        self._committed = 0
        self._counted = 0

    def spend(self, compared: int) -> None:
        require_affordable(compared)
        if not self.take(compared):
            raise Refusal(Code.BUSY, "the block is full; it is ordered again")

    def commit(self, batches: int) -> None:
        """Of a stage: each of them is looked up. One commit always fits."""
        if self._committed and self._committed + batches > MAX_COMMITTED_PER_BLOCK:
            raise Refusal(Code.BUSY, "the block commits as many batches as it may; this is ordered again")
        self._committed += batches

    def count(self, messages: int) -> None:
        """Of a commit, which may be refused for what this finds, and come again. What one may ask for always fits."""
        if self._counted + messages > MAX_COUNTED_PER_BLOCK:
            raise Refusal(
                Code.BUSY, "the block looks at as many staged messages as it may; this is ordered again"
            )
        self._counted += messages

    def reserve(self) -> None:
        """Room for one batch more, whatever the others have spent: staged ones have their turn in every block."""
        self._left = max(self._left, MAX_COMPARED_PER_BATCH)

    def take(self, compared: int) -> bool:
        """Whether there was room."""
        if compared > self._left:
            return False
        self._left -= compared
        return True
