"""What a run showed, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from parley.sim.checkers import Violation


@dataclass(slots=True)
class Answers:
    """What clients have learned so far. `settled` is the height at which the last of them succeeded."""

    settled: int = 0
    acknowledged: int = 0
    receipts: Counter[str] = field(default_factory=Counter)  # of the chain, by their codes


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `committed` is the lowest height of a correct replica at the end."""

    seed: int
    nodes: int
    application: str
    crypto: str
    depth: int
    leaders: str
    actors: dict[int, str]
    trace_hash: str
    violations: tuple[Violation, ...]
    committed: int
    views: int
    acknowledged: int
    receipts: dict[str, int]
    crashes: int
    happened: dict[str, int]
    messages_sent: int
    messages_lost: int
    refused: dict[str, int]
    evidence: dict[str, int]
    virtual_seconds: float
    recovery_seconds: float
    recovery_views: int
    longest_execution_ms: float = 0.0  # of a block, by a correct replica; 0: it is not charged


@dataclass(frozen=True, slots=True)
class Summary:
    """Several runs under the keys of one: the lowest height, the sums of the rest, one hash over all hashes."""

    seed: int
    seeds: int
    nodes: int
    application: str
    crypto: str
    depth: int
    leaders: str
    actors: dict[str, int]
    trace_hash: str
    violations: tuple[Violation, ...]
    committed: int
    views: int
    acknowledged: int
    receipts: dict[str, int]
    crashes: int
    happened: dict[str, int]
    refused: dict[str, int]
    evidence: dict[str, int]
    longest_execution_ms: float
    runs: tuple[Report, ...]


def summarise(runs: Sequence[Report]) -> Summary:
    return Summary(
        seed=runs[0].seed,
        seeds=len(runs),
        nodes=runs[0].nodes,
        application=runs[0].application,
        crypto=runs[0].crypto,
        depth=runs[0].depth,
        leaders=runs[0].leaders,
        actors=_sum(Counter(run.actors.values()) for run in runs),
        trace_hash=sha256("".join(run.trace_hash for run in runs).encode()).hexdigest(),
        violations=tuple(violation for run in runs for violation in run.violations),
        committed=min(run.committed for run in runs),
        views=sum(run.views for run in runs),
        acknowledged=sum(run.acknowledged for run in runs),
        receipts=_sum(run.receipts for run in runs),
        crashes=sum(run.crashes for run in runs),
        happened=_sum(run.happened for run in runs),
        refused=_sum(run.refused for run in runs),
        evidence=_sum(run.evidence for run in runs),
        longest_execution_ms=max(run.longest_execution_ms for run in runs),
        runs=tuple(runs),
    )


def describe(run: Report) -> str:
    """The run in a few lines of plain words."""
    verdict = "every property holds" if not run.violations else "BROKEN"
    liars = ", ".join(f"{index} ({name})" for index, name in run.actors.items()) or "none"
    return "\n".join(
        [
            f"seed {run.seed}: {verdict}",
            *_first_violations(run.violations),
            f"  network    {run.nodes} replicas of the {run.application} application, commit depth {run.depth}, {run.crypto} signatures, {run.leaders} leaders",
            f"  liars      {liars}",
            f"  committed  {run.committed} blocks in {run.views} views and {run.virtual_seconds:.1f} virtual seconds",
            f"  batches    {run.acknowledged} acknowledged",
            f"  receipts   {listed(run.receipts)}",
            f"  faults     {run.crashes} crashes; {run.messages_lost} of {run.messages_sent} messages lost",
            f"  happened   {listed(run.happened)}",
            f"  healing    {run.recovery_seconds:.1f} s and {run.recovery_views} views after the faults ended",
            f"  execution  of a block took {run.longest_execution_ms:.1f} ms at most",
            f"  refused    {listed(run.refused)}",
            f"  evidence   {listed(run.evidence)}",
            f"  trace      {run.trace_hash}",
        ]
    )


def _first_violations(violations: Sequence[Violation]) -> list[str]:
    """The first of each checker: a broken run repeats itself, and the first tells the story."""
    first: dict[str, Violation] = {}
    for violation in violations:
        first.setdefault(violation.checker, violation)
    lines = [f"  BROKEN     {v.checker} at {v.time / 1000:.3f} s: {v.evidence}" for v in first.values()]
    more = len(violations) - len(first)
    return [*lines, f"  and {more} more; --json lists them"] if more else lines


def _sum(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return dict(sorted(total.items()))


def listed(tally: Mapping[str, int]) -> str:
    """For people, what there is most of first."""
    largest_first = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in largest_first) or "nothing"
