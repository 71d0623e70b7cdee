"""The brokers that a client may ask: connected when needed, its own organisation's first, those that failed or lied last."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from parley.client.beliefs import Stale
from parley.client.connection import Connection, Declined, Dialler, Gone
from parley.client.errors import ClientClosed, DoubtfulBroker, LyingBroker
from parley.consensus.committee import all_brokers
from parley.ledger.proofs import ProofError
from parley.net.tls import Address

MAX_MISBEHAVIOUR = 256  # lies that are remembered
FIRST_PENALTY = 0.25  # seconds after a failure during which others are preferred, doubled each time
LONGEST_PENALTY = 60.0
LIE_PENALTY = 300.0
DOUBT_SECONDS = 60.0  # in which one broker is doubted aloud only once
FAILURES = (Declined, Gone, ProofError, Stale, TimeoutError)  # what one broker may do instead of answering

log = logging.getLogger("parley.client")


class Brokers:
    """One connection to each broker that is in use, shared by everything that the client does."""

    def __init__(self, dialler: Dialler, addresses: Mapping[str, Address], preference: Sequence[str]) -> None:
        self._dialler = dialler
        self.addresses = addresses
        self._preference = preference
        self._known = {broker.name: broker for broker in all_brokers(dialler.genesis)}
        self._connections: dict[str, Connection] = {}
        self._dialling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._failures: defaultdict[str, int] = defaultdict(int)
        self._avoided: dict[str, float] = {}  # until when, by the loop's clock
        self._closed = False
        self.misbehaviour: deque[LyingBroker] = deque(maxlen=MAX_MISBEHAVIOUR)
        self.doubts: deque[DoubtfulBroker] = deque(maxlen=MAX_MISBEHAVIOUR)
        self._doubted: dict[str, float] = {}  # when that was last said, by the loop's clock
        # Ms by which each broker's clock was ahead when it let this client in.
        self.clocks: dict[str, int] = {}

    def preferred(self) -> list[str]:
        """All of them, the one to ask first first."""
        now = asyncio.get_running_loop().time()
        avoided = {name: until for name, until in self._avoided.items() if until > now}
        return sorted(self._preference, key=lambda name: avoided.get(name, 0.0))

    def organisation(self, name: str) -> str:
        return self._known[name].organisation

    def connected(self, name: str) -> Connection | None:
        """The connection, if it is open already."""
        found = self._connections.get(name)
        return found if found is not None and found.is_open else None

    async def connection(self, name: str) -> Connection:
        """Raises `Gone` or `Declined`."""
        async with self._dialling[name]:
            found = self._connections.get(name)
            if found is not None and found.is_open:
                return found
            if self._closed:
                raise ClientClosed("The client is closed.")
            made = await self._dialler.connect(self._known[name], self.addresses[name])
            if found is not None:
                self._dialler.leaving.add(found.close())
            self._connections[name] = made
            self.clocks[name] = made.clock_ahead
            self.worked(name)
            self._avoided.pop(name, None)
            return made

    def worked(self, name: str) -> None:
        """It answered: the next failure is the first one again."""
        self._failures.pop(name, None)

    def failed(self, name: str) -> None:
        """It did not answer: others come first for a while."""
        if self._avoided.get(name, 0.0) > asyncio.get_running_loop().time():
            return  # many who waited for one connection fail together, and that counts once
        self._avoid(name, min(FIRST_PENALTY * 2 ** self._failures[name], LONGEST_PENALTY))
        self._failures[name] += 1

    def note(self, name: str, failure: Exception) -> str:
        """Treat a broker as its failure calls for; the failure in words."""
        if isinstance(failure, ProofError):
            self.distrust(name, str(failure))
            return f"it lies: {failure}"
        if isinstance(failure, Gone | TimeoutError):
            self.failed(name)
        return str(failure) or "it does not answer"

    def distrust(self, name: str, problem: str) -> None:
        """It lied: keep the record, cut the connection, and ask others."""
        lie = LyingBroker(name, problem)
        log.warning("%s", lie)
        self.misbehaviour.append(lie)
        self._avoid(name, LIE_PENALTY)
        if (connection := self._connections.pop(name, None)) is not None:
            connection.abandon(str(lie))
            self._dialler.leaving.add(connection.close())

    def doubt(self, name: str, problem: str) -> None:
        """Others did what it did not do: say so, and keep the record."""
        now = asyncio.get_running_loop().time()
        if now - self._doubted.get(name, -DOUBT_SECONDS) < DOUBT_SECONDS:
            return
        self._doubted[name] = now
        doubt = DoubtfulBroker(name, problem)
        log.warning("%s", doubt)
        self.doubts.append(doubt)

    async def close(self) -> None:
        self._closed = True
        connections = [*self._connections.values()]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
        await self._dialler.leaving.wait()

    def _avoid(self, name: str, seconds: float) -> None:
        self._avoided[name] = max(self._avoided.get(name, 0.0), asyncio.get_running_loop().time() + seconds)
