"""Who holds the event loop, and for how long: what takes longer than it may is named, in a metric and in the log.

Everything of a broker runs on one loop, so whatever does not return to it makes all clients and brokers wait. Each job
says when it begins and ends; what takes long inside another one is counted for itself. Time in which the system gave the
thread no processor is not counted, because no job can do anything about it; the lag of the loop includes it. The loop cannot
report a job that never ends, so another thread watches.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from time import monotonic_ns
from typing import NamedTuple, TypeVar, get_args

from parley.node.logs import Log, Throttled
from parley.sync.timers import CareTimer, Job

BOUND_MS = 50  # for which a job may hold the loop before it is logged
SHORT_MS = 5  # for shorter jobs the time without a processor is not looked up
STRETCH_MS = 5  # of background work, after which everybody else has a turn
REST_SECONDS = 0.005
WATCH_SECONDS = 1.0  # between two looks from outside
STUCK_MS = 2_000  # after which a job is told of that still holds the loop
MAX_STACK = 6  # functions of it that are told

# Besides the jobs of the caretaker. `other` is all that has no name of its own, as far as the loop was late for it.
START, EXECUTION, MESSAGE, TIMER, SUBMISSION = "start", "execution", "message", "timer", "submission"
QUESTION, DELIVERY, METRICS, DISK = "question", "delivery", "metrics", "disk"
COLLECTION, OTHER = "collection", "other"
JOBS: tuple[str, ...] = (
    START,
    EXECUTION,
    MESSAGE,
    TIMER,
    SUBMISSION,
    QUESTION,
    DELIVERY,
    METRICS,
    DISK,
    COLLECTION,
    *get_args(Job),
    OTHER,
)

T = TypeVar("T")
_MS = 1_000_000
_CALL = re.compile(r'File "(.*)", line (\d+) in (.*)')  # as `faulthandler` writes it


class ProcessorTimes(NamedTuple):
    """For how long a thread ran, and for how long it was ready to run and had no processor."""

    ran_ns: int
    waited_ns: int


def times_of_thread() -> Callable[[], ProcessorTimes]:
    """A function that reads the times of the calling thread from Linux; zeros on other systems."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return no_times

    def read() -> ProcessorTimes:
        ran, waited, _ = os.pread(file, 64, 0).split()
        return ProcessorTimes(int(ran), int(waited))

    return read


def no_times() -> ProcessorTimes:
    return ProcessorTimes(0, 0)


