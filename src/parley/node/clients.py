"""Lets clients in: one session for each connection, within what its client and its address may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parley.model.errors import Code, Refusal
from parley.net.frames import FrameError, FrameStream
from parley.net.limits import Entry, Quota
from parley.node.access import Asker
from parley.node.allowances import Accounts, Door
from parley.node.authentication import Authenticator, refusal_of, say_failure
from parley.node.config import Limits
from parley.node.logs import Log, Throttled
from parley.node.sessions import Services, Session

__all__ = ["Clients"]


class Clients:
    """Everybody who is connected as a client, and what became of those who misbehaved.

    An organisation may make any number of clients, so each has its share of all places and no more.
    """

    def __init__(self, services: Services, organisations: int, limits: Limits, door: Door, log: Log) -> None:
        self._places = Quota(-(-limits.connections // organisations), limits.connections)
        self._services = services
        self._limits = limits
        self._door = door
        self._log = log
        self._throttled = Throttled()
        self._by_client = Accounts(limits, limits.connections_per_client)
        self._by_source = Accounts(limits, limits.connections_per_address)

    @property
    def count(self) -> int:
        return len(self._by_client)

    async def serve(self, stream: FrameStream, authenticator: Authenticator) -> None:
        """Until the connection is of no more use; the caller closes it."""
        try:
            asker = await authenticator.welcome(stream, self._services.now())
            self._require_welcome(asker)
            with self._door.known(stream.source), self._place(asker):
                await self._admitted(stream, asker)
        except Refusal as refusal:
            self._refuse(stream, refusal)
            self._say("client_refused", stream.source, source=stream.source, why=refusal.detail)
        except FrameError as error:
            if (told := refusal_of(error)) is not None:
                self._refuse(stream, told)

    @contextmanager
    def _place(self, asker: Asker) -> Iterator[None]:
        """One of the places of the client's organisation."""
        entry = self._places.enter(asker.organisation)
        if entry is Entry.SOURCE_FULL:
            raise Refusal(
                Code.BUSY, f"{asker.organisation} has as many connections to this broker as it may have"
            )
        if entry is Entry.FULL:
            raise Refusal(Code.BUSY, "this broker has as many connections as it may have; ask another one")
        try:
            yield
        finally:
            self._places.leave(asker.organisation)

    async def _admitted(self, stream: FrameStream, asker: Asker) -> None:
        own, shared = self._by_client.enter(asker.key), self._by_source.enter(stream.source)
        try:
            if own is None or shared is None:
                limit = self._limits.connections_per_client
                raise Refusal(Code.BUSY, f"{asker.title} has the {limit} connections that it may have")
            session = Session(
                stream, asker, self._services, limits=self._limits, accounts=[own, shared], keeper=self
            )
            await session.run()
        finally:
            if own is not None:
                self._by_client.leave(asker.key)
            if shared is not None:
                self._by_source.leave(stream.source)

    def _refuse(self, stream: FrameStream, refusal: Refusal) -> None:
        self._services.tally.refused[refusal.code] += 1
        say_failure(stream, 0, refusal)

    # -- what sessions report -----------------------------------------------------------------------------------

    def strike(self, asker: Asker, why: str) -> bool:
        """A client has sent garbage; whether it is cut off for it."""
        self._say("client_garbage", asker.title, client=asker.title, why=why)
        return self._door.strikes.strike(asker.key.hex(), self._services.ticks())

    def slow(self, asker: Asker) -> None:
        self._say("client_slow", asker.title, client=asker.title)

    def broken(self, asker: Asker, error: Exception) -> None:
        """A fault of this program, met by one client."""
        self._log.error("session_failed", client=asker.title, why=str(error), exc_info=error)

    def _require_welcome(self, asker: Asker) -> None:
        wait = self._door.strikes.wait_ms(asker.key.hex(), self._services.ticks())
        if wait:
            seconds = wait // 1_000 + 1
            raise Refusal(Code.BUSY, f"{asker.title} has sent too much garbage; come back in {seconds} s")

    def _say(self, event: str, subject: object, **values: object) -> None:
        if count := self._throttled.count(event, subject, self._services.ticks()):
            self._log.warning(event, count=count, **values)
