"""Why topics refuse."""

from __future__ import annotations

from parley.model.refusals import Refused


class UnknownTopic(Refused, retry="changed", status=404, provable=True, suspicion="probe"):
    """There is no such topic, it was deleted, or the one who asks may not know of it."""


class TopicReplaced(Refused, retry="changed", status=409, provable=True, suspicion="refusal"):
    """It was meant for an earlier topic of this name: that one was deleted, and the name belongs to one made later."""


class TopicExists(Refused, retry="changed", status=409, suspicion="refusal"):
    """The name is in use."""


class UnknownPartition(Refused, retry="changed", status=404, provable=True, suspicion="refusal"):
    """The topic has fewer partitions."""
