"""One connection to one broker: proved to it, answers matched to questions, streams within their credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import replace

from parley.client.contexts import renewed
from parley.ledger.proofs import ProofError
from parley.model.credentials import Identity, possession
from parley.model.genesis import Broker, Genesis
from parley.model.refusals import Refusal, Refused, class_of
from parley.model.text import unsteering
from parley.net import tls
from parley.net.frames import MAX_LIMIT, FrameError, FrameStream
from parley.net.messages import (
    MAX_ANSWER,
    VERSION,
    Answer,
    Authenticate,
    Challenge,
    CloseStream,
    Credit,
    Delivery,
    Failure,
    Fetched,
    Head,
    OpenStream,
    PackedFetched,
    Question,
    ReadBlocks,
    Receipted,
    Submit,
    Welcome,
    WireError,
    decode_opening,
    decode_packed,
    encode,
)

CONNECT_SECONDS = 5.0  # for TCP and TLS
OPENING_SECONDS = 5.0  # for the broker to take the credential
MAX_IN_FLIGHT = 1_000  # questions of one connection that wait for an answer
MAX_UNSENT = 4 * 1024 * 1024  # bytes that wait to be sent while more is posted
MAX_QUEUED = 2_048  # pieces of a stream that wait to be looked at
MAX_FRAME = 2 * MAX_ANSWER  # a delivery ends with a whole block, so the last one may overshoot
CREDIT = 1_000  # messages that a broker may push ahead of their reader

A = TypeVar("A", bound=Answer)
OnAnswer = Callable[[Answer | Exception], None]  # called with the answer, or with why there will be none


class Gone(Exception):  # noqa: N818 - it names what happened
    """The broker cannot be reached, or its connection broke; what was asked may be asked of another."""


class Declined(Exception):  # noqa: N818 - it names what happened
    """One broker's word, without proof, that it cannot or will not answer."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(str(refusal.error()))

    @classmethod
    def of(cls, failure: Failure) -> Self:
        """What the broker wrote ends up in logs and on terminals, so it is made harmless first."""
        fields = tuple(
            (unsteering(name), unsteering(value) if isinstance(value, str) else value)
            for name, value in failure.fields
        )
        return cls(Refusal(unsteering(failure.code), unsteering(failure.reason), fields))

    @property
    def kind(self) -> type[Refused]:
        """The class of its code, which says what the code means."""
        return class_of(self.refusal.code)


class Leaving:
    """Connections that are being closed; they are waited for only when the client itself is closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, closing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(closing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)


@dataclass(frozen=True)
class Dialler:
    """What it takes to reach the brokers of one shard as one client."""

    genesis: Genesis
    shard: int
    identity: Identity
    clock: Callable[[], int]
    file: Path | None = None  # of the identity, where its credential may be renewed
    leaving: Leaving = field(default_factory=Leaving)

    async def connect(self, broker: Broker, address: tls.Address) -> Connection:
        """Raises `Gone` or `Declined`."""
        organisation = self.genesis.organisation(broker.organisation)
        assert organisation is not None, "a genesis file is consistent"
        name = tls.tls_name(broker.name, broker.organisation)
        try:
            stream = await tls.connect(
                address, tls.client_context(organisation.tls_ca), name, timeout=CONNECT_SECONDS
            )
        except tls.ConnectError as error:
            raise Gone(error.problem) from error  # the caller names the broker and its address
        except tls.ContextError as error:
            raise Gone(str(error)) from error
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                ahead = await self._open(stream, broker.name)
        except BaseException as error:
            self.leaving.add(stream.wait_closed())
            if isinstance(error, TimeoutError):
                raise Gone(f"it took longer than {OPENING_SECONDS:g} s to accept the credential") from None
            if isinstance(error, FrameError | WireError):
                raise Gone(str(error)) from error
            raise
        stream.limit = MAX_FRAME
        return Connection(broker.name, stream, self.clock, ahead)

    async def _open(self, stream: FrameStream, name: str) -> int:
        """By how many ms the broker's clock is ahead of this one, as far as it says."""
        chain = self.genesis.chain
        challenge = await _opening(stream)
        if not isinstance(challenge, Challenge) or challenge.version != VERSION:
            raise Gone("it does not speak this version of the protocol")
        if challenge.chain != chain:
            raise Gone("it belongs to another network; compare the genesis files")
        assert stream.peer_certificate is not None, "TLS clients see the server's certificate"
        certificate = tls.certificate_hash(stream.peer_certificate)
        # Over the broker's own certificate, so that the answer is of no use to a machine in between (P4).
        identity = renewed(self.identity, self.file)
        signature = identity.key().sign(possession(chain, challenge.nonce, certificate))
        stream.write(encode(Authenticate(identity.credential, signature, self.shard)))
        welcome = await _opening(stream)
        if not isinstance(welcome, Welcome) or welcome.broker != name:
            raise Gone("it answers under another broker's name")
        return welcome.time - self.clock()


