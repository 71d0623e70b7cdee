"""Whether messages get through to another broker and back, judged by the pings that both sides send.

Time is in milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from statistics import median_low

SILENCE_MS = 3_000  # without a sign of life, after which a broker is down
# Without an answer for this long a broker no longer answers: it gets a ping every second.
DOUBT_MS = 2_000
MAX_PINGS = 8  # unanswered ones that are remembered; a link without an answer ends before there are more
ROUND_TRIPS = 5  # of which the middle one counts, so that one late answer changes nothing
NUMBERS = 2**32


class Trouble(Enum):
    """Why a broker is down; the first that applies."""

    GARBAGE = "sends garbage"
    UNREACHABLE = "cannot be reached"
    NO_ANSWER = "does not answer"
    UNHEARD = "not heard from"


class Contact:
    """What is known of one other broker: the link to it, its answers there, and the connection on which it speaks.

    It is up while it answers on our link and is heard on its own. `changed` is called whenever that changes.
    """

    def __init__(self, ticks: Callable[[], int], changed: Callable[[Contact], None]) -> None:
        self._ticks = ticks
        self._changed = changed
        self.up = False
        self.down_since = ticks()
        self.problem = ""  # why the last connection to it failed or ended, in words
        self._opened: int | None = None  # when the link to it was connected
        self._answered: int | None = None  # when the last answer came on that link
        self._heard: int | None = None  # when something was heard last, on a connection that is still open
        self._banned_until: int | None = None
        self._number = 0
        # Not answered yet: when they were sent; None: not to be measured.
        self._pings: dict[int, int | None] = {}
        self._round_trips: deque[int] = deque(maxlen=ROUND_TRIPS)

    def start(self) -> None:
        """Count the time from now on."""
        self.down_since = self._ticks()

    # -- our link to it ---------------------------------------------------------------------------------------------

    def opened(self) -> None:
        self._opened, self._answered = self._ticks(), None
        self._pings.clear()
        self.judge()

    def closed(self, problem: str) -> None:
        """The link has ended, or could not be made."""
        self._opened = self._answered = None
        self.problem = problem
        self.judge()

    def ping(self) -> int:
        """The number of a ping that is sent now."""
        self._number = (self._number + 1) % NUMBERS
        if len(self._pings) >= MAX_PINGS:
            del self._pings[next(iter(self._pings))]
        self._pings[self._number] = self._ticks()
        return self._number

    def answered(self, number: int) -> int | None:
        """It has answered a ping: the round trip, or None if that was not measured. Made-up numbers count for nothing."""
        if number not in self._pings:
            return None
        now, sent = self._ticks(), self._pings[number]
        while next(iter(self._pings)) != number:  # older ones are answered with it
            del self._pings[next(iter(self._pings))]
        del self._pings[number]
        self._answered, self.problem = now, ""
        if sent is not None:
            self._round_trips.append(now - sent)
        if not self.up:
            self.judge()
        return None if sent is None else now - sent

    @property
    def silent(self) -> bool:
        """Whether the link is connected and of no use: nothing was answered for too long."""
        return self._opened is not None and self._is_old(self._answered or self._opened)

    # -- its connection to us -----------------------------------------------------------------------------------------

    def heard(self) -> None:
        self._heard = self._ticks()
        if not self.up:
            self.judge()

    def left(self) -> None:
        """The connection on which it spoke has ended, and there is no newer one."""
        self._heard = None
        self.judge()

    def banned(self, milliseconds: int) -> None:
        """It is banned: for so long nothing is read from it."""
        self._banned_until = self._ticks() + milliseconds
        self.judge()

    # -- judgement ----------------------------------------------------------------------------------------------------

    def forgive(self, late: int) -> None:
        """This process stood still for so long, and heard nothing meanwhile: that time does not count."""
        now = self._ticks()
        self._opened = _later(self._opened, late, now)
        self._answered = _later(self._answered, late, now)
        self._heard = _later(self._heard, late, now)
        self.down_since = min(now, self.down_since + late)
        self._pings = dict.fromkeys(self._pings)  # their answers have waited, too

    def judge(self) -> None:
        """Say whether it is up, by what is known now."""
        found = self.trouble()
        if self.up is (found is None):
            return
        self.up = found is None
        if found is not None:
            signs = {Trouble.NO_ANSWER: self._answered, Trouble.UNHEARD: self._heard}
            self.down_since = signs.get(found) or self._ticks()
            self._round_trips.clear()
        self._changed(self)

    def trouble(self) -> Trouble | None:
        """What is wrong now, if anything."""
        if self._banned_until is not None and self._ticks() < self._banned_until:
            return Trouble.GARBAGE
        if self._opened is None:
            return Trouble.UNREACHABLE
        if self._answered is None or self._is_old(self._answered):
            return Trouble.NO_ANSWER
        if self._heard is None or self._is_old(self._heard):
            is_answering = self._ticks() - self._answered < DOUBT_MS
            return Trouble.UNHEARD if is_answering else Trouble.NO_ANSWER
        return None

    @property
    def round_trip_ms(self) -> int | None:
        """How long its answers take; None: it is down."""
        return median_low(self._round_trips) if self.up and self._round_trips else None

    def _is_old(self, sign: int) -> bool:
        return self._ticks() - sign >= SILENCE_MS


def _later(time: int | None, late: int, now: int) -> int | None:
    return None if time is None else min(now, time + late)
