"""One client's connection: every question gets one answer, a stream or a failure, and nothing is buffered without bound.

Two tasks: one reads questions and answers what can be answered at once; the other, the pump, sends what has become
ready since: receipts, long fetches, streams. A client that does not read its answers is not read from either, and is
disconnected if that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from parley.ledger.recent import HeightError
from parley.model.batches import Batch
from parley.model.errors import Code, Refusal
from parley.net.frames import FrameError, FrameStream
from parley.net.messages import (
    MAX_QUESTION,
    MAX_STREAMS,
    Answer,
    CloseStream,
    Credit,
    Fetch,
    ListKeys,
    OpenStream,
    Prove,
    Question,
    Status,
    StatusRequest,
    Submit,
    WireError,
    decode_question,
    encode,
)
from parley.node import answers
from parley.node.access import Asker
from parley.node.allowances import Account, pay
from parley.node.authentication import refusal_of, say_failure
from parley.node.config import Limits
from parley.node.driver import Driver
from parley.node.feed import Feed
from parley.node.streams import Stream
from parley.node.submissions import RECEIPT_MS, Submissions
from parley.node.view import Ledger, View

__all__ = ["Keeper", "Services", "Session"]

UNREAD_SECONDS = 30.0  # that a client may take to read what it was sent
TICK_SECONDS = 1.0  # between two looks at what is over time


@dataclass(frozen=True)
class Services:
    """The parts of the node that answer clients."""

    driver: Driver
    feed: Feed
    ledger: Ledger
    open_batch: Callable[[bytes], tuple[bytes, Batch]]
    status: Callable[[int], Status]
    freshness: int  # ms
    now: Callable[[], int]


class Keeper(Protocol):
    """Whom a session tells about its client."""

    def strike(self, asker: Asker, why: str) -> bool: ...

    def slow(self, asker: Asker) -> None: ...

    def broken(self, asker: Asker, error: Exception) -> None: ...


class _CutOff(Exception):  # noqa: N818 - it names what happens to the session
    """The client has sent too much garbage, or does not read what it asked for."""


@dataclass(frozen=True, slots=True)
class _Poll:
    question: Fetch
    until: int


class Session:
    """What one connection has asked and not been answered yet."""

    def __init__(
        self,
        stream: FrameStream,
        asker: Asker,
        services: Services,
        *,
        limits: Limits,
        accounts: list[Account],
        keeper: Keeper,
    ) -> None:
        self._stream = stream
        self._asker = asker
        self._services = services
        self._limits = limits
        self._accounts = accounts
        self._keeper = keeper
        self._wake = asyncio.Event()
        self._submissions = Submissions(
            asker,
            services.driver,
            services.feed,
            services.ledger.archive,
            open_batch=services.open_batch,
            now=services.now,
            wake=self._wake.set,
        )
        self._polls: dict[int, _Poll] = {}
        self._streams: dict[int, Stream] = {}

    async def run(self) -> None:
        """Until the client goes, or is cut off."""
        feed = self._services.feed
        self._stream.limit = MAX_QUESTION
        feed.watch(self, self._on_anchor)
        pump = asyncio.create_task(self._guarded(self._pump))
        try:
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
            if (told := refusal_of(error)) is not None:
                say_failure(self._stream, 0, told)
        except _CutOff:
            pass
        except Exception as error:  # noqa: BLE001 - a fault of ours must not become everybody's
            self._keeper.broken(self._asker, error)
            told = Refusal(Code.NOT_READY, "this broker failed to answer; ask another one")
            say_failure(self._stream, 0, told)
        self._stream.close()

    # -- questions -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while frames := await self._stream.read_many():
            await pay(self._accounts, frames, self._services.now)
            for frame in frames:
                self._take(frame)
                await self._drained()
                await asyncio.sleep(0)  # one client's questions must not hold up everybody else's

    def _take(self, frame: bytes) -> None:
        try:
            question = decode_question(frame)
        except WireError as error:
            say_failure(self._stream, 0, Refusal(Code.MALFORMED, f"not a question: {error}"))
            if self._keeper.strike(self._asker, str(error)):
                raise _CutOff from None
            return
        try:
            answer = self._answer(question)
        except Refusal as refusal:
            say_failure(self._stream, question.id, refusal)
        except HeightError as error:
            say_failure(self._stream, question.id, Refusal(Code.NOT_READY, str(error)))
        else:
            if answer is not None:
                self._send(answer)

    def _answer(self, question: Question) -> Answer | None:
        ledger = self._services.ledger
        match question:
            case Submit():
                self._require_room(question.id)
                self._submissions.submit(question)
            case Fetch():
                self._require_room(question.id)
                return self._fetch(question)
            case OpenStream():
                self._require_room(question.id)
                self._open(question)
            case Credit():
                if (stream := self._streams.get(question.id)) is not None:
                    stream.add_credit(question.messages)
                    self._wake.set()
            case CloseStream():
                self._streams.pop(question.id, None)
            case Prove():
                return answers.proven(ledger.view(), self._asker, question)
            case ListKeys():
                return answers.listed(ledger.view(), self._asker, question)
            case StatusRequest():
                return self._services.status(question.id)
        return None

    def _require_room(self, id_: int) -> None:
        if id_ in self._submissions or id_ in self._polls or id_ in self._streams:
            raise Refusal(Code.INVALID, f"question {id_} has not been answered yet; ask under another number")
        waiting = len(self._submissions) + len(self._polls) + len(self._streams)
        if waiting >= self._limits.questions_in_flight:
            raise Refusal(Code.BUSY, f"{waiting} questions of this connection wait for an answer")

    def _fetch(self, question: Fetch) -> Answer | None:
        view = self._fresh_view()
        answer = answers.fetched(view, self._asker, question)
        if answer.blocks or not question.wait:
            return answer
        self._polls[question.id] = _Poll(question, self._services.now() + question.wait)
        self._wake.set()
        return None

    def _open(self, question: OpenStream) -> None:
        if len(self._streams) >= MAX_STREAMS:
            raise Refusal(Code.LIMIT_EXCEEDED, f"a connection has at most {MAX_STREAMS} streams")
        stream = Stream(question, self._asker, self._services.freshness // 2)
        stream.open(self._fresh_view())
        self._streams[question.id] = stream
        self._wake.set()

    def _fresh_view(self) -> View:
        """A broker that is cut off must not serve readers who may have lost their rights since (P18)."""
        view = self._services.ledger.view()
        age = self._services.now() - view.time
        if age > self._services.freshness:
            raise Refusal(
                Code.NOT_READY,
                f"the newest certified header of this broker is {age} ms old, and more than "
                f"{self._services.freshness} ms is not fresh; ask another one",
            )
        return view

    # -- what becomes ready ------------------------------------------------------------------------------------------

    def _on_anchor(self) -> None:
        if self._submissions or self._polls or self._streams:
            self._wake.set()

    async def _pump(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TICK_SECONDS if self._submissions.waits or self._polls else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._give_up_receipts()
            view = self._view()
            if view is not None:
                await self._send_receipts(view)
            await self._answer_polls()
            await self._fill_streams()

    def _view(self) -> View | None:
        """None: this broker has nothing to show now."""
        try:
            return self._services.ledger.view()
        except Refusal:
            return None

    async def _send_receipts(self, view: View) -> None:
        for id_, place in self._submissions.ready():
            self._attempt(id_, partial(answers.receipted, view, id_, place))
            await self._drained()

    def _give_up_receipts(self) -> None:
        for id_ in self._submissions.give_up():
            why = f"the batch got no receipt within {RECEIPT_MS // 1_000} s; send it again, unchanged"
            say_failure(self._stream, id_, Refusal(Code.BUSY, why))

    async def _answer_polls(self) -> None:
        now = self._services.now()
        for poll in list(self._polls.values()):
            view = self._view()
            arrived = view is not None and answers.has_arrived(view, poll.question)
            if arrived or now >= poll.until:
                del self._polls[poll.question.id]
                self._attempt(poll.question.id, partial(self._fetched, poll.question))
                await self._drained()

    def _fetched(self, question: Fetch) -> Answer:
        return answers.fetched(self._services.ledger.view(), self._asker, question)

    async def _fill_streams(self) -> None:
        """One message of each stream in turn, until none has more to say."""
        busy = list(self._streams.values())
        while busy:
            for stream in busy.copy():
                if not self._advance(stream):
                    busy.remove(stream)
                await self._drained()
                await asyncio.sleep(0)

    def _advance(self, stream: Stream) -> bool:
        view = self._view()
        if view is None or stream.id not in self._streams:
            return False
        try:
            message = stream.next(view, self._services.now())
        except HeightError:
            return False
        except Refusal as refusal:
            self._streams.pop(stream.id, None)
            say_failure(self._stream, stream.id, refusal)
            return False
        if message is not None:
            self._send(message)
        return message is not None

    # -- writing -----------------------------------------------------------------------------------------------------

    def _attempt(self, id_: int, build: Callable[[], Answer]) -> None:
        try:
            self._send(build())
        except Refusal as refusal:
            say_failure(self._stream, id_, refusal)
        except HeightError as error:
            say_failure(self._stream, id_, Refusal(Code.NOT_READY, str(error)))

    def _send(self, answer: Answer) -> None:
        self._stream.write(encode(answer))

    async def _drained(self) -> None:
        """Wait while the client has much left to read; a client that does not read at all is cut off."""
        if self._stream.write_buffer_bytes <= self._limits.unread_bytes:
            return
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await self._stream.drain()
        except TimeoutError:
            self._keeper.slow(self._asker)
            raise _CutOff from None
