"""Sessions of clients with a broker in this process: real connections, accounts and proofs, over a ledger made by the test.

Time stands still unless the test moves it, so that what something cost can be counted and nothing ends by itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import structlog
from tests.application.world import Actor, actor
from tests.client.ledger import Ledger as MadeLedger
from tests.node.ledger_broker import LedgerBroker

from parley.ledger.application import AdmittedBatch
from parley.mempool.pool import Intake
from parley.model.credentials import issue_credential, possession
from parley.net import messages as net
from parley.net.frames import FrameStream
from parley.net.listener import Visit
from parley.net.messages import Answer, Authenticate, Challenge, Question, Status, StatusRequest, Welcome
from parley.node.advisories import Advisories
from parley.node.allowances import Account, Accounts, Unsent
from parley.node.authentication import Authenticator
from parley.node.clients import Clients
from parley.node.config import Limits
from parley.node.door import Door
from parley.node.driver import Driver
from parley.node.faults.answers import Faults
from parley.node.faults.switches import Switches
from parley.node.feed import Feed
from parley.node.room import Room
from parley.node.services.asking import Services
from parley.node.services.service import Service, Table
from parley.node.services.table import TABLE
from parley.node.telemetry.tally import Tally
from parley.node.view import Ledger

FRESHNESS = 2_000
FOREVER = 2**61
SECONDS = 10.0
CERTIFICATE = bytes(32)  # there is no TLS here


class _Intake:
    """Takes every batch, or says what it was told to say, and orders none."""

    is_waiting = False

    def __init__(self) -> None:
        self.says = Intake.TAKEN
        self.taken: list[bytes] = []

    async def until_free(self) -> None: ...

    def submit(self, batch: AdmittedBatch) -> Intake:
        self.taken.append(batch.digest)
        return self.says


class Guest:
    """A client's connection. Everything that the broker has said is kept in `said`, in its order."""

    def __init__(self, stream: FrameStream, who: Actor) -> None:
        self.stream = stream
        self.who = who
        self.said: list[Answer] = []
        self._barriers = iter(range(2**31, 2**32 - 1))

    def send(self, question: Question) -> None:
        self.stream.write(net.encode(question))

    async def receive(self) -> Answer:
        async with asyncio.timeout(SECONDS):
            frame = await self.stream.read()
        assert frame is not None, "the broker has closed the connection"
        self.said.append(net.decode_answer(frame))
        return self.said[-1]

    async def ask(self, question: Question) -> Answer:
        self.send(question)
        while (answer := await self.receive()).id != question.id:
            pass
        return answer

    async def refused(self, question: Question) -> str:
        """The code of the refusal."""
        answer = await self.ask(question)
        assert isinstance(answer, net.Failure), answer
        return answer.code

    async def settle(self) -> list[Answer]:
        """What was said until the broker has nothing more to say: it has answered some questions meanwhile."""
        before = len(self.said)
        for _ in range(5):
            answer = await self.ask(StatusRequest(next(self._barriers)))
            assert isinstance(answer, Status), answer
        return [one for one in self.said[before:] if not isinstance(one, Status)]

    async def ended(self) -> list[Answer]:
        """What the broker says until it closes the connection."""
        before = len(self.said)
        async with asyncio.timeout(SECONDS):
            while (frame := await self.stream.read()) is not None:
                self.said.append(net.decode_answer(frame))
        return self.said[before:]


class Desk:
    """`late` and `ticks` move the clocks on; `certify` shows what was ordered since."""

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        *,
        broker: LedgerBroker | None = None,
        table: Iterable[Service[Any]] = TABLE,
    ) -> None:
        self.broker = broker or LedgerBroker()
        self.late = self.ticks = 0
        self.feed = Feed()
        self.intake = _Intake()
        self.limits = limits or Limits()
        self.ledger = Ledger(self.broker.archive, self.broker.recent, self.feed)
        genesis = self.made.genesis
        door = Door(structlog.get_logger(), lambda: self.ticks)
        tally = Tally()
        self.services = Services(
            table=Table(table),
            driver=cast("Driver", self.intake),
            feed=self.feed,
            ledger=self.ledger,
            admission=self.made.machine,
            reporter=self,
            freshness=FRESHNESS,
            unsent=Unsent(lambda: self.ticks),
            room=Room(folder, 0, lambda _: 2**40),
            faults=Faults(Switches(), self.ledger, FRESHNESS),
            advisories=Advisories(genesis, lambda: self.now, lambda: self.ticks),
            now=lambda: self.now,
            ticks=lambda: self.ticks,
            tally=tally,
        )
        self._clients = Clients(
            {0: self.services},
            len(genesis.organisations),
            self.limits,
            accounts=Accounts(self.limits, self.limits.connections_per_client),
            door=door,
            tally=tally,
            now=lambda: self.now,
            ticks=lambda: self.ticks,
            log=structlog.get_logger(),
        )
        self._door = door
        self._address: tuple[str, int] = ("", 0)
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def made(self) -> MadeLedger:
        return self.broker.ledger

    @property
    def now(self) -> int:
        return self.made.time + self.late

    def certify(self) -> None:
        self.broker.execute()
        self.feed.certified(self.made.anchor())

    def account(self, who: Actor) -> Account:
        return self._clients._by_client._accounts[who.key]

    def spent(self, who: Actor) -> int:
        """Bytes that the client has used, in answers and in what they took."""
        burst = max(self.limits.bytes_per_second, 2 * net.MAX_QUESTION)
        wait = self.account(who).bytes.wait_ms(burst, self.ticks)
        assert wait is not None
        return wait * self.limits.bytes_per_second // 1_000

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The broker listens inside."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._address = server.sockets[0].getsockname()[:2]
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()
            self.ticks += 2**40  # whatever somebody owed is paid
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*self._serving)

    @asynccontextmanager
    async def guest(self, who: Actor, *, not_after: int = FOREVER) -> AsyncIterator[Guest]:
        stream = FrameStream(*await asyncio.open_connection(*self._address))
        stream.limit = net.MAX_ANSWER
        try:
            challenge = await _opening(stream)
            assert isinstance(challenge, Challenge)
            anchor, chain = actor("anchor", who.organisation).secret, self.made.chain
            credential = issue_credential(
                chain, who.organisation, who.name, who.key, not_after=not_after, anchor=anchor
            )
            signature = who.secret.sign(possession(chain, challenge.nonce, CERTIFICATE))
            stream.write(net.encode(Authenticate(credential, signature, 0)))
            assert isinstance(await _opening(stream), Welcome)
            yield Guest(stream, who)
        finally:
            await stream.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        stream = FrameStream(reader, writer)
        with socket.socket() as connection:
            visit = Visit("127.0.0.1", connection)
        self._door.enter(visit)
        name = self.made.genesis.brokers[0].name
        await self._clients.serve(stream, visit, Authenticator(self.made.genesis, name, (0,), CERTIFICATE))
        self._door.leave(visit)
        await stream.wait_closed()

    def report(self, id_: int) -> Status:
        return Status(
            id_,
            "b",
            "o",
            0,
            "1",
            "ready",
            "",
            0,
            0,
            1,
            1,
            1,
            "",
            self.now,
            1,
            peers=(),
            misbehaviour=(),
            damage=(),
        )


async def _opening(stream: FrameStream) -> net.Opening:
    async with asyncio.timeout(SECONDS):
        frame = await stream.read()
    assert frame is not None, "the broker has closed the connection"
    return net.decode_opening(frame)
