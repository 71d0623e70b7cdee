"""What clients say that they publish on a topic."""

from __future__ import annotations

from dataclasses import dataclass

from parley.client.operating import Operating
from parley.client.waiting import Blocking, blocking
from parley.modules.advertisements.operations import Advertise
from parley.modules.advertisements.tables import ADVERTISEMENTS

__all__ = ["Advertisement"]


@dataclass(frozen=True, slots=True)
class Advertisement:
    """What `client`, "organisation/name", says that it publishes."""

    client: str
    text: str


class Advertising(Operating):
    """The part of a client that speaks to the module `advertisements`."""

    async def advertise(self, topic: str, text: str) -> int:
        """Say what one publishes on a topic, to those who may describe it; an empty text withdraws it."""
        return (await self.operate(Advertise(topic, text))).height

    async def advertisements(self, topic: str) -> list[Advertisement]:
        """Those of a topic, by the names of their clients."""
        found = (record for _, record in await self.entries(ADVERTISEMENTS, topic))
        return sorted((Advertisement(one.client, one.text) for one in found), key=lambda one: one.client)


class BlockingAdvertising(Blocking):
    """The same without `await`."""

    advertise = blocking(Advertising.advertise)
    advertisements = blocking(Advertising.advertisements)
