"""NATS JetStream's publishing client, built on nats-py: many messages wait for their acknowledgement at a time.

It does what `JetStreamContext.publish_async` does with less work for each message, so that the comparison is not one of
clients. Batches are those of ADR-50: a server from 2.12 on stores all messages of one or none, and acknowledges the last.
"""

from __future__ import annotations

import asyncio
from itertools import count as numbers
from itertools import islice
from typing import Any

import msgspec

from parley.bench.peers.publishing import (
    Job,
    NotAcknowledged,
    batches,
    eventually,
    library,
    payloads,
    publish_lists,
)

REPLICAS = 3
ACK_SECONDS = 60.0


class Ack(msgspec.Struct):
    """What a server answers; it has either a place in the stream or an error."""

    seq: int = 0
    count: int = 0  # messages of a batch
    error: dict[str, Any] | None = None


class NatsPublisher:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = payloads(job.size)
        self._acks = msgspec.json.Decoder(Ack)
        self._connection: Any = None
        self._names = numbers(1)  # of batches

    async def prepare(self) -> None:
        """Connect to the leader of the stream, which saves its messages a way."""
        nats = library("nats")
        seeking = await eventually(self._connect_to_any, OSError, nats.errors.Error)
        leader = await eventually(lambda: make_stream(seeking, self._job), nats.errors.Error, NotAcknowledged)
        await seeking.close()
        for server in self._job.servers:
            self._connection = await nats.connect(f"nats://{server}", allow_reconnect=False)
            if self._connection._server_info.get("server_name") == leader:  # noqa: SLF001 - said nowhere else
                return
            await self._connection.close()
        raise NotAcknowledged(f"The leader {leader} of the stream is none of the servers.")

    async def publish(self, count: int) -> None:
        if self._job.batch:
            lists = batches(self._values, count, self._job.batch)
            await publish_lists(lists, self._publish_batch, self._job.in_flight)
        else:
            await self._publish_one_by_one(count)

    async def close(self) -> None:
        await self._connection.close()

    async def _connect_to_any(self) -> Any:  # noqa: ANN401
        servers = [f"nats://{server}" for server in self._job.servers]
        return await library("nats").connect(servers, allow_reconnect=False)

    async def _publish_one_by_one(self, count: int) -> None:
        room, settled = asyncio.Semaphore(self._job.in_flight), asyncio.get_running_loop().create_future()
        left = count

        async def acknowledged(message: Any) -> None:  # noqa: ANN401
            nonlocal left
            left -= 1
            room.release()
            if not settled.done():
                if problem := self._problem(message.data, 0):
                    settled.set_exception(problem)
                elif not left:
                    settled.set_result(None)

        publish, inbox = self._connection.publish, self._connection.new_inbox()
        listening = await self._connection.subscribe(f"{inbox}.*", cb=acknowledged, pending_msgs_limit=-1)
        for number, value in enumerate(islice(self._values, count)):
            await room.acquire()
            await publish(self._job.target, value, reply=f"{inbox}.{number}")
        async with asyncio.timeout(ACK_SECONDS):
            await settled
        await listening.unsubscribe()

    async def _publish_batch(self, values: list[bytes]) -> None:
        publish, target, name = self._connection.publish, self._job.target, str(next(self._names))
        for number, value in enumerate(values[:-1], 1):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
            await publish(target, value, headers=headers)
        last = {
            "Nats-Batch-Id": name,
            "Nats-Batch-Sequence": str(len(values)),
            "Nats-Batch-Commit": "1",
        }
        answer = await self._connection.request(target, values[-1], timeout=ACK_SECONDS, headers=last)
        if problem := self._problem(answer.data, len(values)):
            raise problem

    def _problem(self, data: bytes, expected: int) -> NotAcknowledged | None:
        """`expected`: messages that a batch has; 0 for a single message."""
        ack = self._acks.decode(data)
        if ack.error is not None or not ack.seq or ack.count != expected:
            return NotAcknowledged(f"NATS answered {data.decode(errors='replace')}.")
        return None


async def make_stream(connection: Any, job: Job) -> str:  # noqa: ANN401
    """If it is not there yet. Its leader, when all replicas are up to date."""
    api = library("nats.js.api")
    config = api.StreamConfig(
        name=job.target,
        subjects=[job.target],
        num_replicas=REPLICAS,
        storage=api.StorageType.FILE,
        allow_atomic=True if job.batch else None,
    )
    stream = connection.jetstream()
    await stream.add_stream(config)  # changes nothing if it is there
    cluster = (await stream.stream_info(job.target)).cluster
    current = [one for one in cluster.replicas or [] if one.current]
    if not cluster.leader or len(current) < REPLICAS - 1:
        raise NotAcknowledged(f"The stream has {len(current)} replicas besides its leader {cluster.leader}.")
    return str(cluster.leader)
