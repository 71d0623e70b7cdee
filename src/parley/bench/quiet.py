"""`bench latency` and `bench idle`: what single publications and an idle network cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from parley.bench.figures import Case, case, percentile
from parley.bench.measure import NetworkPlan, measure, publisher_jobs, running_network
from parley.bench.network import Network
from parley.bench.usage import used

GOAL_MS = 25.0  # to the certified receipt, median
GOAL_PERCENT = 2.0  # of a core, each broker
SETTLE = 3.0  # seconds until brokers have nothing left to do
WARM_UP = 1.0


@dataclass(frozen=True)
class Plan(NetworkPlan):
    seconds: float = 20.0
    runs: int = 3
    rate: float = 10.0  # publications per second


class LatencyResult(Struct):
    """What `bench latency` prints; a median and a 99th percentile for each run."""

    results: list[Case]
    brokers: int
    size: int
    rate: float
    publications: int
    runs: list[tuple[float, float]]


class IdleResult(Struct):
    """What `bench idle` prints: the share of a core of each broker, and single publications a second apart."""

    results: list[Case]
    brokers: int
    seconds: float
    cpu_percent: dict[str, float]
    latencies_ms: list[float]


async def latency(
    home: Path, plan: Plan, advance: Callable[[], None], *, keep: bool = False
) -> LatencyResult:
    """One publication at a time, in a batch of its own, on a network that does nothing else."""
    runs, total = [], 0
    async with running_network(home / "network", plan.brokers, plan.settings, keep=keep) as network:
        identities = await network.register("load", 1)
        for _ in range(plan.runs):
            found = await _single(network, identities, plan)
            runs.append((percentile(found, 0.5) / 1e3, percentile(found, 0.99) / 1e3))
            total += len(found)
            advance()
    results = [
        case("median to the certified receipt", [run[0] for run in runs], "ms", GOAL_MS),
        case("99th percentile", [run[1] for run in runs], "ms", None),
    ]
    return LatencyResult(results, plan.brokers, plan.size, plan.rate, total, runs)


async def idle(home: Path, plan: Plan, advance: Callable[[], None], *, keep: bool = False) -> IdleResult:
    """First nobody is connected at all; then one client publishes now and then."""
    async with running_network(home / "network", plan.brokers, plan.settings, keep=keep) as network:
        identities = await network.register("load", 1)
        await asyncio.sleep(SETTLE)
        begin, before = time.monotonic(), network.usage()
        await asyncio.sleep(plan.seconds)
        after, seconds = network.usage(), time.monotonic() - begin
        advance()
        found = await _single(network, identities, plan)
        advance()
    shares = {name: round(us / 1e4 / seconds, 3) for name, us in used(before, after).items()}
    latencies = [one / 1e3 for one in found]
    results = [
        case("CPU of the busiest broker", [max(shares.values())], "% of a core", GOAL_PERCENT),
        case("CPU of all brokers", [sum(shares.values())], "% of a core", None),
        case("median to the certified receipt", [percentile(found, 0.5) / 1e3], "ms", GOAL_MS),
        case("99th percentile", [percentile(found, 0.99) / 1e3], "ms", None),
    ]
    return IdleResult(results, plan.brokers, round(seconds, 2), shares, latencies)


async def _single(network: Network, identities: Sequence[Path], plan: Plan) -> list[int]:
    """Microseconds from publishing to the certified receipt, of each publication."""
    jobs = publisher_jobs(network, identities, size=plan.size, batch=1, in_flight=1, rate=plan.rate)
    readings = await measure(network, jobs, plan.seconds, warm_up=max(WARM_UP, 1.5 / plan.rate))
    return readings.reports[0].latencies_us
