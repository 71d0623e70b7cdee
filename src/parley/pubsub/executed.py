"""What executed blocks have brought, for people who watch: no rule reads it, and it is not replicated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from parley.model.errors import Code
from parley.model.receipts import BatchReceipt, Leaf, Match, Published

__all__ = ["MAX_TOPICS", "Executed"]

_NONE: Mapping[bytes, int] = {}
MAX_TOPICS = 100  # that are counted by their names; all others are counted together


class Executed:
    """Since this broker started. One addition for each batch and each order, none for a message."""

    def __init__(self) -> None:
        self.batches: Counter[Code] = Counter()
        self.publications = 0
        self.bytes = 0  # of the batches that were published, as they were signed
        self.matches = 0  # places that publications were given in the orders of constraints
        self.topics: Counter[str] = Counter()  # publications
        self.of_other_topics = 0

    def block(
        self, leaves: Iterable[Leaf], sizes: Mapping[bytes, int], numbered: Mapping[bytes, int] = _NONE
    ) -> None:
        """`sizes`: of the batches, by digest; `numbered`: of those that were staged before and got their offsets now."""
        for leaf in leaves:
            if isinstance(leaf, BatchReceipt):
                if isinstance(leaf.outcome, Published):
                    size = numbered.get(leaf.digest)
                    self._published(leaf.topic, leaf.count, sizes[leaf.digest] if size is None else size)
                    if size is not None:  # it was counted when it was staged
                        continue
                self.batches[leaf.code] += 1
            elif isinstance(leaf, Match):
                self.matches += len(leaf.items)

    def _published(self, topic: str, count: int, size: int) -> None:
        self.publications += count
        self.bytes += size
        if topic in self.topics or len(self.topics) < MAX_TOPICS:
            self.topics[topic] += count
        else:
            self.of_other_topics += count
