"""How much of this broker a client, or an address, may use: connections, requests and bytes, counted while it is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from parley.net.frames import MAX_BATCH
from parley.net.limits import Entry, Quota, Strikes, TokenBucket
from parley.net.messages import MAX_QUESTION
from parley.node.config import Limits
from parley.node.logs import Log, Throttled

__all__ = ["Account", "Accounts", "Door", "pay"]

STRIKES = 20  # pieces of garbage, within
STRIKE_WINDOW_MS = 60_000  # after which a client is turned away for
BAN_MS = 60_000
MAX_STRUCK = 10_000  # clients that are remembered for garbage


@dataclass(slots=True)
class Account:
    """What one client or one address has left."""

    requests: TokenBucket
    bytes: TokenBucket
    connections: int = 0


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


async def pay(accounts: list[Account], frames: list[bytes], now: Callable[[], int]) -> None:
    """Wait until these frames are within what the accounts allow: a client that is too fast is read more slowly."""
    for account in accounts:
        for bucket, tokens in ((account.requests, len(frames)), (account.bytes, sum(map(len, frames)))):
            while not bucket.take(tokens, now()):
                wait = bucket.wait_ms(tokens, now())
                assert wait is not None, "a bucket holds more than one read can bring"
                await asyncio.sleep(wait / 1_000)


class Door:
    """Who may connect at all, before the costly handshake."""

    def __init__(self, limits: Limits, log: Log, now: Callable[[], int]) -> None:
        self._quota = Quota(limits.connections_per_address, limits.connections)
        self._log = log
        self._now = now
        self._throttled = Throttled()
        self.strikes = Strikes(limit=STRIKES, window_ms=STRIKE_WINDOW_MS, ban_ms=BAN_MS, capacity=MAX_STRUCK)

    @property
    def connections(self) -> int:
        return self._quota.count

    def enter(self, source: str) -> bool:
        entry = self._quota.enter(source)
        if entry is not Entry.ADMITTED:
            self._say("connection_refused", source, entry.value)
        return entry is Entry.ADMITTED

    def leave(self, source: str) -> None:
        self._quota.leave(source)

    def failed(self, source: str, reason: str) -> None:
        self._say("handshake_failed", source, reason)

    def _say(self, event: str, source: str, why: str) -> None:
        if count := self._throttled.count(event, source, self._now()):
            self._log.warning(event, source=source, why=why, count=count)