async def _opening(stream: FrameStream) -> Challenge | Welcome:
    frame = await stream.read()
    if frame is None:
        raise Gone("it closed the connection before it took the credential")
    match decode_opening(frame):
        case Failure() as failure:
            raise Declined.of(failure)
        case Challenge() | Welcome() as opening:
            return opening
        case _:
            raise Gone("it does not speak this version of the protocol")


class Connection:
    """Made by a `Dialler`. Everything that waits on it learns when it is lost."""

    def __init__(self, broker: str, stream: FrameStream, clock: Callable[[], int], ahead: int = 0) -> None:
        self.broker = broker
        # Ms by which the broker's clock was ahead when it was opened, by its own word.
        self.clock_ahead = ahead
        self._stream = stream
        self._clock = clock
        self._last_id = 0
        self._pending: dict[int, OnAnswer] = {}
        self._streams: dict[int, Stream] = {}
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._lost: Exception | None = None
        self._word = ""  # what the broker said before it closed the connection
        self._reading = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        return self._lost is None

    @property
    def certificate_ends(self) -> int | None:
        """Of what the broker showed when this was opened; ms since 1970."""
        return self._stream.peer_certificate_ends

    async def ask(self, question: Question, kind: type[A]) -> A:
        """The answer. Raises `Declined` for a failure, `Gone`, and `ProofError` for an answer of another kind."""
        async with self._room:
            number = self._number()
            waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._pending[number] = partial(_resolve, waiting)
            if isinstance(question, ReadBlocks):
                self._stream.limit = MAX_LIMIT  # a block comes whole, with all that matched in it
            try:
                await self._send(replace(question, id=number))
                answer = await waiting
            finally:
                self._pending.pop(number, None)
        if isinstance(answer, Failure):
            raise Declined.of(answer)
        if kind is Fetched and isinstance(answer, PackedFetched):
            try:
                answer = answer.opened()
            except WireError as error:
                raise ProofError(f"it sent bytes that are no answer: {error}") from None
        if not isinstance(answer, kind):
            raise ProofError(f"it answered a {type(question).__name__} with a {type(answer).__name__}")
        return answer

    def post(self, batch: bytes, on_answer: OnAnswer) -> bool:
        """Submit a batch without waiting; `on_answer` is called with what came of it. False: there is no room now."""
        full = len(self._pending) >= MAX_IN_FLIGHT or self._stream.write_buffer_bytes > MAX_UNSENT
        if self._lost is not None or full:
            return False
        number = self._number()
        self._pending[number] = on_answer
        self._stream.write(encode(Submit(number, batch)))
        return True

    async def open(self, question: OpenStream) -> Stream:
        number = self._number()
        stream = self._streams[number] = Stream(self, number, question.credit, self._clock)
        await self._send(replace(question, id=number))
        return stream

    def abandon(self, reason: str) -> None:
        """Close it without waiting for that."""
        self._lose(Gone(reason))

    async def close(self) -> None:
        self.abandon("the client closed it")
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._stream.wait_closed()

    def write(self, question: Credit | CloseStream) -> None:
        if self._lost is None:
            self._stream.write(encode(question))

    def forget(self, number: int) -> None:
        if self._streams.pop(number, None) is not None:
            self.write(CloseStream(number))

    def _number(self) -> int:
        if self._lost is not None:
            raise self._lost
        while True:
            self._last_id = self._last_id % (2**32 - 1) + 1
            if self._last_id not in self._pending and self._last_id not in self._streams:
                return self._last_id

    async def _send(self, question: Question) -> None:
        self._stream.write(encode(question))
        try:
            await self._stream.drain()
        except FrameError as error:
            raise Gone(str(error)) from error

    async def _read(self) -> None:
        try:
            while frames := await self._stream.read_many():
                for frame in frames:
                    self._take(decode_packed(frame))
            self._lose(Gone(self._word or "it closed the connection"))
        except FrameError as error:
            self._lose(Gone(self._word or str(error)))
        except WireError as error:
            self._lose(ProofError(f"it sent bytes that are no answer: {error}"))
        except ProofError as error:
            self._lose(error)

    def _take(self, answer: Answer) -> None:
        if (stream := self._streams.get(answer.id)) is not None:
            stream.put(answer)
        elif answer.id == 0 and isinstance(answer, Failure):
            self._word = str(Declined.of(answer))
        else:
            others = answer.others if isinstance(answer, Receipted) else ()
            for number in (answer.id, *others):
                if (on_answer := self._pending.pop(number, None)) is not None:
                    on_answer(answer)  # without one it answers a question that was given up

    def _lose(self, reason: Exception) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        pending, self._pending = self._pending, {}
        for on_answer in pending.values():
            on_answer(reason)
        for stream in self._streams.values():
            stream.lose(reason)
        self._stream.close()


