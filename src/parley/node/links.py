"""The way out to another broker: dialled again and again, with a bounded queue in front."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom

from parley.net.frames import FrameError, FrameStream
from parley.net.messages import Failure, WireError, decode_opening
from parley.net.tls import Address, ConnectError, connect
from parley.node.logs import Log, Throttled

QUEUE_BYTES = 32 * 1024 * 1024
QUEUE_MESSAGES = 8_192
WRITE_AHEAD = 1024 * 1024  # bytes that are handed to the connection before it has to keep up
CONNECT_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two attempts
STABLE_SECONDS = CONNECT_SECONDS + 5.0  # an attempt that lasted so long was a good one
QUIET_MS = 60_000  # between two lines about one broker that cannot be reached


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

    def succeeded(self) -> None:
        self._pause = FIRST_PAUSE

    def next(self) -> float:
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause * self._chance.uniform(0.5, 1)


class Link:
    """The connection on which this broker sends to another one. It receives there only why it is not wanted."""

    def __init__(
        self,
        name: str,
        address: Address,
        context: ssl.SSLContext,
        *,
        hello: Callable[[], bytes],
        log: Log,
        ticks: Callable[[], int],
    ) -> None:
        self._name = name  # the TLS name
        self._address = address
        self._context = context
        self._hello = hello
        self._log = log.bind(peer=name, address=str(address))
        self._ticks = ticks
        self._since = 0  # when the last attempt began
        self._throttled = Throttled(QUIET_MS)
        self._outbox = Outbox()
        self._filled = asyncio.Event()
        self._dial = asyncio.Event()
        self._stream: FrameStream | None = None

    @property
    def connected(self) -> bool:
        return self._stream is not None

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
        """The broker is known to be there: do not wait out the pause.

        It has just dialled us, so what broke its connection may have broken ours, unseen. An older one is made anew.
        """
        self._dial.set()
        if self._stream is not None and self._ticks() - self._since >= STABLE_SECONDS * 1_000:
            self._stream.close()

    async def run(self) -> None:
        """Dial for ever; ends by cancellation."""
        backoff = Backoff()
        while True:
            self._since = self._ticks()
            try:
                await self._converse(
                    await connect(self._address, self._context, self._name, timeout=CONNECT_SECONDS)
                )
            except ConnectError as error:
                self._say("peer_unreachable", why=str(error))
            except Exception as error:  # noqa: BLE001 - a fault of ours must not cut us off from a broker for good
                self._log.error("link_failed", why=str(error), exc_info=error)
            if self._ticks() - self._since >= STABLE_SECONDS * 1_000:
                backoff.succeeded()
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next()):
                    await self._dial.wait()
            self._dial.clear()

    async def _converse(self, stream: FrameStream) -> None:
        self._say("peer_connected", why="")
        stream.write(self._hello())
        self._dial.clear()
        self._stream = stream
        writing = asyncio.create_task(self._write(stream))
        try:
            while (frame := await stream.read()) is not None:
                self._on_frame(frame)
        except FrameError as error:
            self._say("peer_lost", why=str(error))
        finally:
            self._stream = None
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

    def _on_frame(self, frame: bytes) -> None:
        try:
            opening = decode_opening(frame)
        except WireError:
            return
        if isinstance(opening, Failure) and self._throttled.count(
            "peer_refuses_us", opening.code, self._ticks()
        ):
            self._log.error("peer_refuses_us", code=opening.code, why=opening.detail)

    def _say(self, event: str, *, why: str) -> None:
        if count := self._throttled.count(event, why, self._ticks()):
            say = self._log.warning if event == "peer_unreachable" else self._log.info
            say(event, why=why, count=count)
