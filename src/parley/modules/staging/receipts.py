"""What staging gives."""

from __future__ import annotations

from parley.model.names import U64
from parley.model.receipts import BatchReceipt, Outcome
from parley.model.texts import render


class Staged(Outcome, frozen=True):
    """Stored and invisible; its stage may be committed up to height `until`, after which it is forgotten (P23)."""

    until: U64

    @property
    def rank(self) -> int:
        return 2

    @property
    def decides(self) -> bool:
        return False

    @property
    def detail(self) -> str:
        return render("Staged", "", {"until": self.until})


def is_staged(receipt: BatchReceipt) -> bool:
    return receipt.given(Staged) is not None
