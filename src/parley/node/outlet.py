"""Sends answers to one client, charges it for them, and waits while it leaves too much unread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from parley.model.refusals import Refused
from parley.net.frames import FrameStream
from parley.net.messages import Answer, SplicedFetched, decode_answer, encode
from parley.node.access import Caller
from parley.node.allowances import Account
from parley.node.authentication import say_failure
from parley.node.config import Limits
from parley.node.services.asking import Services
from parley.node.streams import Pushed

if TYPE_CHECKING:
    from parley.node.clients import Clients

LOOK_SECONDS = 0.1  # between two looks at what others have left unread


class CutOff(Exception):  # noqa: N818 - it names what happens to the session
    """The client has sent too much garbage, or does not read what it asked for."""


class Outlet:
    """The writing end of one client's connection."""

    def __init__(
        self,
        stream: FrameStream,
        caller: Caller,
        account: Account,
        *,
        services: Services,
        limits: Limits,
        clients: Clients,
    ) -> None:
        self._stream = stream
        self._caller = caller
        self._account = account
        self._services = services
        self._limits = limits
        self._clients = clients

    def refuse(self, id_: int, refused: Refused) -> None:
        self._services.tally.refused[refused.code] += 1
        say_failure(self._stream, id_, refused)

    def send(self, answer: Answer) -> None:
        if self._services.faults.active:
            if isinstance(answer, SplicedFetched):
                answer = decode_answer(encode(answer))
            self._services.faults.send(answer, self._caller, self._write)
        else:
            self._write(answer)

    def push(self, pushed: Pushed) -> None:
        data = encode(pushed.answer)
        if self._services.faults.active:
            self.send(decode_answer(data))
        else:
            self._write_data(data, pushed.work)
        self._services.tally.deliveries += pushed.messages

    def _write(self, answer: Answer) -> None:
        self._write_data(encode(answer), self._services.table.work(answer))

    def _write_data(self, data: bytes, work: int) -> None:
        self._stream.write(data)
        self._services.unsent.wrote(len(data))
        self.charge(len(data) + work)

    def charge(self, cost: int) -> None:
        """Charge what an answer took, before the next one is begun."""
        self._account.bytes.charge(cost, self._services.ticks())

    async def ready(self) -> None:
        """Wait until more may be written. Raises `CutOff` if the client does not read."""
        await self.drained()
        await self._within_budget()

    async def _within_budget(self) -> None:
        """Wait while this client leaves most unread of all, and all together too much."""
        unsent, account = self._services.unsent, self._account
        if unsent.allows(account):
            return
        try:
            async with asyncio.timeout(self._limits.unread_seconds):
                while not unsent.allows(account):  # noqa: ASYNC110 - no event says what was read
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            self._clients.slow(self._caller)
            raise CutOff from None

    async def drained(self) -> None:
        """Wait while the client has much left to read; a client that does not read at all is cut off."""
        unread = self._stream.write_buffer_bytes
        while unread > self._limits.unread_bytes:
            try:
                async with asyncio.timeout(self._limits.unread_seconds):
                    await self._stream.drain()
            except TimeoutError:
                if self._stream.write_buffer_bytes >= unread:
                    self._clients.slow(self._caller)
                    raise CutOff from None
            unread = self._stream.write_buffer_bytes
