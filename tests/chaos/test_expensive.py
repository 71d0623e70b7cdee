"""Expensive clients on real brokers, on a small scale: every attack is made, and what it costs others is told.

Nothing here judges times: how long a bystander waits on a busy machine says nothing. Figures at full size are in
docs/performance.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.chaos.bars import quantile
from parley.chaos.bystander import PUBLICATION, ROW
from parley.chaos.expensive.attacks import ATTACKS
from parley.chaos.expensive.shares import costliest
from parley.chaos.expensive.sizes import FULL, SMALL, Size
from parley.chaos.gauges import LAG, RECEIPTS, Peaks, longest_hold, parse
from parley.chaos.history import Measured
from parley.chaos.nemesis import EXPENSIVE
from parley.chaos.report import report
from parley.chaos.runner import Settings, run
from parley.modules.publishing.budget import MAX_COMPARED
from parley.modules.subscriptions.matching import HEAD, LEAST

SECONDS = 4.5  # in which all attacks are begun
SEED = 0
TIMED = {"fair-latency", "bounded-execution", "free-loop"}
# What an attack on this scale does; those that look for something by themselves must not find it.
PASSED = {"commit", "sequences", "sessions"}


def test_a_bystander_works_on_while_expensive_clients_attack(tmp_path: Path) -> None:
    found = report(run(Settings(tmp_path / "network", SECONDS, (EXPENSIVE,), SEED, size=SMALL)))
    assert [one for one in found.details if one.name not in TIMED] == []
    assert found.expense is not None
    outcomes = {one.attack: one.outcome for one in found.expense.attacks}
    assert outcomes.keys() == ATTACKS.keys()
    assert not [outcome for outcome in outcomes.values() if outcome.startswith(("given up", "not over"))]
    assert {one.attack for one in found.expense.attacks if one.held} == PASSED
    for waiting in (found.expense.quiet, found.expense.attacked):
        assert waiting.keys() == {PUBLICATION, ROW}
        assert all(one.begun > 0 and one.unanswered == 0 for one in waiting.values())
    assert len(found.expense.brokers) == 4
    assert all(one.memory_bytes for one in found.expense.brokers.values())


@pytest.mark.parametrize("size", [FULL, SMALL])
def test_a_costly_batch_is_one_that_may_be_published_and_takes_nearly_all_that_it_may(size: Size) -> None:
    constraints, messages = costliest(size.subscriptions)
    cost = constraints * (HEAD + messages * LEAST)
    assert messages > 0
    assert cost <= MAX_COMPARED
    assert size is SMALL or cost > 0.9 * MAX_COMPARED


METRICS = """\
# HELP parley_loop_lag_seconds By how much the event loop was late.
parley_loop_lag_seconds 0.25
parley_batches_total{result="Busy"} 3.0
parley_torn
"""
HOLDS = """\
parley_loop_held_max_seconds{job="start"} 0.75
parley_loop_held_max_seconds{job="execution"} 0.5
parley_loop_held_max_seconds{job="scrub"} 0.125
parley_loop_held_max_seconds{job="timer"} 0.0625
"""


def test_metrics_are_read_as_far_as_they_are_there() -> None:
    samples = parse(METRICS)
    assert samples == {"parley_loop_lag_seconds": 0.25, 'parley_batches_total{result="Busy"}': 3.0}
    assert longest_hold(samples) == (0.25, "any")
    assert longest_hold(parse(METRICS + HOLDS)) == (0.125, "scrub")
    assert longest_hold(parse("")) is None


def test_the_largest_figures_of_a_broker_are_kept_over_restarts() -> None:
    peaks = Peaks()
    for memory, lag in ((5, 0.25), (9, 0.5), (None, None), (2, 0.125)):
        peaks.note("beta-1", memory, {} if lag is None else {LAG: lag, RECEIPTS: 8.0})
    (one,) = peaks.records(7.0)
    assert one == Measured(7.0, "beta-1", 9, None, 0.5, 8, "any")


@pytest.mark.parametrize(
    ("times", "percent", "found"),
    [([], 99, None), ([1.0], 50, 1.0), ([1.0, 2.0], 50, 1.0), ([1.0, 2.0, 3.0], 99, 3.0)],
)
def test_a_quantile_is_a_time_that_was_measured(
    times: list[float], percent: int, found: float | None
) -> None:
    assert quantile(times, percent) == found
