"""How much of this broker a client, an organisation or an address may use, counted while it is here.

Time is that of a clock that nobody sets, in milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from parley.net.frames import MAX_BATCH, FrameStream
from parley.net.limits import TokenBucket
from parley.net.messages import MAX_QUESTION
from parley.node.config import Limits

UNSENT_BYTES = 256 * 1024 * 1024  # written to clients in all, and not taken by them yet
MEASURE_MS = 100  # between two counts of that while it is too much


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
