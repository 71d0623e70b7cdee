"""A stream of NATS JetStream under a steady load from one client at each server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from parley.bench.errors import Unavailable
from parley.bench.failover.pace import steadily
from parley.bench.failover.plan import IN_FLIGHT
from parley.bench.peers.nats_client import Ack, make_stream
from parley.bench.peers.publishing import Job, NotAcknowledged, eventually, library, payloads

# A message that comes while no server leads is lost and never answered: clients have to give it up.
ACK_SECONDS = 1.0


class NatsTarget:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._acks = msgspec.json.Decoder(Ack)

    async def leader(self) -> str:
        nats = library("nats")
        try:
            name = await eventually(self._asked, OSError, TimeoutError, nats.errors.Error, NotAcknowledged)
        except (OSError, TimeoutError, nats.errors.Error, NotAcknowledged) as error:
            raise Unavailable(f"NATS did not get all its replicas up to date: {error!r}.") from error
        return name.replace("server", "nats")

    @asynccontextmanager
    async def publishing(self, rate: float) -> AsyncIterator[Mapping[str, list[float]]]:
        receipts: dict[str, list[float]] = {}
        async with AsyncExitStack() as stack:
            for number, server in enumerate(self._job.servers):
                connection = await library("nats").connect(
                    f"nats://{server}", allow_reconnect=False, error_cb=_unheard
                )
                stack.push_async_callback(connection.close)
                times = receipts[f"nats-{number}"] = []
                await stack.enter_async_context(self._publishing(connection, rate, times))
            yield receipts

    async def _asked(self) -> str:
        servers = [f"nats://{server}" for server in self._job.servers]
        connection = await library("nats").connect(servers, allow_reconnect=False, error_cb=_unheard)
        try:
            return await make_stream(connection, self._job)
        finally:
            await connection.close()

    @asynccontextmanager
    async def _publishing(self, connection: Any, rate: float, times: list[float]) -> AsyncIterator[None]:  # noqa: ANN401
        values, flights = payloads(self._job.size), set[asyncio.Task[None]]()

        def publish() -> None:
            if len(flights) < IN_FLIGHT:
                flight = asyncio.create_task(self._publish(connection, next(values), times))
                flights.add(flight)
                flight.add_done_callback(flights.discard)

        async with steadily(rate, publish):
            yield
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    async def _publish(self, connection: Any, value: bytes, times: list[float]) -> None:  # noqa: ANN401
        try:
            answer = await connection.request(self._job.target, value, timeout=ACK_SECONDS)
        except (OSError, TimeoutError, library("nats").errors.Error):
            return
        ack = self._acks.decode(answer.data)
        if ack.error is None and ack.seq:
            times.append(time.monotonic())


async def _unheard(error: Exception) -> None:
    """Servers are killed here, so lost connections need no report."""
