"""What publishing gives."""

from __future__ import annotations

from parley.model.names import U64
from parley.model.receipts import BatchReceipt, Leaf, Outcome, receipt_of


class Published(Outcome, frozen=True):
    """The messages took the offsets from `first_offset` on, as many as the batch counts."""

    first_offset: U64

    @property
    def rank(self) -> int:
        return 3

    @property
    def place(self) -> int:
        return self.first_offset


def first_offset(receipt: BatchReceipt) -> int | None:
    """The first offset of a published batch; None for all others."""
    published = receipt.given(Published)
    return None if published is None else published.first_offset


def published(leaf: Leaf) -> tuple[BatchReceipt, int] | None:
    """The receipt of a published batch, and its first offset; None for all other leaves."""
    receipt = receipt_of(leaf)
    offset = None if receipt is None else first_offset(receipt)
    return None if receipt is None or offset is None else (receipt, offset)
