"""Texts of the refusals to which commands add what they know."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "UnknownTopic.command": "there is no topic {topic}, or you may not know of it{ending}",
}
