"""What committing stages may cost a block."""

from __future__ import annotations

from parley.application.block import PerBlock
from parley.model.refusals import Busy

MAX_COMMITTED_PER_BLOCK = 16_384  # staged batches; each takes about 25 microseconds
MAX_COUNTED_PER_BLOCK = 100_000  # messages of staged batches that commits make it look at again


class CommitBudget:
    """A commit that others leave no room for is put off, not decided."""

    def __init__(self) -> None:
        self._committed = 0
        self._counted = 0

    def commit(self, batches: int) -> None:
        """Of a stage: each of them is looked up. One commit always fits."""
        if self._committed and self._committed + batches > MAX_COMMITTED_PER_BLOCK:
            raise Busy("commits")
        self._committed += batches

    def count(self, messages: int) -> None:
        """Of a commit, which may be refused for what this finds, and come again. What one may ask for always fits."""
        if self._counted + messages > MAX_COUNTED_PER_BLOCK:
            raise Busy("counting")
        self._counted += messages


COMMIT_BUDGET = PerBlock(lambda _: CommitBudget())
