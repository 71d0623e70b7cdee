"""How far this machine's clock is from the others': block times are judged by it, so a broker that is off must say so (P5).

A time that another broker sends may arrive late, so that its clock seems to be behind: only the answer to a recent ping
bounds that delay. A clock that seems to be ahead is ahead. The median over at least f+1 brokers is shown to an operator and
used for nothing else. All in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from parley.consensus.committee import faults

TOLERATED = 2_000  # what voters accept of a block time ahead of their own clock
PROMPT = 1_000  # an answer that took longer says too little: the time may be off by half of that


class WallClock:
    """The time in ms since 1970; when the machine's clock is set back, it stands still instead."""

    def __init__(self, system: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._system = system
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last, self._system())
        return self._last

    def set_back(self) -> str:
        """What to tell an operator if the machine's clock was set back further than is tolerated."""
        behind = self() - self._system()
        if behind <= TOLERATED:
            return ""
        return (
            f"This machine's clock was set back, and is {behind / 1_000:.1f} s behind what this broker has said already. "
            f"If the clock is right now, restart the broker."
        )


def monotonic() -> int:
    """Milliseconds of a clock that nobody sets: for what lasts, not for what is dated."""
    return time.monotonic_ns() // 1_000_000


class ClockWatch:
    """Positive offsets: the others are ahead, this clock is slow."""

    def __init__(self, size: int, index: int) -> None:
        self._enough = faults(size) + 1
        self._index = index
        self._offsets: dict[int, int] = {}  # the newest of each other broker

    def heard(self, peer: int, theirs: int, now: int) -> None:
        """A broker has said what time it was when it said so, however long ago that may be."""
        if peer != self._index and theirs > now:
            self._offsets[peer] = theirs - now

    def answered(self, peer: int, theirs: int, now: int, round_trip: int) -> None:
        """A broker was asked what time it is, and the answer came after `round_trip`."""
        if peer != self._index and round_trip <= PROMPT:
            self._offsets[peer] = theirs - (now - round_trip // 2)

    def forget(self, peer: int) -> None:
        """What a broker said that is no longer there says nothing of the present."""
        self._offsets.pop(peer, None)

    def offset(self) -> int | None:
        """The median difference, or None while too few brokers have been heard."""
        if len(self._offsets) < self._enough:
            return None
        ordered = sorted(self._offsets.values())
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        return min(middle, key=abs)  # of two, the one that alarms less

    def wrong_by(self) -> int:
        """The offset if it is more than what is tolerated, else 0."""
        offset = self.offset()
        return offset if offset is not None and abs(offset) > TOLERATED else 0


def advice(offset: int) -> str:
    return (
        f"This machine's clock is {abs(offset) / 1_000:.1f} s {'behind' if offset > 0 else 'ahead of'} the clocks of the other "
        f"brokers; more than {TOLERATED / 1_000:g} s is not tolerated. Set it, and keep it set with NTP."
    )
