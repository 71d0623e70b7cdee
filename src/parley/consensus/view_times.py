"""How long to wait in a view: as long as views usually take, with a margin (P29).

All of it is local. No rule that members must agree on depends on a wait, and no timing that others claim is used.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MARGIN = 8  # times a typical view
RECENT = 16  # views, whose first quartile is the typical one
FEWEST = 5  # measured views before that is believed


@dataclass(frozen=True, slots=True)
class Waits:
    """The limits of waits, in ms. No wait is shorter than `floor`: it covers a block that fills, travels and takes the longest to execute."""

    floor: int
    view_timeout: int  # without measurements; with them, `MARGIN` typical views are not waited for longer
    longest: int
    heartbeat: int
    tolerated: int  # failures in a row that crashed leaders alone can cause


class ViewTimes:
    """What is known of the last views, and the wait that follows from it."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._failures = 0
        self._most_failures = waits.tolerated + _doublings(waits.floor, waits.longest)

    def certified(self, took: int, *, has_work: bool) -> None:
        """A view has ended with its certificate, `took` ms after it began or there was something to do in it.

        If it took less than a heartbeat and this member knows of no work, it says nothing about how long views take.
        """
        if (own := took - self._idle(has_work=has_work)) >= 0:
            self._recent.append(own)
        self._failures = max(0, self._failures - 1)

    def failed(self) -> None:
        """A view has ended without one, although its leader could be reached.

        Failures beyond the longest wait are not counted, so that the waits are soon short again after an outage.
        """
        self._failures = min(self._failures + 1, self._most_failures)

    def duration(self, *, has_work: bool, reachable: bool) -> int:
        """How long to wait. `reachable`: whether there is a connection to the leader.

        Without one there is nothing to hope for, so the wait is short and does not grow. But it is never shorter than a
        view takes: a member that has given up no longer votes in the view, and with f liars it ends the view for all.
        """
        if reachable:
            backoff = max(0, self._failures - self._waits.tolerated)
            wait = min(self._usual() << backoff, self._waits.longest)
        else:
            wait = self._within_limits(self._typical() or 0)
        return wait + self._idle(has_work=has_work)

    def repeat(self, times: int) -> int:
        """How long to wait before a timeout is sent again that was sent `times` before: longer each time (T11)."""
        return max(1, min(self._usual() << times, self._waits.view_timeout) // 2)

    def _idle(self, *, has_work: bool) -> int:
        """How long a leader waits before it proposes (P2)."""
        return 0 if has_work else self._waits.heartbeat

    def _usual(self) -> int:
        """The wait without failures."""
        typical = self._typical()
        return self._waits.view_timeout if typical is None else self._within_limits(MARGIN * typical)

    def _within_limits(self, wait: int) -> int:
        return min(max(self._waits.floor, wait), self._waits.view_timeout)

    def _typical(self) -> int | None:
        """The first quartile of the last view times, or None while too few are measured.

        Not the median: a liar can slow down its own view and the one before, whose votes it collects, so that f of them
        slow down nearly two thirds.
        """
        return sorted(self._recent)[len(self._recent) // 4] if len(self._recent) >= FEWEST else None


def _doublings(shortest: int, longest: int) -> int:
    """How often a wait doubles until it is the longest."""
    return ((longest - 1) // shortest).bit_length()
