"""What committing stages may cost a block."""

from __future__ import annotations

from parley.application.block import PerBlock
from parley.model.refusals import Busy

MAX_COMMITTED_PER_BLOCK = 16_384  # staged batches; each takes about 25 microseconds
MAX_COUNTED_PER_BLOCK = 100_000  # messages of staged batches that commits make it look at again


class CommitBudget:
    """What is left for commits in one block. A commit that others leave no room for is put off, not decided."""

    def __init__(self) -> None:
        self._committed = 0
        self._counted = 0

    def commit(self, batches: int) -> None:
        """Count the batches of a commit, each of which is looked up. Raises `Busy`; one commit always fits."""
        if self._committed and self._committed + batches > MAX_COMMITTED_PER_BLOCK:
            raise Busy("commits")
        self._committed += batches

    def count(self, messages: int) -> None:
        """Count messages that a commit makes it look at again. Raises `Busy`; what one commit may ask for always fits.

        They count even if the commit is refused for what this finds: it may come again.
        """
        if self._counted + messages > MAX_COUNTED_PER_BLOCK:
            raise Busy("counting")
        self._counted += messages


COMMIT_BUDGET = PerBlock(lambda _: CommitBudget())
