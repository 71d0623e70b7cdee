"""A client that publishes through the real library: batches of a fixed size, several in flight, each receipt certified."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count, cycle

from parley.bench.errors import Unavailable
from parley.bench.jobs import Job, Report, Window
from parley.bench.progress import Progress
from parley.client import Client, Publisher, connect
from parley.client.errors import ParleyError

POOL_BYTES = 16 * 1024 * 1024  # of batches that are made before and sent in turn
POOL_BATCHES = 64
CAUGHT_UP_POLL = 0.002


class PublishingLoad:
    """From `prepare` to `finish`. Times and latencies are kept batch by batch, and counted when the window is known."""

    def __init__(self, job: Job) -> None:
        self.begun = asyncio.Event()
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
