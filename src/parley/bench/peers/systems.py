"""What can be compared: the interface of a system, and Parley itself as one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import parley
from parley.bench.network import Network
from parley.bench.peers.needs import Need
from parley.bench.peers.publishing import Job, SystemName
from parley.bench.usage import Usage

BATCH = 100  # messages, where clients hand over batches
BROKERS = 4
BATCHES_IN_FLIGHT = 160


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to publish to a system that runs."""

    name: str
    batch: int = 0
    in_flight: int = 0
    synced: bool = False  # asked for where it is a property of a topic

    def job(self, system: SystemName, servers: list[str], size: int, identity: str = "") -> Job:
        return Job(
            system=system,
            servers=servers,
            target=f"{self.name}-{size}",
            size=size,
            messages=0,
            warm_up=0,
            batch=self.batch,
            in_flight=self.in_flight,
            synced=self.synced,
            identity=identity,
        )


@dataclass(frozen=True, slots=True)
class Running:
    """Servers that were started; they may not be ready yet, which a client finds out by asking."""

    usage: Callable[[], Mapping[str, Usage]]
    job: Callable[[Variant, int], Job]  # for a size; it lacks the numbers of messages


class System(Protocol):
    name: SystemName
    variants: tuple[Variant, ...]
    needs: tuple[Need, ...]

    def version(self) -> str:
        """Of the servers and of the client."""

    def running(self, directory: Path, sizes: tuple[int, ...]) -> AbstractAsyncContextManager[Running]:
        """Servers on free ports of the loopback interface, with all they write in this folder."""


class Parley:
    """Brokers with TLS, which check every signature; a batch is acknowledged when its receipt is certified."""

    name: SystemName = "parley"
    variants: tuple[Variant, ...] = (Variant("parley", batch=BATCH, in_flight=BATCHES_IN_FLIGHT),)
    needs: tuple[Need, ...] = ()

    def version(self) -> str:
        return f"parley {parley.__version__}"

    @asynccontextmanager
    async def running(self, directory: Path, sizes: tuple[int, ...]) -> AsyncIterator[Running]:
        async with Network(directory, BROKERS).running() as network:
            topics = [f"{variant.name}-{size}" for variant in self.variants for size in sizes]
            await network.create_topics(topics)
            (identity,) = map(str, await network.register("load", 1))
            genesis = str(directory / "genesis.json")
            yield Running(
                network.usage, lambda variant, size: variant.job(self.name, [genesis], size, identity)
            )
