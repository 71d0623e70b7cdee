"""Virtual time, and one hash over everything that happened in it: two runs of a seed are the same run or they are not."""

from __future__ import annotations

import hashlib
import heapq
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Clock(Generic[Event]):
    """A queue of future events; `now` is the time of the last one taken, in milliseconds.

    Events happen in the order of their times, and events of one time in the order they were scheduled.
    """

    def __init__(self) -> None:
        self.now = 0
        self._scheduled = 0
        self._queue: list[tuple[int, int, Event]] = []

    def schedule(self, delay: int, event: Event) -> None:
        assert delay >= 0, "nothing is scheduled in the past"
        heapq.heappush(self._queue, (self.now + delay, self._scheduled, event))
        self._scheduled += 1

    def next(self, until: int) -> Event | None:
        """Take the next event, or move to `until` and return None if nothing happens before."""
        if not self._queue or self._queue[0][0] > until:
            self.now = max(self.now, until)
            return None
        self.now, _, event = heapq.heappop(self._queue)
        return event


class Trace:
    """SHA-256 over the events of a run."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, time: int, replica: int, kind: bytes, data: bytes) -> None:
        self._hash.update(b"%d %d %b %d " % (time, replica, kind, len(data)))
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
