"""Texts of the refusals of publishing."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "LimitExceeded.comparisons": (
        "its messages take more than the {limit} comparisons with what subscribers ask for that are allowed, so split the "
        "batch"
    ),
}
