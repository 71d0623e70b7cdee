"""Why subscriptions refuse."""

from __future__ import annotations

from parley.model.refusals import Refused


class NotSubscribed(Refused, retry="changed", status=404, suspicion="refusal"):
    """There is no such subscription, or it has ended."""
