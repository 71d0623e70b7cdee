"""A topic of Kafka under a steady load from one client: it always speaks to the broker that leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from parley.bench.errors import Unavailable
from parley.bench.failover.pace import steadily
from parley.bench.failover.plan import IN_FLIGHT
from parley.bench.peers.kafka_client import make_topic
from parley.bench.peers.publishing import Job, NotAcknowledged, eventually, library, payloads

LOOKS = 200.0  # a second, at what was acknowledged


class KafkaTarget:
    def __init__(self, job: Job) -> None:
        self._job = job
        # Without a log: brokers that start refuse connections, and others are killed.
        self._settings: dict[str, Any] = {"bootstrap.servers": ",".join(job.servers), "log_level": 0}
        self._admin = library("confluent_kafka.admin").AdminClient(self._settings)

    async def leader(self) -> str:
        kafka = library("confluent_kafka")
        try:
            number = await eventually(
                lambda: make_topic(self._admin, self._job), kafka.KafkaException, NotAcknowledged
            )
        except (kafka.KafkaException, NotAcknowledged) as error:
            raise Unavailable(f"Kafka did not get all its replicas in sync: {error}.") from error
        return f"kafka-{number}"

    @asynccontextmanager
    async def publishing(self, rate: float) -> AsyncIterator[Mapping[str, list[float]]]:
        """The client finds a new leader, and sends again what the old one did not acknowledge, by itself."""
        producer = library("confluent_kafka").Producer(
            self._settings | {"acks": "all", "enable.idempotence": True}
        )
        values, times = payloads(self._job.size), list[float]()

        def settled(error: object, message: object) -> None:  # noqa: ARG001 - what the client calls
            if error is None:
                times.append(time.monotonic())

        def publish() -> None:
            if len(producer) < IN_FLIGHT:
                producer.produce(self._job.target, next(values), on_delivery=settled)

        async with steadily(rate, publish), steadily(LOOKS, lambda: producer.poll(0)):
            yield {"": times}
        producer.purge()
        await asyncio.to_thread(producer.flush, 1.0)
