"""Kafka's publishing client, which is librdkafka: it gathers batches by itself, in threads of its own."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from parley.bench.peers.publishing import Job, NotAcknowledged, eventually, library, payloads

REPLICAS = 3
ASK_SECONDS = 10.0
ACK_SECONDS = 120.0
SERVE_EVERY = 100  # messages, between looks at what was acknowledged


class KafkaPublisher:
    """Idempotent, and acknowledged by all replicas that are in sync, of which there are at least two."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = payloads(job.size)
        self._producer: Any = None
        self._acknowledged = 0
        self._problem = ""

    async def prepare(self) -> None:
        kafka = library("confluent_kafka")
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(self._job.servers),
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 3,  # problems only
        }
        admin = library("confluent_kafka.admin").AdminClient(
            {"bootstrap.servers": settings["bootstrap.servers"], "log_level": 0}  # servers that start refuse
        )
        await eventually(lambda: make_topic(admin, self._job), kafka.KafkaException, NotAcknowledged)
        if self._job.batch:
            settings["batch.num.messages"] = self._job.batch
        self._producer = kafka.Producer(settings)

    async def publish(self, count: int) -> None:
        """Blocks: the client has threads of its own, and this process does nothing else."""
        self._acknowledged = 0
        produce, serve, target = self._producer.produce, self._producer.poll, self._job.target
        for number, value in enumerate(islice(self._values, count)):
            while True:
                try:
                    produce(target, value, on_delivery=self._settled)
                    break
                except BufferError:  # as many wait as the client takes
                    serve(0.1)
            if number % SERVE_EVERY == 0:
                serve(0)
        self._producer.flush(ACK_SECONDS)
        if self._problem or self._acknowledged != count:
            raise NotAcknowledged(
                f"{self._acknowledged} of {count} messages were acknowledged. {self._problem}".strip()
            )

    async def close(self) -> None:
        self._producer.flush(0)

    def _settled(self, error: object, message: object) -> None:  # noqa: ARG002 - what the client calls
        if error is None:
            self._acknowledged += 1
        else:
            self._problem = self._problem or f"Kafka said: {error}."


async def make_topic(admin: Any, job: Job) -> int:  # noqa: ANN401
    """If it is not there yet. The number of the broker that leads it, when all replicas are in sync."""
    kafka = library("confluent_kafka")
    config = {"min.insync.replicas": "2"} | ({"flush.messages": "1"} if job.synced else {})
    topic = library("confluent_kafka.admin").NewTopic(
        job.target, num_partitions=1, replication_factor=REPLICAS, config=config
    )
    made = admin.create_topics([topic], request_timeout=ASK_SECONDS)[job.target]
    try:
        await asyncio.to_thread(made.result)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    found = await asyncio.to_thread(admin.list_topics, job.target, ASK_SECONDS)
    partition = found.topics[job.target].partitions.get(0)
    if partition is None or partition.leader < 0 or len(partition.isrs) < REPLICAS:
        raise NotAcknowledged(f"The topic {job.target} has not yet all its replicas in sync.")
    return int(partition.leader)
