"""RabbitMQ's publishing client, built on pika: many messages to a quorum queue wait for their confirmation at a time.

Pika's callbacks cost a client a fifth of what a future for each message does in aio-pika.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count as numbers
from itertools import islice
from typing import Any

from parley.bench.peers.publishing import Job, NotAcknowledged, eventually, library, payloads

REPLICAS = 3
ANSWER_SECONDS = 60.0


class Confirmations:
    """Which messages of a channel still wait. A broker confirms one, or all up to one, in any order."""

    def __init__(self) -> None:
        self._tags = numbers(1)  # as the broker counts
        self._waiting: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def sent(self) -> None:
        self._waiting[next(self._tags)] = None

    def confirmed(self, tag: int, *, and_before: bool) -> None:
        if not and_before:
            self._waiting.pop(tag, None)
            return
        while self._waiting and (first := next(iter(self._waiting))) <= tag:
            del self._waiting[first]


class RabbitPublisher:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = payloads(job.size)
        self._waiting = Confirmations()
        self._told = asyncio.Event()  # something was confirmed, or went wrong
        self._problem = ""
        self._connection: Any = None
        self._channel: Any = None

    async def prepare(self) -> None:
        """All nodes listen before the queue is made: it gets replicas on those that run at that moment.

        A node listens when it has joined, and one that knows the queue is in the cluster of the node that made it.
        """
        self._connection, *others = [await _connected(server) for server in self._job.servers]
        self._channel = await _channel(self._connection)
        self._channel.add_on_close_callback(
            lambda _, reason: self._failed(f"RabbitMQ closed the channel: {reason}")
        )
        await _called(lambda done: self._channel.confirm_delivery(self._confirmed, callback=done))
        await self._declare(self._channel, passive=False)
        for other in others:
            await self._declare(await _channel(other), passive=True)
            other.close()

    async def publish(self, count: int) -> None:
        job, waiting, publish = self._job, self._waiting, self._channel.basic_publish
        properties = library("pika").BasicProperties(delivery_mode=2)  # to the disk
        for value in islice(self._values, count):
            await self._until_fewer_than(job.in_flight)
            waiting.sent()
            publish("", job.target, value, properties)
        await self._until_fewer_than(1)

    async def close(self) -> None:
        self._channel.close()
        self._connection.close()

    async def _declare(self, channel: Any, *, passive: bool) -> None:  # noqa: ANN401
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": REPLICAS}
        await _called(
            lambda done: channel.queue_declare(
                self._job.target, passive=passive, durable=True, arguments=arguments, callback=done
            )
        )

    async def _until_fewer_than(self, limit: int) -> None:
        while len(self._waiting) >= limit:
            self._told.clear()
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._told.wait()
            if self._problem:
                raise NotAcknowledged(self._problem)

    def _confirmed(self, frame: Any) -> None:  # noqa: ANN401
        method = frame.method
        if method.NAME != "Basic.Ack":
            self._failed(f"RabbitMQ answered {method.NAME}.")
            return
        self._waiting.confirmed(method.delivery_tag, and_before=method.multiple)
        self._told.set()

    def _failed(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._told.set()


async def _connected(server: str) -> Any:  # noqa: ANN401
    pika, adapter = library("pika"), library("pika.adapters.asyncio_connection").AsyncioConnection
    host, _, port = server.rpartition(":")
    loop = asyncio.get_running_loop()

    async def connect() -> Any:  # noqa: ANN401
        opened = loop.create_future()
        adapter(
            pika.ConnectionParameters(host, int(port)),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(
                NotAcknowledged(f"RabbitMQ: {error!r}")
            ),
            custom_ioloop=loop,
        )
        return await opened

    return await eventually(connect, NotAcknowledged)


async def _channel(connection: Any) -> Any:  # noqa: ANN401
    return await _called(lambda done: connection.channel(on_open_callback=done))


async def _called(ask: Callable[[Callable[[Any], None]], object]) -> Any:  # noqa: ANN401
    """The answer to a question that takes a function to call with it."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(answer.set_result)
    async with asyncio.timeout(ANSWER_SECONDS):
        return await answer