class Holding:
    """The longest hold by each job since the process began. `ticks` are nanoseconds of a clock that nobody sets."""

    def __init__(
        self,
        log: Log | None = None,
        ticks: Callable[[], int] = monotonic_ns,
        times: Callable[[], ProcessorTimes] = no_times,
    ) -> None:
        """`times` reads the processor times of the loop's thread."""
        self._log = log
        self._ticks = ticks
        self._times = times
        self._throttled = Throttled()
        self._began = 0  # when the loop was taken; 0: it is free
        # When the collection that goes on began, and the times then.
        self._collecting = 0, ProcessorTimes(0, 0)
        self._inside = 0  # ns of the jobs that ended inside the one that goes on
        self._name: tuple[str, object] = (OTHER, "")  # of the job that goes on
        # In this hold: ns, job, and what it was about.
        self._largest: tuple[int, str, object] = (0, OTHER, "")
        self.longest = dict.fromkeys(JOBS, 0)  # ns
        self._due = 0  # when the loop is to beat next
        self._explained = 0  # ns since then that jobs took
        self._waited = 0  # ns that the thread had waited for a processor by then, and has since inside jobs

    def run(self, job: str, what: object, action: Callable[[], T]) -> T:
        """Do it in the name of the job; `what` says more of it, if it has to be told of (by `str`, and only then)."""
        outer, inside, began, before = self._name, self._inside, self._ticks(), self._times()
        outermost = not self._began
        if outermost:
            self._began, self._largest = began, (0, OTHER, "")
            if began <= self._due:
                self._waited = before.waited_ns
        self._name, self._inside = (job, what), 0
        try:
            return action()
        finally:
            ended = self._ticks()
            took = ended - began
            after = self._times() if took >= SHORT_MS * _MS else before
            waited = after.waited_ns - before.waited_ns
            held = took - waited
            own = held - self._inside
            self.longest[job] = max(self.longest[job], own)
            if own > self._largest[0]:
                self._largest = own, job, what
            self._name, self._inside = outer, inside + held
            if outermost:
                self._began = 0
                self._explained += max(0, ended - max(began, self._due))
                self._waited += waited
                if held >= BOUND_MS * _MS:
                    self._tell(held, before, after)

    def collecting(self, phase: str, info: Mapping[str, int]) -> None:
        """For `gc.callbacks`: a collection of cycles may begin in the middle of any job, which is not to blame for it."""
        if phase == "start":
            self._collecting = self._ticks(), self._times()
            return
        began, before = self._collecting
        took = self._ticks() - began - (self._times().waited_ns - before.waited_ns)
        self._inside += took
        self.longest[COLLECTION] = max(self.longest[COLLECTION], took)
        if took > self._largest[0]:
            self._largest = took, COLLECTION, f"generation {info['generation']}"

    def beat(self, late_ms: int, next_ms: int) -> None:
        """Note that the loop turns, late by so much, and is to turn again in `next_ms`.

        What neither jobs nor a lack of processors explain is a hold that has no name.
        """
        waited = self._times().waited_ns
        held = max(0, late_ms * _MS - self._explained - (waited - self._waited))
        self.longest[OTHER] = max(self.longest[OTHER], held)
        if held >= BOUND_MS * _MS:
            self._say(OTHER, "", held_ms=held // _MS)
        self._due, self._explained, self._waited = self._ticks() + next_ms * _MS, 0, waited

    def _tell(self, held: int, before: ProcessorTimes, after: ProcessorTimes) -> None:
        own, job, what = self._largest
        busy, waited = after.ran_ns - before.ran_ns, after.waited_ns - before.waited_ns
        self._say(
            job,
            what,
            held_ms=held // _MS,
            own_ms=own // _MS,
            busy_ms=busy // _MS,
            waited_ms=waited // _MS,
        )

    def _say(self, job: str, what: object, **values: object) -> None:
        if self._log is not None and (count := self._throttled.count("loop_held", job, self._ticks() // _MS)):
            self._log.warning("loop_held", job=job, what=str(what), count=count, **values)

    # -- from outside ------------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Meanwhile a thread looks whether a job does not end, and collections are measured; this one is the loop's."""
        over = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(over, threading.get_ident()), name="loop watch", daemon=True
        )
        thread.start()
        gc.callbacks.append(self.collecting)
        try:
            yield
        finally:
            gc.callbacks.remove(self.collecting)
            over.set()
            thread.join()

    def _watch(self, over: threading.Event, loop: int) -> None:
        told = 0
        while not over.wait(WATCH_SECONDS):
            began = self._began
            if began and began != told and self._ticks() - began >= STUCK_MS * _MS:
                told = began
                self.stuck(began, _stack(loop))

    def stuck(self, began: int, stack: str) -> None:
        """Tell of the job that goes on. It may end at any moment: then it is told of as having ended, too."""
        job, what = self._name
        if self._log is not None:
            held = (self._ticks() - began) // _MS
            self._log.error("loop_stuck", job=job, what=str(what), held_ms=held, at=stack)


def _stack(thread: int) -> str:
    """Where a thread is, the innermost function last.

    The interpreter writes it down while no other thread runs. To follow the frames here can crash the process if that
    thread goes on meanwhile, as it does after the whole process was stopped for a while.
    """
    with TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        threads = file.read().decode(errors="replace").split("\n\n")
    of_thread = next((text for text in threads if f"hread 0x{thread:016x}" in text), "")
    found = _CALL.findall(of_thread)[:MAX_STACK]
    return " > ".join(f"{name} ({path.rsplit('/', 1)[-1]}:{line})" for path, line, name in reversed(found))


class Background:
    """Small steps of work that nobody waits for: at most `STRETCH_MS` at a time, by the clock, and then a rest.

    There is one step to go on with at a time: each, when it is fired, may ask for the next one.
    """

    def __init__(
        self,
        fire: Callable[[CareTimer], None],
        later: Callable[[float, Callable[[], None]], object],
        ticks: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._fire = fire
        self._later = later
        self._ticks = ticks
        self._due: deque[CareTimer] = deque(maxlen=2)  # of two, the older one is of no use any more
        self._planned = False

    def go_on(self, timer: CareTimer) -> None:
        self._due.append(timer)
        if not self._planned:
            self._planned = True
            self._later(0, self._stretch)

    def _stretch(self) -> None:
        began = self._ticks()
        while self._due:
            self._fire(self._due.popleft())
            if self._ticks() - began >= STRETCH_MS * _MS:
                break
        self._planned = bool(self._due)
        if self._planned:
            self._later(REST_SECONDS, self._stretch)
