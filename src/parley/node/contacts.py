"""Watches the contact with all other brokers, and tells the operator by name who is down or slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from parley.net.limits import TokenBucket
from parley.node.contact import SILENCE_MS, Contact, Trouble
from parley.node.logs import Log

LOOK_MS = 500  # between two looks
LATE_MS = 500  # a look that is later than this shows that this process stood still itself
SLOW_MS, FAST_MS = 250, 200  # the round trip above which a broker is slow, and below which it no longer is
SLOW_TIMES, FAST_TIMES = 3, 2  # the same, in round trips of the others
MINUTE = 60  # tokens that one line costs, at one token per second
BURST_OF_LINES = 10  # about one broker; then one in a minute


class Contacts:
    """A contact for each other broker, by its index. `changed` learns who has come up or gone down."""

    def __init__(self, names: dict[int, str], log: Log, ticks: Callable[[], int]) -> None:
        self._ticks = ticks
        self._looked = ticks()
        self._by_index = {index: Contact(ticks, self._on_change) for index in names}
        self._indexes = {contact: index for index, contact in self._by_index.items()}
        self._told = {index: _Told(log.bind(peer=name), ticks) for index, name in names.items()}
        self.changed: Callable[[int, bool], None] = _nothing

    def __getitem__(self, index: int) -> Contact:
        return self._by_index[index]

    def start(self, changed: Callable[[int, bool], None]) -> None:
        """Count the time from now on."""
        self.changed = changed
        self._looked = self._ticks()
        for contact in self._by_index.values():
            contact.start()

    def up(self, index: int) -> bool:
        return index in self._by_index and self._by_index[index].up

    def round_trip_ms(self, index: int) -> int | None:
        return self._by_index[index].round_trip_ms if index in self._by_index else None

    def is_slow(self, index: int) -> bool:
        return index in self._told and self._told[index].slow

    def look(self) -> None:
        """Judge all brokers by what is known now. To be called every `LOOK_MS`."""
        now = self._ticks()
        late, self._looked = now - self._looked - LOOK_MS, now
        for index, contact in self._by_index.items():
            if late > LATE_MS:
                contact.forgive(late)
            contact.judge()
            if not contact.up and now - contact.down_since >= SILENCE_MS:
                self._told[index].is_down(contact)
        for index in self._by_index:
            self._judge_speed(index)

    def _on_change(self, contact: Contact) -> None:
        index = self._indexes[contact]
        if contact.up:
            self._told[index].is_up(contact)
        else:
            self._told[index].slow = False
        self.changed(index, contact.up)

    def _judge_speed(self, index: int) -> None:
        own = self._by_index[index].round_trip_ms
        others = _known(contact.round_trip_ms for at, contact in self._by_index.items() if at != index)
        if own is None or not others:
            self._told[index].slow = False
            return
        typical, told = median(others), self._told[index]
        if not told.slow and own > SLOW_MS and own > SLOW_TIMES * typical:
            told.is_slow(own)
        elif told.slow and (own < FAST_MS or own < FAST_TIMES * typical):
            told.is_fast(own)


class _Told:
    """What the log has said of one broker. The first line after a quiet minute is never held back."""

    def __init__(self, log: Log, ticks: Callable[[], int]) -> None:
        self._log = log
        self._ticks = ticks
        self._lines = {kind: TokenBucket(1, BURST_OF_LINES * MINUTE) for kind in ("down", "up", "slow")}
        self._kept_back = dict.fromkeys(self._lines, 0)
        self._why: Trouble | None = None  # why it is down; None: it is not
        self._down_said = self._slow_said = False
        self.slow = False

    def is_down(self, contact: Contact) -> None:
        """Once for each time that it is down."""
        if self._why is None and (why := contact.trouble()) is not None:
            self._why = why
            if count := self._count("down"):
                self._down_said = True
                since = self._ticks() - contact.down_since
                self._log.warning(
                    "peer_down", why=why.value, detail=contact.problem, down_ms=since, count=count
                )

    def is_up(self, contact: Contact) -> None:
        # An operator who has read that it is down must read that it is up again.
        count = 1 if self._down_said else self._count("up")
        if count:
            self._log.info("peer_up", down_ms=self._ticks() - contact.down_since, count=count)
        self._why, self._down_said = None, False

    def is_slow(self, round_trip_ms: int) -> None:
        self.slow = True
        count = self._count("slow")
        self._slow_said = bool(count)
        if count:
            self._log.warning("peer_slow", round_trip_ms=round_trip_ms, count=count)

    def is_fast(self, round_trip_ms: int) -> None:
        self.slow = False
        if self._slow_said:
            self._log.info("peer_fast", round_trip_ms=round_trip_ms)

    def _count(self, kind: str) -> int:
        """How often it happened since it was said last, now included; 0: it is not to be said now."""
        self._kept_back[kind] += 1
        if not self._lines[kind].take(MINUTE, self._ticks()):
            return 0
        count, self._kept_back[kind] = self._kept_back[kind], 0
        return count


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _nothing(_index: int, _up: bool) -> None:  # noqa: FBT001 - as `changed` is called
    """Ignore a change: used until `start`."""
