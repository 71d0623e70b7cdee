"""One measurement: load processes at a running network, time to warm up, and a window with readings at both ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.bench.errors import Unavailable
from parley.bench.figures import Readings
from parley.bench.jobs import Job, Window
from parley.bench.network import Network, Settings
from parley.bench.watch import view_changes
from parley.bench.workers import Crew

TOPIC = "bench"
IN_FLIGHT = 16_000  # messages: enough to keep every broker busy; in batches, within
FEWEST, MOST = 4, 480
IN_FLIGHT_BYTES = 8 * 1024 * 1024
WARM_UP = 2.0  # seconds


@dataclass(frozen=True)
class NetworkPlan:
    """What the plans of most measurements have in common."""

    brokers: int = 4
    size: int = 128  # bytes of a message
    settings: dict[str, Any] = field(default_factory=dict)  # of the brokers


# What else is done during a window; it ends with whatever comes later.
Meanwhile = Callable[[Crew], Awaitable[None]]


@asynccontextmanager
async def running_network(
    directory: Path, brokers: int, settings: Settings, *, keep: bool, preset: str = "bps"
) -> AsyncIterator[Network]:
    """A network with the topic to publish to; what it leaves on the disk is removed if it is not to be kept."""
    network = Network(directory, brokers, settings)
    try:
        async with network.running():
            await network.create_topics([TOPIC], preset)
            yield network
    finally:
        if not keep:
            network.remove()


async def measure(
    network: Network,
    jobs: Sequence[tuple[str, Job]],
    seconds: float,
    *,
    warm_up: float = WARM_UP,
    meanwhile: Meanwhile | None = None,
) -> Readings:
    """Start the load, wait until it has warmed up, and read what it does and costs for so many seconds."""
    async with Crew(network.directory, jobs).running() as crew, network.watched() as watch:
        await crew.go()
        await asyncio.sleep(warm_up)
        views = await watch.ask()
        begin, brokers, workers = time.monotonic(), network.usage(), crew.usage()
        end = begin + seconds
        if meanwhile is not None:
            await meanwhile(crew)
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        end, brokers_after, workers_after = time.monotonic(), network.usage(), crew.usage()
        changes = view_changes(views, await watch.ask())
        reports = await crew.reports(Window(begin, end))
    if not any(report.publications for report in reports):
        problem = next((report.problem for report in reports if report.problem), "")
        raise Unavailable(
            f"Nothing was acknowledged within {seconds:g} s{f': {problem}' if problem else ''}. Give it more --seconds, or "
            "look into the brokers' logs with --dir."
        )
    return Readings(end - begin, (brokers, brokers_after), (workers, workers_after), reports, changes)


def enough_in_flight(size: int, batch: int) -> int:
    """Batches of which the network is full: more of them would only wait longer."""
    return max(FEWEST, min(MOST, IN_FLIGHT // batch, IN_FLIGHT_BYTES // (size * batch)))


def publisher_jobs(
    network: Network,
    identities: Sequence[Path],
    *,
    topics: Sequence[str] = (TOPIC,),
    size: int,
    batch: int,
    in_flight: int,
    rate: float = 0.0,
    tags: dict[str, str] | None = None,
    progress: Path | None = None,
) -> list[tuple[str, Job]]:
    """A process for each identity; they share what is to be in flight and the rate evenly."""
    return [
        (
            f"client-{number}",
            Job(
                role="publish",
                genesis=str(network.directory / "genesis.json"),
                identities=[str(path)],
                topics=list(topics),
                size=size,
                batch=batch,
                in_flight=max(1, in_flight // len(identities)),
                rate=rate / len(identities),
                tags=tags or {},
                progress="" if progress is None else str(progress),
            ),
        )
        for number, path in enumerate(identities, 1)
    ]
