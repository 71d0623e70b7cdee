"""What tests of the source share: a topic with publications, the options that name a network, and what was read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition
from tests.node.network import SECONDS, LocalNetwork

import parley
from parley.model.names import Value
from parley.node.admin.client import set_faults
from parley.node.provision import identity_path
from parley.spark.options import read_options
from parley.spark.source import ParleyBatchReader, ParleyStreamReader

__all__ = ["Row", "admin", "batch_rows", "lying", "options", "publish", "rows_of", "stream", "topic"]

LIAR = "alpha-1"

Row = dict[str, Any]


def admin(
    network: LocalNetwork, work: Callable[[parley.Client], Awaitable[object]], organisation: str = "alpha"
) -> None:
    """Have an administrator do something; brokers that have just been started are waited for."""

    async def story() -> None:
        identity = identity_path(network.directory, organisation, "admin")
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    async with parley.connect(
                        directory=network.directory, identity=identity, timeout=SECONDS
                    ) as client:
                        await work(client)
                        return
                except parley.Unreachable:
                    assert all(map(network.is_running, network.names)), "a broker did not start"
                    await asyncio.sleep(0.1)

    asyncio.run(story())


def topic(network: LocalNetwork, name: str, *, partitions: int = 2, **more: Any) -> str:  # noqa: ANN401
    """A new topic; alice and bob are registered by whoever comes first, bob as a nurse."""

    async def work(client: parley.Client) -> None:
        attributes: Mapping[str, Mapping[str, Value]] = {"alice": {}, "bob": {"role": "nurse"}}
        for who, had in attributes.items():
            identity = network.identity("alpha", who)
            with suppress(parley.ClientExists):
                await client.register_client(who, identity.credential.key, had, proof=identity.proof())
        await client.create_topic(name, partitions=partitions, **more)

    admin(network, work)
    return name


def publish(
    network: LocalNetwork,
    name: str,
    texts: Iterable[str],
    *,
    partition: int = 0,
    **more: Any,  # noqa: ANN401
) -> None:
    """All of them, in one batch if they come quickly."""

    async def story() -> None:
        identity = identity_path(network.directory, "alpha", "alice")
        async with (
            asyncio.timeout(SECONDS),
            parley.connect(directory=network.directory, identity=identity, timeout=SECONDS) as client,
            client.publisher(name) as publisher,
        ):
            for text in texts:
                await publisher.send(text, partition=partition, **more)

    asyncio.run(story())


def options(network: LocalNetwork, who: str = "alice", **more: str) -> dict[str, str]:
    """As a job gives them."""
    identity = identity_path(network.directory, "alpha", who)
    return {"directory": str(network.directory), "identity": str(identity), "timeout": "30", **more}


def stream(network: LocalNetwork, who: str = "alice", **more: str) -> ParleyStreamReader:
    """As Spark's driver has it."""
    return ParleyStreamReader(read_options(options(network, who, **more), stream=True))


def batch_rows(network: LocalNetwork, who: str = "alice", **more: str) -> list[Row]:
    reader = ParleyBatchReader(read_options(options(network, who, **more), stream=False))
    return rows_of(reader, reader.partitions())


def rows_of(reader: DataSourceReader | ParleyStreamReader, pieces: Sequence[InputPartition]) -> list[Row]:
    """As executors would read them: from pickles, and nothing but these."""
    found: list[Row] = []
    for piece in pieces:
        reads, part = cloudpickle.loads(cloudpickle.dumps((reader, piece)))  # type: ignore[no-untyped-call]
        for batch in reads.read(part):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@contextmanager
def lying(network: LocalNetwork, *faults: str) -> Iterator[None]:
    """One broker lies from here to the end of the block."""
    _switch(network, faults)
    try:
        yield
    finally:
        _switch(network, ())


def _switch(network: LocalNetwork, faults: tuple[str, ...]) -> None:
    set_faults(network.config(LIAR).parent, faults)
