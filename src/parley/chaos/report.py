"""A history as people and scripts want it: the verdict, some numbers, and what happened when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from parley.chaos.bars import Expense, expense
from parley.chaos.checker import Violation, judge
from parley.chaos.facts import Facts
from parley.chaos.history import Acknowledged, Began, Chain, Full, Record, Span

WIDTH = 72  # columns of the timeline
UP = "."
# How a broker's state is drawn; of several at a time, the first.
SIGNS = {"killed": "X", "full": "#", "paused": "=", "cut": "/", "slow": "~", "lying": "?"}
BARS = " ▁▂▃▄▅▆▇█"


class Report(Struct):
    """`violations` are the names of the properties that do not hold; `rate` is acknowledgements by second."""

    violations: list[str]
    acknowledged: int
    lost: int
    doubled: int
    reordered: int
    digests_equal: bool
    seed: int
    faults: list[str]
    brokers: int
    fault_seconds: float
    seconds: float
    published: int
    refused: int
    unknown: int
    delivered: int
    empties: int
    heights: dict[str, int]
    stopped_full: int
    caught: int  # lies that clients noticed
    details: list[Violation]
    timeline: list[Span]
    rate: list[int]
    expense: Expense | None = None  # what expensive clients cost the others, if there were any
    history: str = ""  # where it was kept

    @property
    def holds(self) -> bool:
        return not self.violations


def report(records: Sequence[Record]) -> Report:
    verdict = judge(records)
    began = next((one for one in records if isinstance(one, Began)), Began(0.0, 0, (), 0, 0.0))
    heights = {one.broker: one.height for one in records if isinstance(one, Chain)}
    differ = not {"agreement-1", "total-order-1"}.isdisjoint(verdict.names)
    return Report(
        violations=verdict.names,
        acknowledged=verdict.acknowledged,
        lost=verdict.lost,
        doubled=verdict.doubled,
        reordered=verdict.reordered,
        digests_equal=len(heights) > 1 and not differ,
        seed=began.seed,
        faults=list(began.faults),
        brokers=began.brokers,
        fault_seconds=began.seconds,
        seconds=round(max((one.at for one in records), default=0.0), 1),
        published=verdict.invoked,
        refused=verdict.refused,
        unknown=verdict.unknown,
        delivered=verdict.delivered,
        empties=verdict.empties,
        heights=heights,
        stopped_full=sum(isinstance(one, Full) for one in records),
        caught=verdict.caught,
        details=list(verdict.violations),
        timeline=sorted(
            (one for one in records if isinstance(one, Span)), key=lambda one: (one.at, one.broker)
        ),
        rate=_rate(records),
        expense=expense(Facts(records)),
    )


def timeline(found: Report) -> str:
    """A line for each broker, one for what was acknowledged, and what the signs mean."""
    seconds = max(found.seconds, 1.0)
    names = sorted(found.heights) or sorted({span.broker for span in found.timeline})
    margin = max([len("acknowledged"), *map(len, names)]) + 2
    states = {span.state for span in found.timeline}
    lines = [f"{name:<{margin}}{_line(found.timeline, name, seconds)}" for name in names]
    lines.append(f"{'acknowledged':<{margin}}{_bars(found.rate, seconds)}")
    lines.append(f"{'':<{margin}}{'0 s':<{WIDTH - 8}}{f'{seconds:.0f} s':>8}")
    legend = ", ".join(f"{sign} {state}" for state, sign in SIGNS.items() if state in states)
    return "\n".join([*lines, f"{'':<{margin}}{UP} up{', ' if legend else ''}{legend}"])


def _line(spans: Sequence[Span], broker: str, seconds: float) -> str:
    cells = [UP] * WIDTH
    for state, sign in reversed(SIGNS.items()):
        for span in spans:
            if (span.broker, span.state) == (broker, state):
                first, last = (min(WIDTH - 1, int(at / seconds * WIDTH)) for at in (span.at, span.end))
                cells[first : last + 1] = sign * (last + 1 - first)
    return "".join(cells)


def _bars(rate: Sequence[int], seconds: float) -> str:
    """How many were acknowledged in the time of each column, the most being a full bar."""
    sums = [0.0] * WIDTH
    for second, number in enumerate(rate):
        # A second may be wider than a column, and is then spread over all of its columns.
        first = min(WIDTH - 1, int(second / seconds * WIDTH))
        last = max(first, min(WIDTH - 1, int((second + 1) / seconds * WIDTH) - 1))
        for column in range(first, last + 1):
            sums[column] += number / (last + 1 - first)
    highest = max([*sums, 1.0])
    return "".join(BARS[round(value / highest * (len(BARS) - 1))] for value in sums)


def _rate(records: Sequence[Record]) -> list[int]:
    counts = Counter(int(one.at) for one in records if isinstance(one, Acknowledged))
    return [counts[second] for second in range(max(counts, default=-1) + 1)]
