"""Background work yields by the clock, and whoever holds the event loop too long is named."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from parley.node.holding import (
    BOUND_MS,
    COLLECTION,
    DISK,
    EXECUTION,
    JOBS,
    MESSAGE,
    OTHER,
    QUESTION,
    REST_SECONDS,
    STRETCH_MS,
    Background,
    Holding,
    ProcessorTimes,
    _stack,
    times_of_thread,
)
from parley.node.telemetry.health import BEAT_MS, Pulse
from parley.sync.timers import CareTimer

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1
        self.waited_ns = 0

    def __call__(self) -> int:
        return self.now

    def passes(self, ms: int, *, without_processor: int = 0) -> None:
        self.now += ms * MS
        self.waited_ns += without_processor * MS

    def times(self) -> ProcessorTimes:
        return ProcessorTimes(self.now - self.waited_ns, self.waited_ns)


class Lines:
    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **values: object) -> None:
        self.said.append((event, values))

    error = warning


class Planned:
    """What a loop was asked to call later."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay: float, call: Callable[[], None]) -> None:
        self.calls.append((delay, call))

    def turn(self) -> float:
        delay, call = self.calls.pop(0)
        call()
        return delay


@pytest.mark.parametrize(("takes", "at_a_stretch"), [(1, STRETCH_MS), (2, 3), (STRETCH_MS, 1), (40, 1)])
def test_a_job_of_many_steps_has_five_milliseconds_at_a_stretch_however_long_each_takes(
    takes: int, at_a_stretch: int
) -> None:
    clock, planned, fired = Clock(), Planned(), []

    def fire(timer: CareTimer) -> None:
        fired.append(timer.round)
        clock.passes(takes)
        if timer.round < 30:
            background.go_on(CareTimer(timer.round + 1, "scrub"))

    background = Background(fire, planned.later, clock)
    background.go_on(CareTimer(1, "scrub"))
    delays = []
    while planned.calls:
        before = len(fired)
        delays.append(planned.turn())
        assert len(fired) - before <= at_a_stretch
    assert fired == list(range(1, 31))
    assert delays == [0, *[REST_SECONDS] * (-(-30 // at_a_stretch) - 1)]


def held(clock: Clock, lines: Lines) -> Holding:
    return Holding(cast("Any", lines), clock, clock.times)


def test_the_job_that_held_the_loop_is_named_and_not_those_around_it() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)

    def message() -> None:
        clock.passes(2)
        holding.run(EXECUTION, "block 7", lambda: clock.passes(60))
        holding.run(DISK, "the store", lambda: clock.passes(3))

    holding.run(MESSAGE, "1 Proposal", message)
    told = {"job": EXECUTION, "what": "block 7", "count": 1, "held_ms": 65, "own_ms": 60}
    assert lines.said == [("loop_held", {**told, "busy_ms": 65, "waited_ms": 0})]
    longest = {job: ns // MS for job, ns in holding.longest.items() if ns}
    assert longest == {EXECUTION: 60, DISK: 3, MESSAGE: 2}


@pytest.mark.parametrize("generation", [0, 2])
def test_a_collection_of_cycles_in_the_middle_of_a_job_is_told_of_and_not_the_job(generation: int) -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)

    def message() -> None:
        clock.passes(2)
        holding.collecting("start", {"generation": generation})
        clock.passes(90, without_processor=30)
        holding.collecting("stop", {"generation": generation})

    holding.run(MESSAGE, "1 Vote", message)
    told = {"what": f"generation {generation}", "count": 1, "held_ms": 62, "own_ms": 60}
    assert lines.said == [("loop_held", {"job": COLLECTION, **told, "busy_ms": 62, "waited_ms": 30})]
    longest = {job: ns // MS for job, ns in holding.longest.items() if ns}
    assert longest == {COLLECTION: 60, MESSAGE: 2}


def test_a_hold_within_the_bound_is_measured_and_not_told_of() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)
    holding.run(QUESTION, "Fetch", lambda: clock.passes(BOUND_MS - 1))
    assert not lines.said
    assert holding.longest[QUESTION] == (BOUND_MS - 1) * MS


def test_who_holds_the_loop_again_and_again_is_told_of_once_in_a_while() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)
    for _ in range(50):
        holding.run(QUESTION, "Fetch", lambda: clock.passes(BOUND_MS))
    assert len(lines.said) == 1
    clock.passes(10_000)
    holding.run(QUESTION, "Fetch", lambda: clock.passes(BOUND_MS))
    assert lines.said[-1][1]["count"] == 50


def test_a_job_that_fails_has_held_the_loop_as_well() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)

    def fail() -> None:
        clock.passes(70)
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        holding.run(MESSAGE, "1 Vote", fail)
    holding.run(QUESTION, "Fetch", lambda: clock.passes(1))
    assert [values["job"] for _, values in lines.said] == [MESSAGE]


