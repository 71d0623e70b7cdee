"""Figures say what was read: rates over the window, costs shared by what was acknowledged, the best run and the spread."""

from __future__ import annotations

from array import array

import pytest

from parley.bench.figures import Readings, case, percentile, run_of, spread
from parley.bench.jobs import Report
from parley.bench.measure import enough_in_flight
from parley.bench.profile import summary
from parley.bench.traffic import interpolated
from parley.bench.usage import Usage


def test_a_run_shares_all_cpu_time_by_what_was_acknowledged() -> None:
    before = {"a": Usage(1_000, 5), "b": Usage(2_000, 5)}, {"client-1": Usage(10, 1)}
    after = {"a": Usage(61_000, 7_000_000), "b": Usage(32_000, 9_000_000)}, {"client-1": Usage(10_010, 1)}
    reports = [
        Report(publications=600, latencies_us=[1_000, 3_000], height=4),
        Report(publications=400, latencies_us=[2_000], failed=1, height=7),
    ]
    run = run_of(Readings(2.0, (before[0], after[0]), (before[1], after[1]), reports))
    assert (run.publications, run.publications_per_s) == (1_000, 500.0)
    assert (run.cpu_us_brokers, run.cpu_us_client, run.cpu_us_per_publication) == (90.0, 10.0, 100.0)
    assert (run.p50_ms, run.p99_ms) == (2.0, 3.0)
    assert (run.rss_mb, run.failed, run.height) == (9.0, 1, 7)
    assert run.cpu == {"a": 0.03, "b": 0.015, "client-1": 0.005}


@pytest.mark.parametrize(
    ("part", "value"), [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100), (0.001, 1), (0.0, 1)]
)
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(part: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), part) == value
    assert percentile([], part) == 0.0


def test_the_spread_is_the_distance_of_the_extremes_by_the_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == 0.3
    assert spread([5.0]) == 0.0
    assert spread([0.0, 0.0]) == 0.0


def test_a_case_takes_the_best_or_the_median_and_compares_it() -> None:
    best = case("rate", [1.0, 4.0, 2.0], "1/s", 8.0, best=True)
    assert (best.value, best.ratio, best.spread) == (4.0, 0.5, 1.5)
    middle = case("time", [1.0, 4.0, 2.0], "s", None)
    assert (middle.value, middle.baseline, middle.ratio) == (2.0, None, None)


@pytest.mark.parametrize(("at", "total"), [(0.5, 0.0), (1.0, 0.0), (2.0, 50.0), (3.0, 100.0), (9.0, 400.0)])
def test_totals_are_interpolated_between_samples(at: float, total: float) -> None:
    assert interpolated(array("d", [1.0, 3.0, 4.0]), array("d", [0, 100, 400]), at) == total


def test_there_was_nothing_before_the_first_sample() -> None:
    assert interpolated(array("d"), array("d"), 1.0) == 0.0


@pytest.mark.parametrize(
    ("size", "batch", "batches"),
    [(128, 1, 480), (128, 100, 160), (128, 1_000, 16), (128, 10_000, 4), (65_536, 10, 12)],
)
def test_what_is_in_flight_is_bounded_in_messages_batches_and_bytes(
    size: int, batch: int, batches: int
) -> None:
    assert enough_in_flight(size, batch) == batches


def test_a_profile_tells_costs_alone_and_together() -> None:
    text = summary("broker", ["main;apply;hash 6", "main;apply 3", "main;apply;hash;apply 1"])
    alone, together = text.partition("with all it calls")[::2]
    assert alone.startswith("broker: 10 samples")
    assert [line.split() for line in alone.splitlines() if "%" in line] == [
        ["60.0%", "hash"],
        ["40.0%", "apply"],
    ]
    assert "100.0%  main" in together
    assert "100.0%  apply" in together  # a frame that calls itself counts once
    assert " 70.0%  hash" in together
