"""How much of this broker a client, an organisation or an address may use, counted while it is here.

Time is that of a clock that nobody sets, in milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from parley.model.bounded import take_off
from parley.net.frames import MAX_BATCH, FrameStream
from parley.net.limits import Entry, Strikes, TokenBucket
from parley.net.messages import MAX_QUESTION
from parley.node.config import Limits
from parley.node.logs import Log, Throttled
from parley.node.telemetry.tally import HANDSHAKE, Tally

STRIKES = 20  # pieces of garbage, within
STRIKE_WINDOW_MS = 60_000  # after which a client is turned away for
BAN_MS = 60_000
MAX_STRUCK = 10_000  # clients that are remembered for garbage
HANDSHAKES = 256  # connections whose other side has not shown yet who it is
HANDSHAKES_PER_SOURCE = 64
PLACES_PER_BROKER = 4  # a link that is dialled anew comes before the old one is known to be dead
UNSENT_BYTES = 256 * 1024 * 1024  # written to clients in all, and not taken by them yet
MEASURE_MS = 100  # between two counts of that while it is too much


def places_for_brokers(brokers: int) -> int:
    """Connections that are kept for other brokers, whoever else comes."""
    return PLACES_PER_BROKER * brokers


@dataclass(eq=False, slots=True)
class Account:
    """What one client or one address has left. Its connections take turns: more of them get it no more."""

    requests: TokenBucket
    bytes: TokenBucket
    connections: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Accounts:
    """An account for everybody who has a connection, and for nobody else."""

    def __init__(self, limits: Limits, connections: int) -> None:
        self._limits = limits
        self._connections = connections
        self._accounts: dict[object, Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, who: object) -> Account | None:
        """Count a connection in; None: it is one too many."""
        account = self._accounts.get(who)
        if account is None:
            limits = self._limits
            account = Account(
                TokenBucket(limits.requests_per_second, max(limits.requests_per_second, MAX_BATCH)),
                TokenBucket(limits.bytes_per_second, max(limits.bytes_per_second, 2 * MAX_QUESTION)),
            )
        if account.connections >= self._connections:
            return None
        account.connections += 1
        self._accounts[who] = account
        return account

    def leave(self, who: object) -> None:
        account = self._accounts[who]
        account.connections -= 1
        if not account.connections:
            del self._accounts[who]


async def pay(accounts: list[Account], frames: list[bytes], ticks: Callable[[], int]) -> None:
    """Wait until debts are paid and these frames are within what the accounts allow: who is too fast is read slowly."""
    for account in accounts:
        for bucket, tokens in ((account.requests, len(frames)), (account.bytes, sum(map(len, frames)))):
            while not bucket.take(tokens, ticks()):
                wait = bucket.wait_ms(tokens, ticks())
                assert wait is not None, "a bucket holds more than one read can bring"
                await asyncio.sleep(wait / 1_000)


class Unsent:
    """What was written to all clients and not sent yet. While it is too much, whoever holds most gets nothing more."""

    def __init__(self, ticks: Callable[[], int], budget: int = UNSENT_BYTES) -> None:
        self._ticks = ticks
        self._budget = budget
        self._streams: dict[FrameStream, Account] = {}
        self._bytes = 0  # at most: what has been sent since is not taken off
        self._measured = 0
        self._most: Account | None = None

    @contextmanager
    def counted(self, stream: FrameStream, account: Account) -> Iterator[None]:
        self._streams[stream] = account
        try:
            yield
        finally:
            del self._streams[stream]

    def wrote(self, size: int) -> None:
        self._bytes += size

    def allows(self, account: Account) -> bool:
        if self._bytes > self._budget and self._ticks() - self._measured >= MEASURE_MS:
            self._measure()
        return self._bytes <= self._budget or account is not self._most

    def _measure(self) -> None:
        held: Counter[Account] = Counter()
        for stream, account in self._streams.items():
            held[account] += stream.write_buffer_bytes
        self._bytes, self._measured = held.total(), self._ticks()
        self._most = max(held, key=held.__getitem__, default=None)


class Door:
    """Who may connect at all, before the costly handshake. Once it is known who came, other limits count it.

    `brokers` are the addresses from which other brokers come; places are kept for them that strangers cannot take.
    """

    def __init__(
        self,
        log: Log,
        ticks: Callable[[], int],
        *,
        brokers: frozenset[str] = frozenset(),
        kept: int = 0,
        tally: Tally | None = None,
    ) -> None:
        self._log = log
        self._ticks = ticks
        self._brokers = brokers
        self._kept = kept
        self._tally = tally or Tally()
        self._newcomers: Counter[str] = Counter()
        self._throttled = Throttled()
        self.strikes = Strikes(limit=STRIKES, window_ms=STRIKE_WINDOW_MS, ban_ms=BAN_MS, capacity=MAX_STRUCK)

    def enter(self, source: str) -> bool:
        entry = self._entry(source)
        if entry is not Entry.ADMITTED:
            self._tally.turned_away[entry.name.lower()] += 1
            self._say("connection_refused", source, entry.value)
            return False
        self._newcomers[source] += 1
        return True

    def leave(self, source: str) -> None:
        take_off(self._newcomers, source)

    def failed(self, source: str, reason: str) -> None:
        self._tally.turned_away[HANDSHAKE] += 1
        self._say("handshake_failed", source, reason)

    @contextmanager
    def known(self, source: str) -> Iterator[None]:
        """Meanwhile a connection that has entered is no newcomer."""
        self.leave(source)
        try:
            yield
        finally:
            self._newcomers[source] += 1

    def _entry(self, source: str) -> Entry:
        is_broker = source in self._brokers
        if self._newcomers.total() >= HANDSHAKES + (self._kept if is_broker else 0):
            return Entry.FULL
        full = not is_broker and self._newcomers[source] >= HANDSHAKES_PER_SOURCE
        return Entry.SOURCE_FULL if full else Entry.ADMITTED

    def _say(self, event: str, source: str, why: str) -> None:
        if count := self._throttled.count(event, source, self._ticks()):
            self._log.warning(event, source=source, why=why, count=count)
