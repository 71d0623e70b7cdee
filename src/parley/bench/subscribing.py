"""Subscribers of one process: each is a client with a connection of its own and verifies by itself whatever it gets."""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_left
from contextlib import AsyncExitStack

from parley.bench.jobs import Job, Report, Window
from parley.bench.progress import Progress
from parley.client import Client, Subscription, connect

SAMPLE_SECONDS = 0.01
AT_ONCE = 8  # subscribers that connect at a time


class SubscribingLoad:
    """Counts deliveries. How many there were by then is noted again and again, and looked up when the window is known."""

    def __init__(self, job: Job) -> None:
        self.begun = asyncio.Event()
        self._job = job
        self._stack = AsyncExitStack()
        self._clients: list[Client] = []
        self._subscriptions: list[Subscription] = []
        self._got = [0] * len(job.identities)
        self._times, self._totals = array("d"), array("d")
        self._progress = Progress(job.progress) if job.progress else None

    async def prepare(self) -> None:
        identities = self._job.identities
        for start in range(0, len(identities), AT_ONCE):
            await asyncio.gather(*(self._join(one) for one in identities[start : start + AT_ONCE]))

    async def _join(self, identity: str) -> None:
        client = await self._stack.enter_async_context(connect(genesis=self._job.genesis, identity=identity))
        self._clients.append(client)
        subscription = client.subscribe(self._job.topics[0])
        self._subscriptions.append(await self._stack.enter_async_context(subscription))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sample())
            for place in range(len(self._subscriptions)):
                group.create_task(self._receive(place))

    async def finish(self, window: Window) -> Report:
        lies = [lie for client in self._clients for lie in client.misbehaviour]
        report = Report(
            deliveries=round(
                interpolated(self._times, self._totals, window.end)
                - interpolated(self._times, self._totals, window.begin)
            ),
            failed=len(lies),
            problem=f"{lies[0].broker}: {lies[0].problem}" if lies else "",
            height=max(client.height for client in self._clients),
        )
        for (
            client
        ) in self._clients:  # without leaving the subscriptions one by one: their leases end by themselves
            await client.close()
        return report

    async def _receive(self, place: int) -> None:
        async for messages in self._subscriptions[place].batches():
            self._got[place] += len(messages)

    async def _sample(self) -> None:
        while True:
            self._times.append(time.monotonic())
            self._totals.append(sum(self._got))
            least = min(self._got)
            if self._progress is not None:
                self._progress.tell(self._job.place, least)
            if least:
                self.begun.set()
            await asyncio.sleep(SAMPLE_SECONDS)


def interpolated(times: array[float], totals: array[float], at: float) -> float:
    """The total at a time between two samples; before the first and after the last, theirs."""
    place = bisect_left(times, at)
    if place == 0:
        return totals[0] if totals else 0.0
    if place == len(times):
        return totals[-1]
    part = (at - times[place - 1]) / (times[place] - times[place - 1])
    return totals[place - 1] + part * (totals[place] - totals[place - 1])
