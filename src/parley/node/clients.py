"""Lets clients in: one session for each connection, within what its client and its address may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from parley.model.refusals import Busy, Refused
from parley.net.frames import FrameError, FrameStream
from parley.net.limits import Entry, Quota
from parley.net.listener import Visit
from parley.node.access import Caller
from parley.node.allowances import Accounts
from parley.node.authentication import Authenticator, refusal_of, say_failure
from parley.node.config import Limits
from parley.node.door import Door
from parley.node.logs import Log, Throttled
from parley.node.services.asking import Services
from parley.node.sessions import Session
from parley.node.telemetry.tally import Tally


class Clients:
    """Everybody who is connected as a client, and what became of those who misbehaved.

    An organisation may make any number of clients, so each has its share of all places and no more.
    """

    def __init__(
        self,
        services: Mapping[int, Services],
        organisations: int,
        limits: Limits,
        *,
        accounts: Accounts,
        door: Door,
        tally: Tally,
        now: Callable[[], int],
        ticks: Callable[[], int],
        log: Log,
    ) -> None:
        """`services` by the number of the shard; `accounts` are those of the clients. `now` and `ticks` are as in `Services`."""
        self._places = Quota(-(-limits.connections // organisations), limits.connections)
        self._services = services
        self._limits = limits
        self._door = door
        self._tally = tally
        self._now = now
        self._ticks = ticks
        self._log = log
        self._throttled = Throttled()
        self._by_client = accounts
        self._by_source = Accounts(limits, limits.connections_per_address)

    async def serve(self, stream: FrameStream, visit: Visit, authenticator: Authenticator) -> None:
        """Until the connection is of no more use; the caller closes it."""
        try:
            caller, shard = await authenticator.welcome(stream, self._now())
            if wait := self._door.strikes.wait_ms(caller.key.hex(), self._ticks()):
                raise Busy("garbage", client=caller.title, seconds=wait // 1_000 + 1)
            with self._door.known(visit), self._place(caller):
                await self._admitted(stream, caller, self._services[shard])
        except Refused as refused:
            self._refuse(stream, refused)
            self._say("client_refused", stream.source, source=stream.source, why=refused.detail)
        except FrameError as error:
            if (why := refusal_of(error)) is not None:
                self._refuse(stream, why)

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[None]:
        """One of the places of the client's organisation."""
        entry = self._places.enter(caller.organisation)
        if entry is Entry.SOURCE_FULL:
            raise Busy("connections_of_organisation", organisation=caller.organisation)
        if entry is Entry.FULL:
            raise Busy("connections")
        try:
            yield
        finally:
            self._places.leave(caller.organisation)

    async def _admitted(self, stream: FrameStream, caller: Caller, services: Services) -> None:
        own, shared = self._by_client.enter(caller.key), self._by_source.enter(stream.source)
        try:
            if own is None or shared is None:
                raise Busy(
                    "connections_of_client", client=caller.title, limit=self._limits.connections_per_client
                )
            await Session(
                stream, caller, services, limits=self._limits, accounts=[own, shared], clients=self
            ).run()
        finally:
            if own is not None:
                self._by_client.leave(caller.key)
            if shared is not None:
                self._by_source.leave(stream.source)

    def _refuse(self, stream: FrameStream, refused: Refused) -> None:
        self._tally.refused[refused.code] += 1
        say_failure(stream, 0, refused)

    # -- what sessions report -----------------------------------------------------------------------------------

    def strike(self, caller: Caller, why: str) -> bool:
        """A client has sent garbage; whether it is cut off for it."""
        self._say("client_garbage", caller.title, client=caller.title, why=why)
        return self._door.strikes.strike(caller.key.hex(), self._ticks())

    def slow(self, caller: Caller) -> None:
        self._say("client_slow", caller.title, client=caller.title)

    def broken(self, caller: Caller, error: Exception) -> None:
        """A fault of this program, met by one client."""
        self._log.error("session_failed", client=caller.title, why=str(error), exc_info=error)

    def _say(self, event: str, subject: object, **values: object) -> None:
        if count := self._throttled.count(event, subject, self._ticks()):
            self._log.warning(event, count=count, **values)
