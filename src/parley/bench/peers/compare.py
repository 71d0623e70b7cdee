"""`bench peers`: round after round every system gets the same load, so that noise hits all alike, and ratios are told."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from parley.bench.errors import Unavailable
from parley.bench.figures import Case, spread
from parley.bench.peers.client import Reading, measure
from parley.bench.peers.kafka import Kafka
from parley.bench.peers.nats import Nats
from parley.bench.peers.needs import Need
from parley.bench.peers.rabbitmq import RabbitMQ
from parley.bench.peers.systems import Parley, Running, System, Variant
from parley.bench.usage import filesystem

PEERS: Mapping[str, Callable[[], Sequence[System]]] = {
    "nats": lambda: (Nats(synced=False), Nats(synced=True)),
    "kafka": lambda: (Kafka(),),
    "rabbitmq": lambda: (RabbitMQ(),),
}
OWN = "parley"
WARM_UP = 5  # one message for so many that count goes before them

Key = tuple[str, int]  # a variant and a size
Readings = dict[Key, dict[int, Reading]]  # by round


@dataclass(frozen=True, slots=True)
class Plan:
    peers: tuple[str, ...]
    sizes: tuple[int, ...] = (128, 1_024)
    messages: int = 100_000
    runs: int = 3
    install: bool = False
    keep: bool = False  # what the systems have written


class Needy(Protocol):
    needs: tuple[Need, ...]


class Skipped(Struct):
    """Why there are no figures of a system, or of one variant of it."""

    name: str
    reason: str


class Measured(Struct):
    """All runs of one variant with one size."""

    name: str
    size: int
    median: float  # messages per second
    best: float
    spread: float
    cpu_us_per_message: float  # the median, as the two that follow
    cpu_us_servers: float
    cpu_us_client: float
    runs: list[Reading]


class Comparison(Case):
    """Parley's median, the peer's as the baseline, and Parley's divided by it; the spread is that of the rounds' ratios."""

    baseline: float
    ratio: float
    best: float
    baseline_best: float
    best_ratio: float


class Result(Struct):
    results: list[Comparison]
    systems: list[Measured]
    skipped: list[Skipped]
    versions: dict[str, str]
    messages: int
    warm_up: int
    runs: int
    cores: int
    filesystem: str


@dataclass(slots=True)
class _Rounds:
    """What has been found out so far."""

    home: Path
    plan: Plan
    advance: Callable[[int], None]
    readings: Readings = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    async def play(self, number: int, system: System) -> None:
        """Start the system anew, measure each variant that has not failed before, and stop it."""
        variants = [one for one in system.variants if one.name not in self.skipped]
        directory = self.home / f"round-{number}-{system.variants[0].name}"
        try:
            if variants:
                async with system.running(directory, self.plan.sizes) as running:
                    for variant in variants:
                        await self._measure(number, variant, running)
        except Unavailable as error:
            self._give_up(error, [one.name for one in variants])
        finally:
            if not self.plan.keep:
                shutil.rmtree(directory, ignore_errors=True)
        await asyncio.to_thread(os.sync)  # what one has left to be written is not written during the next

    async def _measure(self, number: int, variant: Variant, running: Running) -> None:
        for size in self.plan.sizes:
            job = running.job(variant, size)
            job.messages, job.warm_up = self.plan.messages, _warm_up(self.plan.messages)
            try:
                log = self.home / f"{variant.name}-{size}.log"
                self.readings.setdefault((variant.name, size), {})[number] = await measure(running, job, log)
            except Unavailable as error:
                self._give_up(error, [variant.name])
                return
            self.advance(1)

    def _give_up(self, error: Unavailable, names: list[str]) -> None:
        if OWN in names:
            raise error
        for name in names:
            self.skipped.setdefault(name, str(error))


async def compare(home: Path, plan: Plan, advance: Callable[[int], None]) -> Result:
    """As many rounds as runs. In each the systems take turns, and another one begins. Without a peer nothing is measured."""
    systems: list[System] = [Parley()]
    skipped = []
    for peer in plan.peers:
        wanted = PEERS[peer]()
        if reason := await missing(wanted[0], install=plan.install):
            skipped.append(Skipped(peer, reason))
        else:
            systems += wanted
    rounds = _Rounds(home, plan, advance)
    for number in range(plan.runs if len(systems) > 1 else 0):
        begin = number % len(systems)
        for system in [*systems[begin:], *systems[:begin]]:
            await rounds.play(number, system)
    skipped += [Skipped(name, reason) for name, reason in rounds.skipped.items()]
    return Result(
        results=comparisons(rounds.readings),
        systems=[_measured(*key, list(found.values())) for key, found in rounds.readings.items()],
        skipped=skipped,
        versions={system.name: system.version() for system in systems},
        messages=plan.messages,
        warm_up=_warm_up(plan.messages),
        runs=plan.runs,
        cores=os.cpu_count() or 1,
        filesystem=filesystem(home),
    )


def comparisons(readings: Readings) -> list[Comparison]:
    """Of each variant of a peer, over the rounds in which both were measured."""
    found = []
    for (name, size), theirs in sorted(readings.items(), key=lambda one: (one[0][1], one[0][0])):
        own = readings.get((OWN, size), {})
        both = [(own[number], theirs[number]) for number in theirs if number in own]
        if name == OWN or not both:
            continue
        case = f"{name} {size} B"
        rates = [(mine.messages_per_s, other.messages_per_s) for mine, other in both]
        costs = [(mine.cpu_us_per_message, other.cpu_us_per_message) for mine, other in both]
        found += [
            _comparison(case, "messages/s", rates, max),
            _comparison(case, "CPU µs/message", costs, min),
        ]
    return found


def _comparison(
    case: str, unit: str, pairs: list[tuple[float, float]], best_of: Callable[[list[float]], float]
) -> Comparison:
    own, theirs = [mine for mine, _ in pairs], [other for _, other in pairs]
    value, baseline = statistics.median(own), statistics.median(theirs)
    best, baseline_best = best_of(own), best_of(theirs)
    return Comparison(
        case=case,
        value=round(value, 2),
        unit=unit,
        baseline=round(baseline, 2),
        ratio=round(value / baseline, 3),
        spread=spread([mine / other for mine, other in pairs]),
        best=best,
        baseline_best=baseline_best,
        best_ratio=round(best / baseline_best, 3),
    )


def _measured(name: str, size: int, runs: list[Reading]) -> Measured:
    rates = [run.messages_per_s for run in runs]
    return Measured(
        name=name,
        size=size,
        median=round(statistics.median(rates), 1),
        best=max(rates),
        spread=spread(rates),
        cpu_us_per_message=round(statistics.median(run.cpu_us_per_message for run in runs), 2),
        cpu_us_servers=round(statistics.median(run.cpu_us_servers for run in runs), 2),
        cpu_us_client=round(statistics.median(run.cpu_us_client for run in runs), 2),
        runs=runs,
    )


async def missing(system: Needy, *, install: bool) -> str:
    """Empty if all that the system needs is there, or could be had."""
    for need in system.needs:
        if install and not need.is_there():
            try:
                await need.install()
            except (Unavailable, OSError) as error:
                return f"{need.what} could not be installed: {error}"
    missing = [need for need in system.needs if not need.is_there()]
    if not missing:
        return ""
    what = " and ".join(need.what for need in missing)
    ways = dict.fromkeys(need.how for need in missing)
    how = "; ".join(way for way in ways if not any(way != other and way in other for other in ways))
    return f"no {what} here; get it with: {how}; or all of it with: parley bench peers --install"


def _warm_up(messages: int) -> int:
    return max(1, messages // WARM_UP)
