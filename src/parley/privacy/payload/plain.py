"""Payloads as they are: every reader of the topic that a message's rule allows can read them, and so can every broker."""

from __future__ import annotations

from parley.privacy.codecs import AsPublished


class Plain(AsPublished):
    name = "plain"
