"""One client's connection: every question gets one answer, a stream or a failure, and nothing is buffered without bound.

Two tasks: one reads questions and answers what can be answered at once; the other, the pump, sends what has become
ready since: receipts, long fetches, streams. A client that does not read its answers is not read from either, and is
disconnected if that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from parley.model.refusals import Busy, NotAuthenticated, NotReady, Refused, malformed
from parley.net.frames import FrameError, FrameStream
from parley.net.messages import (
    MAX_QUESTION,
    Answer,
    Credit,
    Question,
    Submit,
    WireError,
    encode,
)
from parley.node.access import Caller
from parley.node.allowances import Account, pay
from parley.node.authentication import refusal_of
from parley.node.config import Limits
from parley.node.holding import DELIVERY, QUESTION
from parley.node.outlet import CutOff, Outlet
from parley.node.services.asking import Asking, Services
from parley.node.services.fetching import fetch_again, has_answer
from parley.node.services.held import Held
from parley.node.services.service import Said, Work
from parley.node.services.submitting import by_block, receipted
from parley.node.streams import UNFINISHED, Stream, Unfinished
from parley.node.submissions import RECEIPT_MS, Submissions
from parley.node.view import View
from parley.node.workers import submitted

if TYPE_CHECKING:
    from parley.node.clients import Clients

T = TypeVar("T")

TICK_SECONDS = 1.0  # between two looks at what is over time
REGISTRATION_SECONDS = 2.0  # by which this broker may be behind the one that registered a client
TURN_FRAMES, TURN_BYTES = (
    16,
    64 * 1024,
)  # of what is taken in one turn; a larger question has a turn of its own
LOOK_SECONDS = 0.1  # between two looks whether a client is known by now


class _Expired(Exception):  # noqa: N818 - it names what happened to the credential
    """The client is not anymore who it was when it came."""


class Session:
    """What one connection has asked and not been answered yet."""

    def __init__(
        self,
        stream: FrameStream,
        caller: Caller,
        services: Services,
        *,
        limits: Limits,
        accounts: list[Account],
        clients: Clients,
    ) -> None:
        self._stream = stream
        self._caller = caller
        self._services = services
        self._accounts = accounts
        self._clients = clients
        self._outlet = Outlet(stream, caller, accounts[0], services=services, limits=limits, clients=clients)
        self._wake = asyncio.Event()
        self._underway: tuple[Question, Work] | None = None  # a long list that is being made
        self._rows = services.table.rows
        self._submissions = Submissions(
            caller,
            services.driver,
            services.feed,
            services.ledger,
            admit=services.admission.admit,
            no_room=lambda: services.room.refusal,
            ticks=services.ticks,
            wake=self._wake.set,
            receipted=services.tally.receipts.add,
            charge=lambda work: self._accounts[0].requests.charge(work, services.ticks()),
            refuse=self._outlet.refuse,
        )
        self._held = Held(self._submissions, limits.questions_in_flight, self._wake)
        self._asking = Asking(services, caller, self._outlet.charge, self._held)

    async def run(self) -> None:
        """Until the client goes, or is cut off."""
        feed = self._services.feed
        self._stream.limit = MAX_QUESTION
        feed.watch(self, self._on_anchor)
        pump = asyncio.create_task(self._guarded(self._pump))
        try:
            with self._services.unsent.counted(self._stream, self._accounts[0]):
                await self._guarded(self._read)
        finally:
            feed.unwatch(self)
            self._submissions.close()
            pump.cancel()
            await asyncio.wait([pump])

    async def _guarded(self, task: Callable[[], Awaitable[None]]) -> None:
        """Whatever happens in one session ends this session and nothing else."""
        try:
            await task()
        except FrameError as error:
            if (why := refusal_of(error)) is not None:
                self._outlet.refuse(0, why)
        except _Expired:
            self._outlet.refuse(0, NotAuthenticated("expired"))
        except CutOff:
            pass
        except Exception as error:  # noqa: BLE001 - a fault of ours must not become everybody's
            self._clients.broken(self._caller, error)
            self._outlet.refuse(0, NotReady("failed"))
        self._stream.close()

    # -- questions -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while frames := await self._stream.read_many():
            if self._services.workers is not None:  # not in a turn, which others may wait for
                await self._services.workers.ahead(submitted(frames))
            for group in _turns(frames):
                if self._services.driver.is_waiting and submitted(group):
                    await self._services.driver.until_free()  # before the turn as well
                async with self._turn(*group):
                    for frame in group:
                        await self._take(frame)
                while (
                    underway := self._underway
                ) is not None:  # it takes several turns, each of which is paid for
                    self._underway = None
                    async with self._turn():
                        question, work = underway
                        self._look(question, self._rows[type(question)].go_on, work)

    @asynccontextmanager
    async def _turn(self, *frames: bytes) -> AsyncIterator[None]:
        """The client's time to have something done, on one of its connections: not before it has paid and has read.

        It lasts one turn of the loop, so that no client's questions, on however many connections, hold up others'.
        """
        await self._outlet.ready()
        async with self._accounts[0].turn:
            await pay(self._accounts, list(frames), self._services.ticks)
            self._require_unexpired()
            yield
            await asyncio.sleep(0)

    async def _take(self, frame: bytes) -> None:
        try:
            question = self._services.table.decode(frame)
        except WireError as error:
            self._outlet.refuse(0, malformed("question", error))
            self._strike(str(error))
            return
        if isinstance(question, Submit):
            if not self._submissions.is_registered():
                await self._registration()
            await self._services.driver.until_free()
        self._look(question, self._rows[type(question)].take, question)

    def _look(self, question: Question, answer: Callable[[Asking, T], Said], given: T) -> None:
        self._services.holding.run(
            QUESTION, type(question).__name__, lambda: self._answer_or_refuse(question, answer, given)
        )

    def _answer_or_refuse(self, question: Question, answer: Callable[[Asking, T], Said], given: T) -> None:
        try:
            said = answer(self._asking, given)
        except Refused as refused:
            self._outlet.refuse(question.id, refused)
            if isinstance(question, Submit) and refused.garbage:  # too much of it ends in a ban
                self._strike(refused.detail)
        else:
            if isinstance(said, Answer):
                self._outlet.send(said)
            elif said is not None:
                self._underway = question, said

    def _strike(self, why: str) -> None:
        if self._clients.strike(self._caller, why):
            raise CutOff

    def _require_unexpired(self) -> None:
        if self._services.now() > self._caller.not_after:
            raise _Expired

    async def _registration(self) -> None:
        """A client may be known to another broker a moment before it is known to this one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REGISTRATION_SECONDS):
                while not self._submissions.is_registered():  # noqa: ASYNC110 - the replica tells of blocks, not of clients
                    await asyncio.sleep(LOOK_SECONDS)

    # -- what becomes ready ------------------------------------------------------------------------------------------

    def _on_anchor(self) -> None:
        held = self._held
        if held.submissions or held.polls or self._busy_streams():
            self._wake.set()

    async def _pump(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            self._wake.clear()
            self._require_unexpired()
            for id_ in self._submissions.give_up():
                self._outlet.refuse(id_, Busy("no_receipt", seconds=RECEIPT_MS // 1_000))
            if (view := self._services.newest_view()) is not None:
                await self._send_receipts(view)
            await self._answer_polls()
            await self._fill_streams()

    def _patience(self) -> float | None:
        """Seconds until something is over time."""
        if not self._held.polls:
            return TICK_SECONDS if self._submissions.waits else None
        first = min(poll.until for poll in self._held.polls.values())
        return min(TICK_SECONDS, max(0, first - self._services.ticks()) / 1_000)

    async def _send_receipts(self, view: View) -> None:
        for group in by_block(self._submissions.ready()):
            await self._outlet.drained()
            try:
                self._deliver("receipts", partial(receipted, view, group))
            except Refused as refused:
                for id_, _ in group:
                    self._outlet.refuse(id_, refused)

    def _deliver(self, what: str, make: Callable[[], Answer]) -> None:
        """Send what it makes. Raises `Refused`."""
        self._services.holding.run(DELIVERY, what, lambda: self._outlet.send(make()))

    async def _answer_polls(self) -> None:
        for poll in list(self._held.polls.values()):
            if self._services.ticks() >= poll.until or has_answer(self._asking, poll):
                del self._held.polls[poll.question.id]
                async with self._turn():
                    try:
                        self._deliver("a fetch", partial(fetch_again, self._asking, poll.question))
                    except Refused as refused:
                        self._outlet.refuse(poll.question.id, refused)

    async def _fill_streams(self) -> None:
        """One message of each stream in turn, until none has more to say."""
        busy = self._busy_streams()
        while busy:
            for stream in busy.copy():
                # What is begun is ended first: of many streams, each might hold half of a block in memory.
                while True:
                    async with self._turn():
                        said = self._services.holding.run(
                            DELIVERY, "a stream", partial(self._advance, stream)
                        )
                    if said is not UNFINISHED:
                        break
                if not said:
                    busy.remove(stream)

    def _busy_streams(self) -> list[Stream]:
        return self._held.busy_streams(self._services.ledger, self._services.ticks())

    def _advance(self, stream: Stream) -> bool | Unfinished:
        """Whether it may have more to say."""
        if self._held.streams.get(stream.id) is not stream:
            return False
        try:
            view = self._services.fresh_view()
        except Refused:  # it goes on when there is something to show
            return False
        try:
            pushed = stream.next(view, self._services.ticks())
        except Refused as refused:
            self._held.streams.pop(stream.id, None)
            self._outlet.refuse(stream.id, refused)
            return False
        if isinstance(pushed, Unfinished):
            return pushed
        if pushed is None:
            return False
        self._outlet.push(pushed)
        return pushed.more


def _turns(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Questions that are not answered at once share a turn with those next to them. Any other has its own: what its answer
    took, which may be much, is paid for and read before the next one is begun.
    """
    group: list[bytes] = []
    size = 0
    for frame in frames:
        alone = not frame.startswith(_ANSWERED_LATER)
        if group and (alone or len(group) == TURN_FRAMES or size + len(frame) > TURN_BYTES):
            yield group
            group, size = [], 0
        if alone:
            yield [frame]
            continue
        group.append(frame)
        size += len(frame)
    if group:
        yield group


# How these begin: the length and the tag of an array.
_ANSWERED_LATER = tuple(encode(question)[:2] for question in (Submit(1, b"x"), Credit(1, 1)))
