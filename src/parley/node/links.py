"""The way out to another broker: dialled again and again, with a bounded queue in front."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom

from parley.net.frames import FrameError, FrameStream
from parley.net.messages import Failure, Ping, WireError, decode_reply, encode
from parley.net.tls import Address, ConnectError, connect
from parley.node.contact import Contact
from parley.node.logs import Log, Throttled

QUEUE_BYTES = 32 * 1024 * 1024
QUEUE_MESSAGES = 8_192
WRITE_AHEAD = 1024 * 1024  # bytes that are handed to the connection before it has to keep up
CONNECT_SECONDS = 3.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two attempts
REFUSED_PAUSE = 5.0  # after one that was refused
STABLE_MS = 5_000  # a connection that has lasted so long was a good one
QUIET_MS = 60_000  # between two lines about one broker that refuses us


class Outbox:
    """Messages for one broker. When it is full the oldest go: consensus says the newest again, and fetches the rest."""

    def __init__(self, max_bytes: int = QUEUE_BYTES, max_messages: int = QUEUE_MESSAGES) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, data: bytes) -> None:
        self._messages.append(data)
        self._bytes += len(data)
        while self._bytes > self._max_bytes or len(self._messages) > self._max_messages:
            self.take()
            self.dropped += 1

    def take(self) -> bytes:
        data = self._messages.popleft()
        self._bytes -= len(data)
        return data


class Backoff:
    """How long to wait before the next attempt: twice as long each time, and not everybody at once."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._chance = SystemRandom()

    def succeeded(self) -> bool:
        """Whether that is new."""
        before, self._pause = self._pause, FIRST_PAUSE
        return before != FIRST_PAUSE

    def refused(self) -> None:
        """The other side is there and does not want us: to come back soon would only cost both of us a handshake."""
        self._pause = REFUSED_PAUSE

    def next(self) -> float:
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause * self._chance.uniform(0.5, 1)


class Link:
    """The connection on which this broker sends to another one. Only answers to pings, or a refusal, come back on it."""

    def __init__(
        self,
        name: str,
        address: Address,
        context: ssl.SSLContext,
        *,
        hello: Callable[[], bytes],
        contact: Contact,
        told_time: Callable[[int, int], None],
        log: Log,
        ticks: Callable[[], int],
    ) -> None:
        """`told_time` learns the other side's clock, and how many ms passed between question and answer."""
        self._name = name  # the TLS name
        self._address = address
        self._context = context
        self._hello = hello
        self._contact = contact
        self._told_time = told_time
        self._log = log.bind(address=str(address))
        self._ticks = ticks
        self._since = 0  # when the connection began
        self._throttled = Throttled(QUIET_MS)
        self._outbox = Outbox()
        self._filled = asyncio.Event()
        self._dial = asyncio.Event()
        self._backoff = Backoff()
        self._stream: FrameStream | None = None

    @property
    def dropped(self) -> int:
        return self._outbox.dropped

    def send(self, data: bytes) -> None:
        stream = self._stream
        if stream is not None and not self._outbox and stream.write_buffer_bytes < WRITE_AHEAD:
            stream.write(data)  # nothing waits, so there is nobody to be woken for it
            return
        self._outbox.put(data)
        self._filled.set()

    def present(self, context: ssl.SSLContext) -> None:
        """What to dial with from now on; a connection that is open stays."""
        self._context = context

    def dial_now(self) -> None:
        """The broker is known to be there, as it has just dialled us: do not wait out the pause."""
        self._dial.set()

    def beat(self) -> None:
        """To be called about every second: ask for a sign of life, or end a connection on which there is none."""
        if self._stream is None:
            return
        if self._contact.silent:
            self._stream.abort()
        else:
            # Past what waits in the outbox, which may be much.
            self._stream.write(encode(Ping(self._contact.ping())))

    async def run(self) -> None:
        """Dial for ever; ends by cancellation."""
        while True:
            try:
                stream = await connect(self._address, self._context, self._name, timeout=CONNECT_SECONDS)
                await self._converse(stream)
            except ConnectError as error:
                self._contact.closed(error.problem)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not cut us off from a broker for good
                self._contact.closed(str(error))
                self._log.error("link_failed", why=str(error), exc_info=error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next()):
                    await self._dial.wait()
            self._dial.clear()

    async def _converse(self, stream: FrameStream) -> None:
        stream.write(self._hello())
        self._dial.clear()
        self._stream, self._since = stream, self._ticks()
        self._contact.opened()
        self.beat()
        writing = asyncio.create_task(self._write(stream))
        problem = "it has closed the connection"
        try:
            while (frame := await stream.read()) is not None:
                problem = self._on_frame(frame) or problem
        except FrameError as error:
            problem = str(error)
        finally:
            self._stream = None
            self._contact.closed(problem)
            writing.cancel()
            await asyncio.wait([writing])
            await stream.wait_closed()

    async def _write(self, stream: FrameStream) -> None:
        try:
            while True:
                await self._filled.wait()
                while self._outbox and stream.write_buffer_bytes < WRITE_AHEAD:
                    stream.write(self._outbox.take())
                if self._outbox:
                    await stream.drain()
                else:
                    self._filled.clear()
        except FrameError:
            stream.close()  # whoever reads it says why

    def _on_frame(self, frame: bytes) -> str:
        """Why the other side wants no connection, if that is what it says."""
        try:
            reply = decode_reply(frame)
        except WireError:
            return ""
        if isinstance(reply, Failure):
            self._on_refusal(reply)
            return reply.detail
        if (round_trip := self._contact.answered(reply.number)) is not None:
            self._told_time(reply.time, round_trip)
        if self._ticks() - self._since >= STABLE_MS and self._backoff.succeeded():
            self._throttled = Throttled(QUIET_MS)  # what is refused from now on is another matter
        return ""

    def _on_refusal(self, refusal: Failure) -> None:
        self._backoff.refused()
        if self._throttled.count("peer_refuses_us", refusal.code, self._ticks()):
            self._log.error("peer_refuses_us", code=refusal.code, why=refusal.detail)
