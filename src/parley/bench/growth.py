"""`bench growth`: CPU time per publication against everything that may grow, one dimension at a time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from parley.bench.fanout import subscriber_jobs
from parley.bench.figures import run_of, spread
from parley.bench.jobs import Job
from parley.bench.measure import TOPIC, enough_in_flight, measure, publisher_jobs, running_network
from parley.bench.network import Network
from parley.client import Client, connect

BROKERS = 4
SIZE = 128
BATCH = 100
SMALL_BATCH = 10  # messages, so that the largest of them fit into a batch
READER_PROCESSES = 2
READER_IN_FLIGHT = 8
TAGS = {"kind": "wanted", "place": "here"}
AT_ONCE = 64

# Where a dimension is measured, one place after the other: how far it has grown, the network, and the load.
Places = AsyncGenerator[tuple[int, Network, Sequence[tuple[str, Job]]], None]


class Point(Struct):
    """What a publication costs at one place of a dimension; the shares of brokers, publishers and readers add up."""

    x: int
    cpu_us_per_publication: float
    cpu_us_brokers: float
    cpu_us_publishers: float
    cpu_us_readers: float
    publications_per_s: float
    p50_ms: float
    rss_mb: float
    spread: float


class Growth(Struct):
    """One dimension. The line is cpu = fixed + slope * x, or 1/x where `inverse`, by least squares."""

    dimension: str
    label: str
    constant: dict[str, int]
    points: list[Point]
    fixed: float
    slope: float
    inverse: bool


@dataclass
class Bench:
    """How long each point takes, and where."""

    home: Path
    seconds: float
    warm_up: float
    runs: int
    advance: Callable[[], None]
    keep: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def network(self, name: str, brokers: int = BROKERS) -> AbstractAsyncContextManager[Network]:
        return running_network(self.home / name, brokers, self.settings, keep=self.keep)

    async def point(self, x: int, network: Network, jobs: Sequence[tuple[str, Job]]) -> Point:
        """The run in the middle by cost."""
        found = [await measure(network, jobs, self.seconds, warm_up=self.warm_up) for _ in range(self.runs)]
        self.advance()
        runs = sorted(((run_of(one), one) for one in found), key=lambda pair: pair[0].cpu_us_per_publication)
        run, readings = runs[(len(runs) - 1) // 2]
        readers = sum(us for name, us in readings.worker_cpu.items() if name.startswith("subscribers"))
        reading = round(readers / max(run.publications, 1), 2)
        return Point(
            x=x,
            cpu_us_per_publication=run.cpu_us_per_publication,
            cpu_us_brokers=run.cpu_us_brokers,
            cpu_us_publishers=round(run.cpu_us_client - reading, 2),
            cpu_us_readers=reading,
            publications_per_s=run.publications_per_s,
            p50_ms=run.p50_ms,
            rss_mb=run.rss_mb,
            spread=spread([one.cpu_us_per_publication for one, _ in runs]),
        )


# -- the dimensions --------------------------------------------------------------------------------------------------


async def _brokers(bench: Bench, values: Sequence[int]) -> Places:
    for count in values:
        async with bench.network(f"brokers-{count}", count) as network:
            yield count, network, _jobs(network, await network.register("load", 1))


async def _size(bench: Bench, values: Sequence[int]) -> Places:
    async with bench.network("size") as network:
        who = await network.register("load", 1)
        for size in values:
            yield size, network, _jobs(network, who, size=size, batch=SMALL_BATCH)


async def _batch(bench: Bench, values: Sequence[int]) -> Places:
    async with bench.network("batch") as network:
        who = await network.register("load", 1)
        for batch in values:
            yield batch, network, _jobs(network, who, batch=batch)


async def _subscribers(bench: Bench, values: Sequence[int]) -> Places:
    async with bench.network("subscribers") as network:
        who = await network.register("load", 1)
        readers = await network.register("reader", max(values))
        for count in values:
            progress, reading = (
                subscriber_jobs(network, readers[:count], READER_PROCESSES) if count else (None, [])
            )
            publishing = _jobs(network, who, in_flight=READER_IN_FLIGHT, progress=progress)
            yield count, network, [*publishing, *reading]


async def _subscriptions(bench: Bench, values: Sequence[int]) -> Places:
    """Of other people, who want other things: nothing that is published matches any of them."""
    async with bench.network("subscriptions") as network:
        who = await network.register("load", 1)
        (reader,) = await network.register("reader", 1)
        async with connect(genesis=network.genesis, identity=reader) as client:
            there = 0
            for count in values:
                for start in range(there, count, AT_ONCE):
                    numbers = range(start, min(start + AT_ONCE, count))
                    await asyncio.gather(*(_interested(client, number) for number in numbers))
                there = count
                yield count, network, _jobs(network, who, tags=TAGS)


async def _interested(client: Client, number: int) -> None:
    """A subscription that stays for as long as its lease, without anybody who reads it."""
    async with client.subscribe(TOPIC, f'kind == "other-{number}"', keep=True):
        pass


async def _topics(bench: Bench, values: Sequence[int]) -> Places:
    async with bench.network("topics") as network:
        who = await network.register("load", 1)
        topics = [f"bench-{number}" for number in range(1, max(values) + 1)]
        await network.create_topics(topics)
        for count in values:
            yield count, network, _jobs(network, who, topics=topics[:count])


async def _ledger(bench: Bench, values: Sequence[int]) -> Places:
    """Window after window on one network; `values` say how many, and each is told by the blocks before it."""
    async with bench.network("ledger") as network:
        who = await network.register("load", 1)
        for _ in values:
            async with network.administrator() as client:
                height = client.height
            yield height, network, _jobs(network, who)


def _jobs(
    network: Network,
    who: Sequence[Path],
    *,
    size: int = SIZE,
    batch: int = BATCH,
    topics: Sequence[str] = (TOPIC,),
    in_flight: int | None = None,
    tags: dict[str, str] | None = None,
    progress: Path | None = None,
) -> list[tuple[str, Job]]:
    return publisher_jobs(
        network,
        who,
        topics=topics,
        size=size,
        batch=batch,
        in_flight=in_flight or enough_in_flight(size, batch),
        tags=tags,
        progress=progress,
    )


@dataclass(frozen=True)
class Dimension:
    """What grows, how far, and what stays as it is meanwhile."""

    label: str
    values: tuple[int, ...]
    places: Callable[[Bench, Sequence[int]], Places]
    constant: dict[str, int]
    logarithmic: bool = False
    inverse: bool = False  # the cost is shared by x


_USUAL = {"brokers": BROKERS, "size": SIZE, "batch": BATCH}

DIMENSIONS = {
    "brokers": Dimension("brokers", (4, 7, 10, 16), _brokers, {"size": SIZE, "batch": BATCH}),
    "size": Dimension(
        "bytes of a message",
        (16, 128, 1_024, 8_192, 65_536),
        _size,
        {"brokers": BROKERS, "batch": SMALL_BATCH},
        logarithmic=True,
    ),
    "batch": Dimension(
        "messages in a batch",
        (1, 10, 100, 1_000),
        _batch,
        {"brokers": BROKERS, "size": SIZE},
        logarithmic=True,
        inverse=True,
    ),
    "subscribers": Dimension("subscribers", (0, 1, 4, 16, 64), _subscribers, _USUAL),
    "subscriptions": Dimension(
        "subscriptions that do not match", (0, 10, 100, 1_000), _subscriptions, _USUAL
    ),
    "topics": Dimension("topics", (1, 10, 100), _topics, _USUAL, logarithmic=True),
    "ledger": Dimension("blocks in the ledger", (1, 2, 3, 4, 5, 6), _ledger, _USUAL),
}


async def dimension(bench: Bench, name: str) -> Growth:
    what = DIMENSIONS[name]
    async with aclosing(what.places(bench, what.values)) as places:
        points = [await bench.point(*place) async for place in places]
    slope, fixed = statistics.linear_regression(
        [1 / point.x if what.inverse else point.x for point in points],
        [point.cpu_us_per_publication for point in points],
    )
    return Growth(name, what.label, what.constant, points, round(fixed, 3), round(slope, 6), what.inverse)
