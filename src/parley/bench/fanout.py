"""`bench sub`: how many deliveries a second subscribers get and verify, all of them together, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from parley.bench.figures import Case, Readings, case
from parley.bench.jobs import Job
from parley.bench.measure import TOPIC, WARM_UP, NetworkPlan, measure, publisher_jobs, running_network
from parley.bench.network import Network
from parley.bench.traffic import create_progress

GOAL = 100_000  # deliveries per second


@dataclass(frozen=True)
class Plan(NetworkPlan):
    subscribers: int = 100
    processes: int = 2
    batch: int = 100
    seconds: float = 20.0
    runs: int = 5
    in_flight: int = 8
    warm_up: float = WARM_UP


class Delivered(Struct):
    """One window of `bench sub`."""

    deliveries_per_s: float
    publications_per_s: float
    cpu_us_per_delivery: float
    cpu_us_brokers: float
    cpu_us_subscribers: float
    cpu_us_publisher: float
    deliveries: int
    seconds: float
    failed: int  # batches that were not published, and lies that subscribers noticed


class Result(Struct):
    """What `bench sub` prints."""

    results: list[Case]
    brokers: int
    subscribers: int
    processes: int
    size: int
    batch: int
    runs: list[Delivered]


async def fan_out(home: Path, plan: Plan, advance: Callable[[], None], *, keep: bool = False) -> Result:
    """One topic, one publisher, and subscribers that all want everything; every run on a network of its own."""
    runs = []
    for number in range(1, plan.runs + 1):
        runs.append(_delivered(await _run(home / f"run-{number}", plan, keep=keep)))
        advance()
    results = [
        case("deliveries", [run.deliveries_per_s for run in runs], "deliveries/s", GOAL, best=True),
        case("CPU per delivery", [run.cpu_us_per_delivery for run in runs], "µs", None),
        case("publications", [run.publications_per_s for run in runs], "publications/s", None, best=True),
    ]
    return Result(results, plan.brokers, plan.subscribers, plan.processes, plan.size, plan.batch, runs)


async def _run(home: Path, plan: Plan, *, keep: bool) -> Readings:
    async with running_network(home, plan.brokers, plan.settings, keep=keep) as network:
        publisher = await network.register("load", 1)
        readers = await network.register("reader", plan.subscribers)
        progress, subscribing = subscriber_jobs(network, readers, plan.processes)
        publishing = publisher_jobs(
            network,
            publisher,
            size=plan.size,
            batch=plan.batch,
            in_flight=plan.in_flight,
            progress=progress,
        )
        return await measure(network, [*publishing, *subscribing], plan.seconds, warm_up=plan.warm_up)


def subscriber_jobs(
    network: Network, readers: Sequence[Path], processes: int
) -> tuple[Path, list[tuple[str, Job]]]:
    """Readers spread evenly over processes, and the file by which they hold the publisher back.

    A publisher that runs ahead of its readers would take the CPU time that they need, and all would be slower.
    """
    processes = min(processes, len(readers))
    progress = create_progress(network.directory / "progress", processes)
    return progress, [
        (
            f"subscribers-{place + 1}",
            Job(
                role="subscribe",
                genesis=str(network.directory / "genesis.json"),
                identities=[str(path) for path in readers[place::processes]],
                topics=[TOPIC],
                progress=str(progress),
                place=place,
            ),
        )
        for place in range(processes)
    ]


def _delivered(readings: Readings) -> Delivered:
    deliveries = sum(report.deliveries for report in readings.reports)
    publications = sum(report.publications for report in readings.reports)
    each, seconds = max(deliveries, 1), readings.seconds
    workers = readings.worker_cpu
    publishing = sum(us for name, us in workers.items() if name.startswith("client"))
    return Delivered(
        deliveries_per_s=round(deliveries / seconds, 1),
        publications_per_s=round(publications / seconds, 1),
        cpu_us_per_delivery=round(readings.cpu_us / each, 2),
        cpu_us_brokers=round(sum(readings.broker_cpu.values()) / each, 2),
        cpu_us_subscribers=round((sum(workers.values()) - publishing) / each, 2),
        cpu_us_publisher=round(publishing / each, 2),
        deliveries=deliveries,
        seconds=round(seconds, 2),
        failed=sum(report.failed for report in readings.reports),
    )
