"""Tags and constraints in the clear: brokers compare them, and readers check the brokers (P6)."""

from __future__ import annotations

from parley.model.batches import MessageHeader
from parley.model.expressions import Constraint
from parley.privacy.codecs import AsPublished


class Clear(AsPublished):
    name = "clear"

    def matches(self, constraint: Constraint, header: MessageHeader) -> bool:
        return constraint.matches(dict(header.tags))
