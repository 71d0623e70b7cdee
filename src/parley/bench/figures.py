"""Figures from readings: rates, percentiles, the best of several runs and how far they lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from msgspec import Struct

from parley.bench.jobs import Report
from parley.bench.usage import Usage, used

MB = 1_000_000


class Readings(Struct, frozen=True):
    """What was read at both ends of a window, and what the load processes report of it."""

    seconds: float
    brokers: tuple[Mapping[str, Usage], Mapping[str, Usage]]
    workers: tuple[Mapping[str, Usage], Mapping[str, Usage]]
    reports: list[Report]
    view_changes: int | None = None

    @property
    def broker_cpu(self) -> dict[str, int]:
        return used(*self.brokers)

    @property
    def worker_cpu(self) -> dict[str, int]:
        return used(*self.workers)

    @property
    def cpu_us(self) -> int:
        return sum(self.broker_cpu.values()) + sum(self.worker_cpu.values())


class Figures(Struct):
    """What publishing achieved and cost."""

    publications_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_publication: float
    cpu_us_client: float
    cpu_us_brokers: float
    rss_mb: float  # of the broker that holds most


class Run(Figures):
    """One window of `bench pub`."""

    publications: int
    seconds: float
    failed: int
    view_changes: int | None  # None: no broker told
    height: int
    cpu: dict[str, float]  # of each process, the share of a core


class Case(Struct):
    """One line of a result. The baseline is what it is compared with: a goal, or the first point."""

    case: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    spread: float


def case(
    name: str, values: Sequence[float], unit: str, baseline: float | None, *, best: bool = False
) -> Case:
    """The best (highest) or the median of some runs."""
    value = max(values) if best else statistics.median(values)
    ratio = None if not baseline else round(value / baseline, 3)
    return Case(name, round(value, 3), unit, baseline, ratio, spread(values))


def spread(values: Sequence[float]) -> float:
    """(max - min) / median."""
    median = statistics.median(values)
    return round((max(values) - min(values)) / median, 3) if median else 0.0


def percentile(values: Sequence[int], part: float) -> float:
    """The smallest value that at least this part of all do not exceed."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(part * 1_000) // 1_000) - 1)]


def run_of(readings: Readings) -> Run:
    reports, seconds = readings.reports, readings.seconds
    latencies = [latency for report in reports for latency in report.latencies_us]
    publications = sum(report.publications for report in reports)
    each = max(publications, 1)
    brokers, workers = readings.broker_cpu, readings.worker_cpu
    return Run(
        publications_per_s=round(publications / seconds, 1),
        p50_ms=round(percentile(latencies, 0.5) / 1e3, 2),
        p99_ms=round(percentile(latencies, 0.99) / 1e3, 2),
        cpu_us_per_publication=round(readings.cpu_us / each, 2),
        cpu_us_client=round(sum(workers.values()) / each, 2),
        cpu_us_brokers=round(sum(brokers.values()) / each, 2),
        rss_mb=round(max(one.rss for one in readings.brokers[1].values()) / MB, 1),
        publications=publications,
        seconds=round(seconds, 2),
        failed=sum(report.failed for report in reports),
        view_changes=readings.view_changes,
        height=max(report.height for report in reports),
        cpu={name: round(us / 1e6 / seconds, 3) for name, us in (brokers | workers).items()},
    )
