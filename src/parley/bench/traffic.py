"""What load processes do, through the real library: publish batches and see their receipts certified, or subscribe."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count, cycle
from pathlib import Path

from parley.bench.errors import Unavailable
from parley.bench.jobs import Job, Report, Window
from parley.client import Client, Publisher, Subscription, connect
from parley.client.errors import ParleyError

POOL_BYTES = 16 * 1024 * 1024  # of batches that are made before and sent in turn
POOL_BATCHES = 64
CAUGHT_UP_POLL = 0.002
SAMPLE_SECONDS = 0.01
AT_ONCE = 8  # subscribers that connect at a time
_COUNT = struct.Struct("<Q")


def create_progress(path: Path, processes: int) -> Path:
    path.write_bytes(bytes(_COUNT.size * processes))
    return path


class Progress:
    """How far each subscribing process is, in a file that all of them map: the publisher waits for the slowest one.

    One number for each process: the messages that the slowest of its subscribers has got.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def tell(self, place: int, messages: int) -> None:
        _COUNT.pack_into(self._map, place * _COUNT.size, messages)

    def least(self) -> int:
        counts: list[int] = [count for (count,) in _COUNT.iter_unpack(self._map)]
        return min(counts)


class PublishingLoad:
    """From `prepare` to `finish`. Times and latencies are kept batch by batch, and counted when the window is known."""

    def __init__(self, job: Job) -> None:
        self.begun = asyncio.Event()  # something was published
        self._job = job
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._publishers: list[Publisher] = []
        self._values = _values(job.size, job.batch)
        self._room = asyncio.Semaphore(job.in_flight)
        self._progress = Progress(job.progress) if job.progress else None
        self._flights: set[asyncio.Task[None]] = set()
        self._times, self._latencies, self._counts = array("d"), array("d"), array("Q")
        self._handed_over = 0
        self._failed = 0
        self._problem = ""

    async def prepare(self) -> None:
        job = self._job
        client = connect(genesis=job.genesis, identity=job.identities[0])
        self._client = await self._stack.enter_async_context(client)
        for topic in job.topics:
            publisher = client.publisher(topic, batch_size=job.batch, in_flight=job.in_flight)
            self._publishers.append(await self._stack.enter_async_context(publisher))

    async def run(self) -> None:
        """Hand over batch after batch, to each topic in turn, as the receipts of others or the rate allow."""
        job, begin = self._job, time.monotonic()
        for number, publisher, values in zip(
            count(), cycle(self._publishers), cycle(self._values), strict=False
        ):
            if job.rate:
                due = begin + number * job.batch / job.rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self._progress is not None:
                await self._caught_up(self._progress)
            await self._room.acquire()
            if self._failed and not self.begun.is_set():
                raise Unavailable(f"Nothing can be published: {self._problem}")
            self._handed_over += len(values)
            flight = asyncio.create_task(self._publish(publisher, values))
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)

    async def finish(self, window: Window) -> Report:
        for flight in self._flights:
            flight.cancel()
        within = [place for place, at in enumerate(self._times) if window.begin <= at < window.end]
        report = Report(
            publications=sum(self._counts[place] for place in within),
            latencies_us=[round(1e6 * self._latencies[place]) for place in within],
            times=[self._times[place] for place in within],
            failed=self._failed,
            problem=self._problem,
            height=0 if self._client is None else self._client.height,
        )
        if self._client is not None:
            await self._client.close()
        return report

    async def _publish(self, publisher: Publisher, values: Sequence[bytes]) -> None:
        at = time.monotonic()
        try:
            receipts = await publisher.publish_many(values, tags=self._job.tags)
        except ParleyError as error:
            self._failed += 1
            self._problem = self._problem or str(error)
        else:
            now = time.monotonic()
            self._times.append(now)
            self._latencies.append(now - at)
            self._counts.append(sum(map(len, receipts)))
            self.begun.set()
        finally:
            self._room.release()

    async def _caught_up(self, progress: Progress) -> None:
        """Until no more batches are on their way to the slowest subscriber than may be in flight."""
        ahead = self._job.batch * self._job.in_flight
        # Another process cannot wake this one, so it looks again and again.
        while self._handed_over - progress.least() >= ahead:  # noqa: ASYNC110
            await asyncio.sleep(CAUGHT_UP_POLL)


def _values(size: int, batch: int) -> list[list[bytes]]:
    """Batches of values that look random and cost nothing to make: slices of one block."""
    batches = max(1, min(POOL_BATCHES, POOL_BYTES // max(1, size * batch)))
    block = os.urandom(size + batches * batch)
    return [[block[at : at + size] for at in range(one * batch, (one + 1) * batch)] for one in range(batches)]


class SubscribingLoad:
    """Counts deliveries. How many there were by then is noted again and again, and looked up when the window is known."""

    def __init__(self, job: Job) -> None:
        self.begun = asyncio.Event()  # every subscriber got something
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
