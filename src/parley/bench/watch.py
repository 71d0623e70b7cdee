"""What brokers say of themselves during a measurement: asked one by one, so that one that is silent holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from parley.client import Client
from parley.client.errors import ParleyError
from parley.net.messages import Status

ANSWER_SECONDS = 5.0

Statuses = Mapping[str, Status]  # by broker, of those that answered


class Watch:
    """A client for each broker, which asks that one alone."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    async def ask(self, names: Collection[str] | None = None) -> Statuses:
        """These brokers, or all."""
        asked = list(self._clients if names is None else names)
        found = await asyncio.gather(*map(self._ask, asked))
        return {name: status for name, status in zip(asked, found, strict=True) if status is not None}

    async def _ask(self, name: str) -> Status | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                (found,) = await self._clients[name].status()
        except (ParleyError, TimeoutError):
            return None
        return found.status


def view_changes(before: Statuses, after: Statuses) -> int | None:
    """Views that ended without a certificate between two answers, by the broker that saw most of them.

    A broker that fell behind is shown certificates of later views, and does not see all. None: no broker answered twice.
    """
    seen = [
        sum(after[name].failed_views) - sum(before[name].failed_views) for name in after if name in before
    ]
    return max(seen, default=None)
