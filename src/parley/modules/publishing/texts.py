"""Texts of the refusals of publishing."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "Busy.block_full": "the block is full; it is ordered again",
    "LimitExceeded.comparisons": (
        "its messages take {compared} comparisons with what subscribers ask for; {limit} are allowed, so split the batch"
    ),
}
