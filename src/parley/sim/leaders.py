"""What a leader scheme is worth under faults: the same network, seeds and faults for each scheme (Galaxy V-C, Figs. 8 and 9).

Real machines across a wide area. The view timeout is TIMEOUT_FACTOR times the median view of a healthy round-robin run,
and it never grows. What is measured begins after a warm-up as long as the longest memory of any scheme.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from parley.consensus import events
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.leader.schemes import make
from parley.consensus.types import Block, Timeout
from parley.sim.ensemble import Ensemble, Seat, Settings
from parley.sim.leader_faults import Fault, Network, Plan, Stopwatch, links

TIMEOUT_FACTOR = 15
CALIBRATION = 10  # blocks of the healthy run, for each member
STEP = 50  # blocks between two signs of progress

Advance = Callable[[int], None]


class StalledError(Exception):
    """The network stopped committing, which at most f faulty members must not achieve."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A leader scheme, and whether collectors wait for late votes before they make a QC."""

    scheme: str
    grace: bool = False


VARIANTS: Mapping[str, Variant] = {
    "round-robin": Variant("round-robin"),
    "cwa": Variant("cwa"),
    "cwa (grace)": Variant("cwa", grace=True),
    "cwa+": Variant("cwa+"),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """What a healthy round-robin run of the same network takes, in ms."""

    median_view: int
    vote_grace: int  # between the vote that completes a quorum and the last one, at most

    @property
    def view_timeout(self) -> int:
        return TIMEOUT_FACTOR * self.median_view


@dataclass(frozen=True, slots=True)
class Measured:
    """One scheme's figures. A view belongs to whom the scheme gave it, whether or not a block came of it."""

    throughput: float  # committed blocks per virtual second
    failed_view_share: float  # of the views, those without a block in the chain
    byzantine_share: float  # of the views, those with a faulty leader; under `omit` of the blocks
    timeouts: float  # of the views, those that were given up on although a block came of them
    proposers: int  # members with a block in the chain: the others are shut out (R6)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of all schemes, by the names in `VARIANTS`."""

    nodes: int
    faulty: int
    fault: Fault
    network: Network
    seed: int
    blocks: int
    warm_up: int
    faulty_members: tuple[int, ...]
    fair_share: float
    median_view_ms: int
    view_timeout_ms: int
    vote_grace_ms: int
    throughput: dict[str, float]
    ratio: dict[str, float]  # to round-robin's throughput
    failed_view_share: dict[str, float]
    byzantine_share: dict[str, float]
    timeouts: dict[str, float]
    proposers: dict[str, int]


def steps(plan: Plan, variants: Sequence[str]) -> int:
    """How far `advance` will be moved in all."""
    return CALIBRATION * plan.nodes + len(variants) * (plan.warm_up + plan.blocks)


def compare(
    plan: Plan, variants: Sequence[str] = tuple(VARIANTS), jobs: int = 1, advance: Advance = lambda _: None
) -> Comparison:
    """Run every variant; `jobs` processes change nothing but the time that takes."""
    pace = calibrate(plan, advance)
    if jobs == 1:
        measured = {name: measure(plan, pace, VARIANTS[name], advance) for name in variants}
    else:
        measured = _in_processes(plan, pace, variants, jobs, advance)
    base = measured.get("round-robin")
    return Comparison(
        nodes=plan.nodes,
        faulty=len(plan.members),
        fault=plan.fault,
        network=plan.network,
        seed=plan.seed,
        blocks=plan.blocks,
        warm_up=plan.warm_up,
        faulty_members=plan.members,
        fair_share=round(len(plan.members) / plan.nodes, 4),
        median_view_ms=pace.median_view,
        view_timeout_ms=pace.view_timeout,
        vote_grace_ms=pace.vote_grace,
        throughput={name: round(m.throughput, 4) for name, m in measured.items()},
        ratio={n: round(m.throughput / base.throughput, 3) for n, m in measured.items()} if base else {},
        failed_view_share={name: round(m.failed_view_share, 4) for name, m in measured.items()},
        byzantine_share={name: round(m.byzantine_share, 4) for name, m in measured.items()},
        timeouts={name: round(m.timeouts, 4) for name, m in measured.items()},
        proposers={name: m.proposers for name, m in measured.items()},
    )


def calibrate(plan: Plan, advance: Advance = lambda _: None) -> Pace:
    """Run the network without faults under round-robin and see how long things take."""
    stopwatch = Stopwatch(plan)
    settings = Settings(plan.nodes, view_timeout=60_000)
    ensemble = Ensemble(settings, range(plan.nodes), make("round-robin", plan.nodes), stopwatch)
    stopwatch.ensemble = ensemble
    for seat in ensemble.seats:
        ensemble.start(seat)
    _run(ensemble, ensemble.seats[0], CALIBRATION * plan.nodes, advance)
    times = [block.header.time for block in ensemble.seats[0].chain[1:]]
    views = [after - before for before, after in pairwise(times)]
    return Pace(int(statistics.median(views)), stopwatch.longest_wait())


def measure(plan: Plan, pace: Pace, variant: Variant, advance: Advance = lambda _: None) -> Measured:
    """Run one variant through the warm-up and the blocks that count."""
    leaders = make(variant.scheme, plan.nodes)
    grace = pace.vote_grace if variant.grace else 0
    settings = Settings(plan.nodes, view_timeout=pace.view_timeout, vote_grace=grace)
    given_up: set[int] = set()  # views

    def watch(seat: Seat, effect: events.Effect) -> None:
        if seat is observer and isinstance(effect, events.Broadcast) and isinstance(effect.message, Timeout):
            given_up.add(effect.message.view)

    ensemble = Ensemble(settings, range(plan.nodes), leaders, links(plan), watch=watch)
    observer = next(seat for seat in ensemble.seats if seat.member not in plan.members)
    for seat in ensemble.seats:
        if plan.fault is not Fault.CRASH or seat.member not in plan.members:
            ensemble.start(seat)
    begin = _run(ensemble, observer, plan.warm_up, advance)
    first = len(observer.chain) - 1
    end = _run(ensemble, observer, first + plan.blocks, advance)
    return _judge(plan, leaders, observer.chain, first, seconds=(end - begin) / 1000, given_up=given_up)


# -- one run -----------------------------------------------------------------------------------------------------------


def _run(ensemble: Ensemble, observer: Seat, height: int, advance: Advance) -> int:
    """Let the observer commit up to that height; the time when it has."""
    # A block may wait for every member's view to fail, several times over; after that nothing will come any more.
    patience = 10 * len(ensemble.seats) * ensemble.settings.view_timeout
    while (before := len(observer.chain)) <= height:
        goal = min(before + STEP, height + 1)
        if not ensemble.run(ensemble.now + STEP * patience, partial(_longer, observer, goal)):
            raise StalledError(f"no block after height {len(observer.chain) - 1}, seed and options repeat it")
        advance(len(observer.chain) - before)
    return ensemble.now


def _longer(observer: Seat, length: int) -> bool:
    return len(observer.chain) >= length


def _judge(
    plan: Plan,
    scheme: LeaderScheme,
    chain: Sequence[Block],
    first: int,
    *,
    seconds: float,
    given_up: set[int],
) -> Measured:
    """What the observer saw: the blocks above height `first`, in so many seconds; in some views it timed out."""
    faulty, counted = set(plan.members), chain[first + 1 :]
    heights = range(first + 1, len(chain))
    leaders = [leader for height in heights for leader in _leaders(scheme, chain, height)]
    proposers = [block.header.proposer for block in counted]
    blamed = proposers if plan.fault is Fault.OMIT else leaders
    return Measured(
        throughput=len(counted) / seconds,
        failed_view_share=1 - len(counted) / len(leaders),
        byzantine_share=sum(member in faulty for member in blamed) / len(blamed),
        timeouts=sum(block.view in given_up for block in counted) / len(leaders),
        proposers=len(set(proposers)),
    )


def _leaders(scheme: LeaderScheme, chain: Sequence[Block], height: int) -> Iterator[int]:
    """Who led each view above the parent of the block at `height`, up to its own (P8)."""
    parent, block = chain[height - 1], chain[height]
    for view in range(parent.view + 1, block.view):
        entered_by = EnteredBy.QC if view == parent.view + 1 else EnteredBy.TC
        yield scheme.leader(view, entered_by, (chain[h].header for h in range(height - 1, -1, -1)))
    yield block.header.proposer


def _in_processes(
    plan: Plan, pace: Pace, variants: Sequence[str], jobs: int, advance: Advance
) -> dict[str, Measured]:
    # Fresh interpreters: a fork would copy the threads of a progress bar in whatever state they are.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        runs: dict[Future[Measured], str] = {
            pool.submit(measure, plan, pace, VARIANTS[name]): name for name in variants
        }
        for _ in as_completed(runs):
            advance(plan.warm_up + plan.blocks)
        return {name: run.result() for run, name in runs.items()}
