"""Texts of the refusals of publishing."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "LimitExceeded.comparisons": (
        "comparing its messages with the subscriptions takes more than {limit} comparisons; split the batch"
    ),
}
