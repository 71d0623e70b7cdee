"""Many scenarios on several cores: numbered, so that shards and jobs share them out and each can be found again."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from parley.sim.twins.executor import Verdict, execute
from parley.sim.twins.generator import Shape, exhaustive, sample
from parley.sim.twins.mutants import MUTANTS
from parley.sim.twins.scenario import Scenario, load

CHUNK = 100  # scenarios that a job takes at a time
MAX_FAILURES = 1_000  # whose numbers are kept; more than that are only counted


@dataclass(frozen=True, slots=True)
class Campaign:
    """Which scenarios: of this shape, by this seed or all there are, the i-th of every n."""

    shape: Shape
    seed: int = 0
    scenarios: int | None = None  # None: every scenario of the shape
    shard: tuple[int, int] = (0, 1)
    mutant: str | None = None

    def size(self) -> int:
        """How many scenarios all shards have together."""
        return sum(1 for _ in exhaustive(self.shape)) if self.scenarios is None else self.scenarios

    def scenario(self, number: int) -> Scenario:
        if self.scenarios is None:
            return _everything.at(self.shape, number)
        return sample(self.shape, self.seed, number)


@dataclass(frozen=True, slots=True)
class Failure:
    number: int
    verdict: Literal[Verdict.SAFETY, Verdict.LIVENESS]


@dataclass(slots=True)
class Tally:
    """What a campaign has found. `recovery`: how many scenarios needed how many views after synchrony."""

    scenarios: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    recovery: Counter[int] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.scenarios += other.scenarios
        self.verdicts += other.verdicts
        self.recovery += other.recovery
        self.failures = [*self.failures, *other.failures][:MAX_FAILURES]


def run(
    campaign: Campaign,
    *,
    jobs: int = 1,
    advance: Callable[[int], None] = lambda _: None,
    until: Callable[[Tally], bool] = lambda _: False,
) -> Tally:
    """Play the campaign, chunk by chunk in order; the result does not depend on `jobs`."""
    play, chunks = partial(_play, campaign), _chunks(campaign)
    if jobs == 1:
        return _collect(map(play, chunks), advance, until)
    # Processes of their own, not copies of this one: it may have threads.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return _collect(pool.imap(play, chunks), advance, until)


def regressions() -> dict[str, tuple[Scenario, str, str | None]]:
    """The kept scenarios by name: each once broke an implementation, here or elsewhere."""
    folder = Path(__file__).parent / "regressions"
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def _collect(
    results: Iterator[Tally], advance: Callable[[int], None], until: Callable[[Tally], bool]
) -> Tally:
    tally = Tally()
    for part in results:
        tally.add(part)
        advance(part.scenarios)
        if until(tally):
            break
    return tally


def _chunks(campaign: Campaign) -> Iterator[range]:
    first, step = campaign.shard
    numbers = range(first, campaign.size(), step)
    return (numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK))


def _play(campaign: Campaign, numbers: range) -> Tally:
    tally = Tally(len(numbers))
    broken = nullcontext() if campaign.mutant is None else MUTANTS[campaign.mutant].applied()
    with broken:
        for number in numbers:
            outcome = execute(campaign.scenario(number))
            tally.verdicts[outcome.verdict] += 1
            tally.recovery[outcome.recovery] += 1
            if outcome.verdict is not Verdict.HOLDS:
                tally.failures.append(Failure(number, outcome.verdict))
    return tally


class _Cursor:
    """Where this process stands in the list of all scenarios: chunks come in order, so it only moves on."""

    def __init__(self) -> None:
        self._shape: Shape | None = None
        self._next = 0
        self._rest: Iterator[Scenario] = iter(())

    def at(self, shape: Shape, number: int) -> Scenario:
        if shape != self._shape or number < self._next:
            self._shape, self._next, self._rest = shape, 0, exhaustive(shape)
        found = next(islice(self._rest, number - self._next, None))
        self._next = number + 1
        return found


_everything = _Cursor()