def test_a_job_is_not_to_blame_for_the_time_in_which_it_had_no_processor() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)
    pulse = Pulse(lambda: clock.now // MS, holding)

    def message() -> None:
        clock.passes(30, without_processor=10)
        holding.run(EXECUTION, "block 7", lambda: clock.passes(90, without_processor=60))

    clock.passes(BEAT_MS - 20)
    holding.run(MESSAGE, "1 Vote", message)
    clock.passes(70, without_processor=70)
    pulse.beat()
    assert {job: ns // MS for job, ns in holding.longest.items() if ns} == {MESSAGE: 20, EXECUTION: 30}
    told = {"job": EXECUTION, "what": "block 7", "count": 1, "held_ms": 50, "own_ms": 30}
    assert lines.said == [("loop_held", {**told, "busy_ms": 50, "waited_ms": 70})]


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="only Linux reports it")
def test_the_system_tells_how_long_a_thread_ran_and_that_it_waited_if_it_had_to() -> None:
    """One processor for two threads that never rest: each has to wait about as long as it runs, whatever else goes on."""
    one = {min(os.sched_getaffinity(0))}
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(rival.pid, one)
        with ThreadPoolExecutor(1) as pool:
            before, after, worked = pool.submit(_work, one).result()
    finally:
        rival.kill()
        rival.wait()
    assert after.ran_ns - before.ran_ns >= worked * 9 // 10
    assert after.waited_ns > before.waited_ns


def _work(processors: set[int]) -> tuple[ProcessorTimes, ProcessorTimes, int]:
    """The times before and after this thread has worked for 0.2 s of a processor, and what Python says that it worked."""
    os.sched_setaffinity(0, processors)
    times, began = times_of_thread(), time.thread_time_ns()
    before = times()
    while (worked := time.thread_time_ns() - began) < 200 * MS:
        pass
    return before, times(), worked


def test_a_hold_that_has_no_name_is_seen_by_the_lateness_of_the_loop() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)
    pulse = Pulse(lambda: clock.now // MS, holding)
    # Jobs, and time without a processor, explain only what was late after the beat was due.
    for early, without, late, unnamed in ((0, 0, 20, 0), (30, 40, 10, 80), (40, 0, 0, 0), (0, 0, 40, 10)):
        holding.run(MESSAGE, "1 Vote", lambda ms=early: clock.passes(ms))  # type: ignore[misc]
        clock.passes(BEAT_MS - early, without_processor=without)
        holding.run(MESSAGE, "1 Vote", lambda: None)
        clock.passes(unnamed)
        holding.run(MESSAGE, "1 Vote", lambda ms=late: clock.passes(ms))  # type: ignore[misc]
        pulse.beat()
        assert holding.longest[OTHER] >= unnamed * MS
    assert [(values["job"], values["held_ms"]) for _, values in lines.said] == [(OTHER, 80)]
    assert holding.longest[OTHER] == 80 * MS


def test_a_job_that_never_ends_is_named_while_it_goes_on() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)

    def endless() -> None:
        clock.passes(2_500)
        holding.stuck(1, "compare (derived.py:34)")  # what the thread beside the loop does

    holding.run("scrub", CareTimer(9, "scrub"), endless)
    assert lines.said[0][0] == "loop_stuck"
    assert lines.said[0][1]["job"] == "scrub"
    assert lines.said[0][1]["at"] == "compare (derived.py:34)"


def test_a_job_that_goes_on_after_one_inside_it_is_named_again() -> None:
    clock, lines = Clock(), Lines()
    holding = held(clock, lines)

    def endless() -> None:
        holding.run(DISK, "the store", lambda: clock.passes(1))
        clock.passes(2_500)
        holding.stuck(1, "")

    holding.run(MESSAGE, "1 Proposal", endless)
    assert (lines.said[0][1]["job"], lines.said[0][1]["what"]) == (MESSAGE, "1 Proposal")


def test_every_job_of_the_caretaker_has_a_name() -> None:
    assert {"scrub", "erasure", "repair", "rebuild", "backfill"} < set(JOBS)


def test_where_a_thread_is_can_be_seen_again_and_again_while_it_runs() -> None:
    """A broker that had been stopped crashed once, while the frames of its running loop were followed."""
    done = threading.Event()

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)

    def busy() -> None:
        while not done.is_set():
            deeper(50)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert thread.ident is not None
        seen = {_stack(thread.ident) for _ in range(300)}
    finally:
        done.set()
        thread.join()
    assert any("deeper (test_holding.py:" in one for one in seen)
    assert _stack(thread.ident) == ""
