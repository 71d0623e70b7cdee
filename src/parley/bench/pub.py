"""`bench pub`: how many publications a second become certified, how soon, and at which cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parley.bench.figures import Figures, Run, run_of, spread
from parley.bench.measure import WARM_UP, NetworkPlan, measure, publisher_jobs, running_network
from parley.bench.network import Network
from parley.bench.profile import Profiler
from parley.bench.usage import filesystem
from parley.bench.workers import Crew


@dataclass(frozen=True)
class Plan(NetworkPlan):
    """What is published to what kind of network."""

    batch: int = 100
    seconds: float = 20.0
    runs: int = 5
    preset: str = "bps"
    clients: int = 1
    in_flight: int = 32  # batches
    warm_up: float = WARM_UP


class Result(Figures):
    """What `bench pub` prints: the figures of the best run, and those of all runs."""

    brokers: int
    size: int
    batch: int
    preset: str
    solo: bool
    clients: int
    in_flight: int
    seconds: float
    view_changes: int | None  # in all runs; None: no broker told
    spread: float
    median_publications_per_s: float
    filesystem: str
    runs: list[Run]


async def publish(
    home: Path,
    plan: Plan,
    advance: Callable[[], None],
    *,
    profiler: Profiler | None = None,
    keep: bool = False,
) -> Result:
    """Every run on a network of its own: none finds the ledger of another, nor what another left in memory.

    With a profiler one more run is made, which is slower; its figures do not count.
    """
    kind = filesystem(home)
    runs = []
    for number in range(1, plan.runs + 1):
        runs.append(await _run(home / f"run-{number}", plan, keep=keep))
        advance()
    if profiler is not None:
        await _run(home / "run-profiled", plan, keep=keep, profiler=profiler)
        advance()
    best = max(runs, key=lambda run: run.publications_per_s)
    rates = [run.publications_per_s for run in runs]
    return Result(
        publications_per_s=best.publications_per_s,
        p50_ms=best.p50_ms,
        p99_ms=best.p99_ms,
        cpu_us_per_publication=best.cpu_us_per_publication,
        cpu_us_client=best.cpu_us_client,
        cpu_us_brokers=best.cpu_us_brokers,
        rss_mb=best.rss_mb,
        brokers=plan.brokers,
        size=plan.size,
        batch=plan.batch,
        preset=plan.preset,
        solo=plan.brokers == 1,
        clients=plan.clients,
        in_flight=plan.in_flight,
        seconds=plan.seconds,
        view_changes=_sum_of(run.view_changes for run in runs),
        spread=spread(rates),
        median_publications_per_s=round(statistics.median(rates), 1),
        filesystem=kind,
        runs=runs,
    )


async def _run(home: Path, plan: Plan, *, keep: bool, profiler: Profiler | None = None) -> Run:
    running = running_network(home, plan.brokers, plan.settings, keep=keep, preset=plan.preset)
    async with running as network:
        identities = await network.register("load", plan.clients)
        jobs = publisher_jobs(network, identities, size=plan.size, batch=plan.batch, in_flight=plan.in_flight)
        meanwhile = None if profiler is None else partial(_record, profiler, network)
        readings = await measure(network, jobs, plan.seconds, warm_up=plan.warm_up, meanwhile=meanwhile)
    return run_of(readings)


async def _record(profiler: Profiler, network: Network, crew: Crew) -> None:
    """The broker that takes the first client's batches, one that does not, and the client."""
    names = [network.brokers[0].name, network.brokers[-1].name]
    client = crew.workers[0]
    await profiler.record({name: network.pids[name] for name in names} | {client.name: client.pid})


def _sum_of(counts: Iterable[int | None]) -> int | None:
    """None if one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
