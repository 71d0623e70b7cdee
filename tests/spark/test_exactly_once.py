"""Exactly once: driver, executors and brokers are killed while batches are under way, and every publication is there once.

From a topic to a Delta table, and from a topic to a topic, over an upstream that gives other rows at every attempt (P23).
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterable
from itertools import count, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.node.network import LocalNetwork
from tests.spark.exactly_once_job import Job, work
from tests.spark.killing import Running, last_noted, spark_home, until
from tests.spark.sinks import client, create_topic, held, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = bool(os.environ.get("PARLEY_LONG"))
ROUNDS = 5 if LONG else 1  # in each of which the executors, a broker and then the driver are killed
BATCHES = 6  # that a round has at its disposal: it takes three, and those during which nobody is killed
ROWS = 40  # of a batch
SCRIPT = Path(__file__).with_name("exactly_once_job.py")
EXECUTORS = 2 if LONG else 1
CLUSTER = f"local-cluster[{EXECUTORS},{2 // EXECUTORS},1024]"

Copy = tuple[
    tuple[int, int], int, int
]  # where the original stands: partition and offset; of how many, which one


def publish(network: LocalNetwork, topic: str, number: int) -> None:
    async def story() -> None:
        async with client(network, "alice") as alice, alice.publisher(topic, batch_size=50) as publisher:
            for at in range(number):
                await publisher.send(f"publication-{at}", key=f"key {at}")

    asyncio.run(story())


def await_broker(network: LocalNetwork, name: str) -> None:
    """Until it has what the others have, so that another one may fail."""

    async def is_ready() -> bool:
        async with client(network, "alice") as alice:
            said = {one.name: one.status for one in await alice.status()}
        found = said[name]
        return found is not None and found.state == "ready"

    until(lambda: asyncio.run(is_ready()), f"{name} has caught up")


def require_once(copies: Iterable[Copy], originals: set[tuple[int, int]]) -> None:
    """Every publication, in all the copies that one attempt made of it, each of them once."""
    found: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for original, several, copy in copies:
        found[original].append((several, copy))
    assert found.keys() == originals
    for original, kept in found.items():
        several = kept[0][0]
        assert sorted(kept) == [(several, copy) for copy in range(1, several + 1)], f"{original}: {kept}"


def in_table(path: str) -> list[Copy]:
    columns = ["partition", "offset", "copies", "copy"]
    found: list[Copy] = []
    for uri in DeltaTable(path).file_uris():
        rows = pq.read_table(uri, columns=columns).to_pydict()
        found += [
            ((partition, offset), copies, copy)
            for partition, offset, copies, copy in zip(*(rows[name] for name in columns), strict=True)
        ]
    return found


def in_topic(network: LocalNetwork, topic: str) -> list[Copy]:
    published = held(network, topic)
    ends: defaultdict[int, count[int]] = defaultdict(count)
    found: list[Copy] = []
    for one in published:
        assert one.offset == next(ends[one.partition]), "offsets follow each other without a gap"
        name, partition, offset, copies, copy = one.text.split()
        assert one.key == name.encode()
        found.append(((int(partition), int(offset)), int(copies), int(copy)))
    return found


def is_under_way(checkpoint: str, batch: int) -> bool:
    """Whether a batch was planned, this one or a later, and Spark has not noted the end of it."""
    planned = last_noted(checkpoint, "offsets")
    return planned >= batch and last_noted(checkpoint, "commits") < planned


def kill_all(network: LocalNetwork, job: Job, running: Running, broker: str) -> None:
    """The executors, a broker and at last the driver, each while a batch is under way."""
    table, sink = job.folders
    first = last_noted(sink, "commits") + 1

    def under_way(batch: int) -> bool:
        return is_under_way(table, 0) and is_under_way(sink, batch)

    running.until(lambda: under_way(first) and len(running.executors()) == EXECUTORS, "a first batch")
    killed = running.kill_executors()
    running.until(lambda: last_noted(sink, "commits") >= first, "the batch ends with other executors")
    assert not set(killed) & set(running.executors())
    running.until(lambda: under_way(first + 1), "a second batch")
    network.kill(broker)
    running.until(lambda: last_noted(sink, "commits") >= first + 1, "the batch ends without the broker")
    running.until(lambda: under_way(first + 2), "a third batch")
    running.kill()


def test_every_publication_is_there_once_whoever_was_killed(
    spark: SparkSession, network: LocalNetwork, tmp_path: Path
) -> None:
    source, sink = create_topic(network, "once/source"), create_topic(network, "once/sink")
    publish(network, source, ROUNDS * BATCHES * ROWS)
    originals = {(one.partition, one.offset) for one in held(network, source)}
    assert len(originals) == ROUNDS * BATCHES * ROWS
    job = Job(CLUSTER, options(network), source, sink, str(tmp_path / "table"), str(tmp_path / "notes"), ROWS)
    home, log = spark_home(tmp_path / "spark"), tmp_path / "job.log"
    for broker in islice(cycle(network.names), ROUNDS):
        with Running(SCRIPT, msgspec.json.encode(job).decode(), log, home) as running:
            kill_all(network, job, running, broker)
        network.start(broker)
        await_broker(network, broker)
    work(spark, job)  # by another driver, with what the killed ones left
    require_once(in_table(job.table), originals)
    require_once(in_topic(network, sink), originals)
