"""Texts of the refusals of advertisements."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {"LimitExceeded.advertisements": "{client} advertises on the {limit} topics that it may"}
