"""Leaders of NATS JetStream and Kafka, killed in the same way while the same load goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from parley.bench.errors import Unavailable
from parley.bench.failover.gaps import (
    LEADER,
    NO_FAULT,
    FailoverCase,
    Fault,
    Round,
    gap_on_return,
    longest_gap,
    summaries,
)
from parley.bench.failover.kafka_load import KafkaTarget
from parley.bench.failover.nats_load import NatsTarget
from parley.bench.failover.plan import SETTLE_SECONDS, Plan
from parley.bench.peers.kafka import Kafka
from parley.bench.peers.nats import Nats
from parley.bench.peers.needs import Need
from parley.bench.peers.publishing import Job, SystemName
from parley.bench.peers.servers import Servers

TARGET = "failover"
Receipts = Mapping[
    str, list[float]
]  # when they came, by the server of the client; of no server: an empty name


class Cluster(Protocol):
    """Servers that run; the name of each begins with that of the system."""

    name: SystemName
    needs: tuple[Need, ...]

    def version(self) -> str: ...

    def cluster(self, directory: Path) -> AbstractAsyncContextManager[tuple[Servers, list[str]]]: ...


class Target(Protocol):
    """A stream or topic with three replicas."""

    async def leader(self) -> str:
        """The server that leads it, when all replicas are up to date. Raises `Unavailable` if that takes too long."""

    def publishing(self, rate: float) -> AbstractAsyncContextManager[Receipts]:
        """Clients that publish so often a second each. What they note is complete when the context ends."""


# Both write to the disk before they acknowledge, as Parley does.
PEERS: Mapping[str, Callable[[], Cluster]] = {"nats": lambda: Nats(synced=True), "kafka": Kafka}
TARGETS: Mapping[str, Callable[[Job], Target]] = {"nats": NatsTarget, "kafka": KafkaTarget}


async def play_peer(
    system: Cluster, directory: Path, plan: Plan, advance: Callable[[], None]
) -> list[FailoverCase]:
    """Rounds without a fault, and rounds in which the leader is killed."""
    played: dict[str, list[Round]] = {NO_FAULT: [], f"{Fault.KILL} {LEADER}": []}
    async with system.cluster(directory) as (servers, addresses):
        job = Job(
            system=system.name,
            servers=addresses,
            target=TARGET,
            size=plan.size,
            messages=0,
            warm_up=0,
            synced=True,
        )
        target = TARGETS[system.name](job)
        for name, rounds in played.items():
            for _ in range(plan.rounds):
                rounds.append(await _play(servers, target, plan, kills=name != NO_FAULT))
                advance()
    return summaries(f"{system.name}: ", played)


async def _play(servers: Servers, target: Target, plan: Plan, *, kills: bool) -> Round:
    await _leader(servers, target)
    async with target.publishing(plan.rate) as receipts:
        await asyncio.sleep(plan.warm_up)
        leader = await _leader(servers, target)
        begin = time.monotonic()
        if kills:
            servers.kill(leader)
        await asyncio.sleep(begin + plan.seconds - time.monotonic())
        end = time.monotonic()
        if kills:
            servers.restart(leader)
            await _leader(servers, target)
        await asyncio.sleep(SETTLE_SECONDS)
        back = time.monotonic()
    others = [times for server, times in receipts.items() if not kills or server != leader]
    if not all(others):
        raise Unavailable("Nothing was acknowledged to one of the clients.")
    return Round(
        victim=leader if kills else "",
        gap=max(longest_gap(times, begin, end, back) for times in others),
        own_client=None,
        on_return=max(gap_on_return(times, end, back) for times in others) if kills else None,
        failed_views=None,
    )


async def _leader(servers: Servers, target: Target) -> str:
    try:
        return await target.leader()
    except Unavailable:
        servers.require_running()  # says which one has ended, if one has
        raise
