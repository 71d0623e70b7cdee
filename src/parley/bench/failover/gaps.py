"""Figures of failing brokers: who fails, how long others waited, and what a case comes to. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from parley.bench.figures import Case, spread

NO_FAULT = "no fault"
LEADER, OTHER = "leader", "other"


class Fault(StrEnum):
    """What happens to a broker. The first two need no proxies."""

    KILL = "kill"  # -9; it is started again later
    STOP = "stop"  # SIGSTOP: its connections stay open
    CUT = "cut"  # one link, both ways: bytes vanish
    ISOLATE = "isolate"  # the same with all its links to brokers


class Victim(NamedTuple):
    """Who fails, and the brokers at the other ends of its links that do."""

    name: str
    far_ends: tuple[str, ...] = ()


class Round(Struct, frozen=True):
    """One fault. Gaps are the longest without a receipt, in seconds."""

    victim: str  # empty: nothing failed
    gap: float  # of the clients of other brokers
    own_client: float | None  # of the client of the broker that failed
    on_return: float | None  # of the clients of other brokers, while that one came back
    failed_views: int | None


class FailoverCase(Case):
    """All rounds of one case; the value is the median gap, the baseline that without a fault."""

    worst: float
    gaps: list[float]
    own_client: list[float]
    on_return: list[float]
    failed_views: list[int]
    victims: list[str]


def choose(fault: Fault, whom: str, names: Sequence[str], leader: str, number: int) -> Victim:
    """The leader, or the others in turn. A cut link leads to one that does not lead."""
    followers = [name for name in names if name != leader]
    name = leader if whom == LEADER else followers[number % len(followers)]
    others = [one for one in followers if one != name]
    match fault:
        case Fault.CUT:
            return Victim(name, (others[number % len(others)],))
        case Fault.ISOLATE:
            return Victim(name, tuple(one for one in names if one != name))
        case _:
            return Victim(name)


def longest_gap(times: Sequence[float], begin: float, end: float, until: float) -> float:
    """The longest time between receipts, in order, that has a part in a window.

    A gap at an end of the window counts from the last receipt before it, or to the first one after it, because clients
    wait that long. Where none came after it, the gap counts as far as is known: `until`.
    """
    first, last = bisect_left(times, begin), bisect_left(times, end)
    before = times[first - 1] if first > 0 else begin
    after = times[last] if last < len(times) else until
    points = [before, *times[first:last], after]
    return max(later - earlier for earlier, later in pairwise(points))


def gap_on_return(times: Sequence[float], end: float, back: float) -> float:
    """The same after a fault has ended, without a gap that it left: that one belongs to the fault."""
    later = times[bisect_left(times, end) :]
    return longest_gap(later, later[0], back, back) if later else 0.0


def summary(name: str, rounds: Sequence[Round], baseline: float | None) -> FailoverCase:
    gaps = [one.gap for one in rounds]
    median = statistics.median(gaps)
    return FailoverCase(
        case=name,
        value=round(median, 3),
        unit="s",
        baseline=baseline,
        ratio=round(median / baseline, 3) if baseline else None,
        spread=spread(gaps),
        worst=round(max(gaps), 3),
        gaps=_rounded(gaps),
        own_client=_rounded([one.own_client for one in rounds]),
        on_return=_rounded([one.on_return for one in rounds]),
        failed_views=[one.failed_views for one in rounds if one.failed_views is not None],
        victims=[one.victim for one in rounds if one.victim],
    )


def summaries(system: str, played: dict[str, list[Round]]) -> list[FailoverCase]:
    """All cases of one network; the one without a fault, which is the baseline of the others, first."""
    normal = summary(system + NO_FAULT, played[NO_FAULT], None)
    others = [
        summary(system + name, rounds, normal.value) for name, rounds in played.items() if name != NO_FAULT
    ]
    return [normal, *others]


def _rounded(values: Sequence[float | None]) -> list[float]:
    return [round(value, 3) for value in values if value is not None]
