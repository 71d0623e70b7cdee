"""`bench memory`: whether brokers under steady load grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import Struct

from parley.bench.figures import MB, Case, Readings
from parley.bench.measure import NetworkPlan, enough_in_flight, measure, publisher_jobs, running_network
from parley.bench.network import Network
from parley.bench.workers import Crew

GOAL = 1.1  # at the end, as a multiple of what it was earlier
EARLY = 0.4  # of the time: minute 2 of 5
SAMPLES = 60  # over the whole time


@dataclass(frozen=True)
class Plan(NetworkPlan):
    minutes: float = 5.0
    rate_share: float = 0.5
    peak_seconds: float = 10.0
    batch: int = 100


class Sample(Struct):
    seconds: float
    rss_mb: dict[str, float]


class Result(Struct):
    """What `bench memory` prints: a case for each broker, whose baseline is its size at `early_seconds`."""

    results: list[Case]
    largest_ratio: float
    goal: float
    peak_publications_per_s: float
    publications_per_s: float
    wanted_publications_per_s: float
    early_seconds: float
    seconds: float
    samples: list[Sample]


async def grow(home: Path, plan: Plan, advance: Callable[[int], None], *, keep: bool = False) -> Result:
    """Find the peak with one network, then load another one with a share of it. `advance` is told of each sample."""
    peak = _rate(await _run(home / "peak", plan, plan.peak_seconds, 0.0, keep=keep))
    advance(1)
    samples: list[Sample] = []
    rate, seconds = plan.rate_share * peak, plan.minutes * 60
    watch = partial(_sample, seconds, samples, advance)
    steady = await _run(home / "steady", plan, seconds, rate, watch, keep=keep)
    early = min(samples, key=lambda sample: abs(sample.seconds - EARLY * seconds))
    cases = [
        Case(name, mb, "MB", early.rss_mb[name], round(mb / early.rss_mb[name], 3), 0.0)
        for name, mb in samples[-1].rss_mb.items()
    ]
    return Result(
        results=cases,
        largest_ratio=max(one.ratio or 0.0 for one in cases),
        goal=GOAL,
        peak_publications_per_s=peak,
        publications_per_s=_rate(steady),
        wanted_publications_per_s=round(rate, 1),
        early_seconds=early.seconds,
        seconds=samples[-1].seconds,
        samples=samples,
    )


async def _run(
    home: Path,
    plan: Plan,
    seconds: float,
    rate: float,
    watch: Callable[[Network, Crew], Awaitable[None]] | None = None,
    *,
    keep: bool,
) -> Readings:
    async with running_network(home, plan.brokers, plan.settings, keep=keep) as network:
        jobs = publisher_jobs(
            network,
            await network.register("load", 1),
            size=plan.size,
            batch=plan.batch,
            in_flight=enough_in_flight(plan.size, plan.batch),
            rate=rate,
        )
        return await measure(
            network, jobs, seconds, meanwhile=None if watch is None else partial(watch, network)
        )


async def _sample(
    seconds: float, samples: list[Sample], advance: Callable[[int], None], network: Network, _crew: Crew
) -> None:
    begin = time.monotonic()
    for number in range(1, SAMPLES + 1):
        await asyncio.sleep(max(0.0, begin + number * seconds / SAMPLES - time.monotonic()))
        held = {name: round(one.rss / MB, 1) for name, one in network.usage().items()}
        samples.append(Sample(round(time.monotonic() - begin, 1), held))
        advance(1)


def _rate(readings: Readings) -> float:
    return round(sum(report.publications for report in readings.reports) / readings.seconds, 1)
