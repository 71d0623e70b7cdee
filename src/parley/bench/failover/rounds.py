"""Faults under load, round after round: clients at all brokers publish steadily, and one broker fails."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from parley.bench.errors import Unavailable
from parley.bench.failover.gaps import (
    FailoverCase,
    Fault,
    Round,
    choose,
    gap_on_return,
    longest_gap,
    summaries,
)
from parley.bench.failover.network import FailingNetwork
from parley.bench.failover.peers import PEERS, play_peer
from parley.bench.failover.plan import IN_FLIGHT, SETTLE_SECONDS, Plan, cases
from parley.bench.jobs import Window
from parley.bench.measure import TOPIC, publisher_jobs
from parley.bench.peers.compare import Skipped, missing
from parley.bench.usage import filesystem
from parley.bench.watch import Statuses, Watch, view_changes
from parley.bench.workers import Crew

# After a return all brokers get so far beyond where they were: the network works again, and clients get receipts.
MORE_BLOCKS = 10


class Result(Struct):
    """What `bench failover` prints."""

    results: list[FailoverCase]
    skipped: list[Skipped]
    versions: dict[str, str]
    brokers: int
    rounds: int
    seconds: float
    rate: float
    size: int
    filesystem: str


async def failover(home: Path, plan: Plan, advance: Callable[[], None]) -> Result:
    """Without and with proxies, as far as there are cases for it; then the peers."""
    results: list[FailoverCase] = []
    for prefix, faults in plan.groups.items():
        results += await _play_own(home / (prefix.strip(": ") or "direct"), plan, prefix, faults, advance)
    skipped, versions = [], {}
    for name in plan.peers:
        system = PEERS[name]()
        if reason := await missing(system, install=False):
            skipped.append(Skipped(name, reason))
            continue
        versions[name] = system.version()
        try:
            results += await play_peer(system, home / name, plan, advance)
        except Unavailable as error:  # what was measured of Parley is worth telling
            skipped.append(Skipped(name, str(error)))
        finally:
            if not plan.keep:
                shutil.rmtree(home / name, ignore_errors=True)
    return Result(
        results=results,
        skipped=skipped,
        versions=versions,
        brokers=plan.brokers,
        rounds=plan.rounds,
        seconds=plan.seconds,
        rate=plan.rate,
        size=plan.size,
        filesystem=filesystem(home),
    )


async def _play_own(
    home: Path, plan: Plan, prefix: str, faults: list[Fault], advance: Callable[[], None]
) -> list[FailoverCase]:
    """All rounds of one case after the other, on a network of its own: none has a longer chain to catch up with."""
    played: dict[str, list[Round]] = {}
    for number, (name, fault, whom) in enumerate(cases(faults), 1):
        directory = home / f"{number}-{name.replace(' ', '-')}"
        network = FailingNetwork(directory, plan.brokers, plan.settings, proxies=bool(prefix))
        played[name] = []
        try:
            async with network.running(), network.watched() as watch:
                await network.create_topics([TOPIC])
                stage = Stage(network, watch, plan, await network.register("load", plan.brokers))
                for turn in range(plan.rounds):
                    played[name].append(await stage.play(fault, whom, turn))
                    advance()
        finally:
            if not plan.keep:
                network.remove()
    return summaries(prefix, played)


@dataclass(frozen=True)
class Stage:
    """A running network, and one client for each of its brokers."""

    network: FailingNetwork
    watch: Watch
    plan: Plan
    identities: Sequence[Path]  # in the order of the brokers

    async def play(self, fault: Fault | None, whom: str, number: int) -> Round:
        """New clients every time: none avoids a broker because of what happened before."""
        plan, count = self.plan, len(self.identities)
        jobs = publisher_jobs(
            self.network,
            self.identities,
            size=plan.size,
            batch=1,
            in_flight=IN_FLIGHT * count,
            rate=plan.rate * count,
        )
        start = time.monotonic()
        async with Crew(self.network.directory, jobs).running() as crew:
            await crew.go()
            await asyncio.sleep(plan.warm_up)
            times = await self._fail(fault, whom, number)
            reports = await crew.reports(Window(start, time.monotonic()))
        receipts = {name: report.times for name, report in zip(self.network.names, reports, strict=True)}
        return judge(receipts, times)

    async def _fail(self, fault: Fault | None, whom: str, number: int) -> Times:
        """The fault, as long as it lasts, and the return of the broker."""
        network, watch, seconds = self.network, self.watch, self.plan.seconds
        before = await watch.ask()
        victim = None if fault is None else choose(fault, whom, network.names, leader(before), number)
        begin = time.monotonic()
        if fault is not None and victim is not None:
            await network.fail(fault, victim)
        await asyncio.sleep(begin + seconds - time.monotonic())
        end = time.monotonic()
        after = await watch.ask([name for name in network.names if victim is None or name != victim.name])
        if fault is not None and victim is not None:
            network.mend(fault, victim)
            newest = max((one.certified for one in after.values()), default=0)
            await network.returned(watch, fault, newest + MORE_BLOCKS)
        await asyncio.sleep(SETTLE_SECONDS)
        return Times(
            "" if victim is None else victim.name, begin, end, time.monotonic(), view_changes(before, after)
        )


@dataclass(frozen=True)
class Times:
    """When a fault began and ended, and when the broker was back."""

    victim: str
    begin: float
    end: float
    back: float
    failed_views: int | None


def judge(receipts: Mapping[str, Sequence[float]], times: Times) -> Round:
    """What a round comes to, from the times of the receipts at each broker's client."""
    others = [found for name, found in receipts.items() if name != times.victim]
    own = receipts.get(times.victim)
    return Round(
        victim=times.victim,
        gap=max(longest_gap(found, times.begin, times.end, times.back) for found in others),
        own_client=None if own is None else longest_gap(own, times.begin, times.end, times.back),
        on_return=max(gap_on_return(found, times.end, times.back) for found in others)
        if times.victim
        else None,
        failed_views=times.failed_views,
    )


def leader(statuses: Statuses) -> str:
    """Who proposed the newest certified block that a broker knows of."""
    if not statuses:
        raise Unavailable("No broker says how it is. Look into their logs with --dir.")
    return max(statuses.values(), key=lambda status: status.certified).leader
