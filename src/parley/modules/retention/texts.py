"""Texts of the refusals of retention."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {"Pruned": "partition {partition} of {topic} starts at offset {start}"}
