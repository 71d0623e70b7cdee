"""Texts of the refusals of subscriptions."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "LimitExceeded.orders": (
        "topic {topic} may have {limit} orders, one for each constraint in each partition, and with {partitions} "
        "partitions it would need more; use a constraint that others use, or fewer partitions"
    ),
    "LimitExceeded.subscriptions": "{client} has the {limit} subscriptions that it may have",
    "LimitExceeded.unguarded": (
        "topic {topic} has the {limit} constraints without an equality that it may have; name a tag that the messages "
        "must have, as in kind == 1"
    ),
    "LimitExceeded.waiting": (
        "{limit} constraints on topic {topic} name the same tag with the same value, which is the most that may; name "
        "another tag, too, that the messages must have"
    ),
    "NotSubscribed.constraint": "{client} has no subscription to {topic} with {constraint}",
    "NotSubscribed.ended": "the last subscription with this constraint has ended; subscribe again",
}
