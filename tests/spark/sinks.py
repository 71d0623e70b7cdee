"""What tests of the sink share: topics, the options that name a network, and what a topic holds in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from tests.node.network import SECONDS, LocalNetwork

import parley
from parley.node.provision import identity_path
from parley.spark.options import WriteOptions, write_options

__all__ = [
    "Held",
    "WriteOptions",
    "add_partitions",
    "create_topic",
    "held",
    "options",
    "rows",
    "texts",
    "topic_options",
]


@dataclass(frozen=True, slots=True)
class Held:
    """A publication, as a reader sees it."""

    partition: int
    offset: int
    text: str
    key: bytes | None


def client(network: LocalNetwork, name: str) -> parley.Client:
    path = identity_path(network.directory, "alpha", name)
    return parley.connect(directory=network.directory, identity=path, timeout=SECONDS)


def create_topic(network: LocalNetwork, name: str, *, partitions: int = 2, publish: str = "") -> str:
    """A new topic, to which alice may publish: she is registered by whoever comes first."""

    async def story() -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    async with client(network, "admin") as admin:
                        await _register(network, admin)
                        await admin.create_topic(name, partitions=partitions, publish=publish)
                        return
                except parley.Unreachable:
                    assert all(map(network.is_running, network.names)), "a broker did not start"
                    await asyncio.sleep(0.1)

    asyncio.run(story())
    return name


def add_partitions(network: LocalNetwork, topic: str, partitions: int) -> None:
    """Until all of them are there: a topic grows over some blocks."""

    async def story() -> None:
        async with asyncio.timeout(SECONDS), client(network, "admin") as admin:
            await admin.alter_topic(topic, partitions=partitions)
            while await admin.partitions(topic, fresh=True) < partitions:
                pass  # each look is a question of its own

    asyncio.run(story())


async def _register(network: LocalNetwork, admin: parley.Client) -> None:
    identity = network.identity("alpha", "alice")
    with suppress(parley.ClientExists):
        await admin.register_client("alice", identity.credential.key, proof=identity.proof())


def options(network: LocalNetwork, **more: str) -> dict[str, str]:
    """As a job gives them."""
    path = identity_path(network.directory, "alpha", "alice")
    return {"directory": str(network.directory), "identity": str(path), **more}


def topic_options(network: LocalNetwork, topic: str, **more: str) -> WriteOptions:
    return write_options(options(network, topic=topic, **more))


def rows(*values: str, **columns: Sequence[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values), **columns})


def held(network: LocalNetwork, topic: str) -> list[Held]:
    """All that was published there, by partition and offset."""

    async def story() -> list[Held]:
        async with asyncio.timeout(SECONDS), client(network, "alice") as reader:
            found: list[Held] = []
            for head in (await reader.topic(topic)).heads:
                messages = reader.fetch(topic, partition=head.partition, count=head.end - head.start)
                found += [Held(head.partition, one.offset, one.text(), one.key) async for one in messages]
            return found

    return asyncio.run(story())


def texts(network: LocalNetwork, topic: str) -> list[str]:
    return sorted(one.text for one in held(network, topic))
