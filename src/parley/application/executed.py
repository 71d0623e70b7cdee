"""What executed blocks have brought, for people who watch: no rule reads it, and it is not replicated."""

from __future__ import annotations

from collections import Counter

MAX_LABELS = 100  # of one count that are counted by their names; all others are counted together


class Executed:
    """Counts since this broker started."""

    def __init__(self) -> None:
        self.batches: Counter[str] = Counter()  # by code
        self.totals: Counter[str] = Counter()
        self.labelled: dict[str, Counter[str]] = {}
        self.others: Counter[str] = Counter()  # of labels beyond the limit

    def add(self, what: str, by: int) -> None:
        self.totals[what] += by

    def add_labelled(self, what: str, label: str, by: int) -> None:
        """Count under a name that clients choose, such as a topic's."""
        counts = self.labelled.setdefault(what, Counter())
        if label in counts or len(counts) < MAX_LABELS:
            counts[label] += by
        else:
            self.others[what] += by