def _resolve(waiting: asyncio.Future[Answer], said: Answer | Exception) -> None:
    if waiting.done():
        return
    if isinstance(said, Exception):
        waiting.set_exception(said)
    else:
        waiting.set_result(said)


@dataclass(eq=False)
class Stream:
    """What a broker pushes, in the order in which it came; each piece with the time of its arrival."""

    _connection: Connection
    _number: int
    outstanding: int  # messages that the broker may still send
    _clock: Callable[[], int]
    _queue: deque[tuple[Delivery | Head, int]] = field(default_factory=deque)
    _end: Exception | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def next(self) -> tuple[Delivery | Head, int]:
        """Raises `Declined` when the broker ends the stream, and whatever ends the connection."""
        while not self._queue:
            if self._end is not None:
                raise self._end
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    def grant(self, messages: int) -> None:
        self.outstanding += messages
        self._connection.write(Credit(self._number, messages))

    def close(self) -> None:
        self._connection.forget(self._number)

    def put(self, answer: Answer) -> None:
        match answer:
            case Delivery():
                self._charge(sum(len(block.contents) for block in answer.blocks))
                self._queue.append((answer, self._clock()))
            case Head():
                # Of heads in a row only the newest matters, so a slow reader does not pile them up.
                if self._queue and isinstance(self._queue[-1][0], Head):
                    self._queue.pop()
                self._queue.append((answer, self._clock()))
            case Failure():
                self._end = Declined.of(answer)
            case _:
                raise ProofError(f"it sent a {type(answer).__name__} where a stream was open")
        if len(self._queue) > MAX_QUEUED:
            raise ProofError("it pushes more than any credit allows")
        self._wake.set()

    def lose(self, reason: Exception) -> None:
        self._end = self._end or reason
        self._wake.set()

    def _charge(self, messages: int) -> None:
        # A block's messages come together, so the last ones may overdraw; after that there is nothing left.
        if messages and self.outstanding <= 0:
            raise ProofError("it pushes messages without credit")
        self.outstanding -= messages
