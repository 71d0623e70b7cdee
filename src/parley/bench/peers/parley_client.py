"""Parley under the load that its peers get: signed batches, several in flight, every receipt certified."""

from __future__ import annotations

from contextlib import AsyncExitStack

from parley.bench.peers.publishing import Job, NotAcknowledged, batches, payloads, publish_lists
from parley.client import Publisher, connect


class ParleyPublisher:
    """The topic and the client's registration are made by whoever starts the network."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = payloads(job.size)
        self._stack = AsyncExitStack()
        self._publisher: Publisher | None = None

    async def prepare(self) -> None:
        job = self._job
        client = await self._stack.enter_async_context(connect(genesis=job.servers[0], identity=job.identity))
        publisher = client.publisher(job.target, batch_size=job.batch, in_flight=job.in_flight)
        self._publisher = await self._stack.enter_async_context(publisher)

    async def publish(self, count: int) -> None:
        lists = batches(self._values, count, self._job.batch)
        await publish_lists(lists, self._publish, self._job.in_flight)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _publish(self, values: list[bytes]) -> None:
        assert self._publisher is not None, "it was prepared"
        receipts = await self._publisher.publish_many(values)
        if sum(map(len, receipts)) != len(values):
            raise NotAcknowledged(f"{len(values)} messages got {sum(map(len, receipts))} receipts.")
