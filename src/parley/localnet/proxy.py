"""A loopback proxy for one direction of one link: it can be cut, slowed and healed. Bytes are never changed.

Every broker dials every other one, and every client dials every broker, through a proxy of its own, so a link can be
cut in one direction and for one party alone.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CHUNK = 64 * 1024  # bytes that wait in one direction of one connection, at most thrice
MAX_CONNECTIONS = 256


class Flow(Enum):
    """What becomes of the bytes."""

    OPEN = "open"
    REFUSED = "refused"  # connections break and new ones are closed at once: the other side knows
    SWALLOWED = "swallowed"  # bytes vanish: the other side has to notice by itself


class Proxy:
    """Listens at `address` from when it is entered to `close`, and hands everything on to `target`.

    `source` is the address of this machine that the target sees; empty: the system chooses.
    """

    def __init__(self, target: str, source: str = "") -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._source = (source, 0) if source else None
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.flow = Flow.OPEN
        self.delay = 0.0  # seconds by which bytes are late

    async def __aenter__(self) -> Self:
        # The port stays open while the link is cut, so that no other program gets it; connections are refused.
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=CHUNK)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        assert self._server is not None, "it was entered"
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def cut(self, flow: Flow) -> None:
        self.flow = flow
        if flow is Flow.REFUSED:
            self._break(self._connections)

    def heal(self) -> None:
        """Everything flows again. A connection that has lost bytes is of no use any more, so it ends."""
        self.flow, self.delay = Flow.OPEN, 0.0
        self._break([one for one in self._connections if one.torn])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._break(self._connections)
        while tasks := [one.task for one in self._connections]:
            await asyncio.wait(tasks)

    def _break(self, connections: set[_Connection] | list[_Connection]) -> None:
        for one in list(connections):
            one.task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server runs its handlers as tasks"
        if self.flow is Flow.REFUSED or len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        connection = _Connection(self, task)
        self._connections.add(connection)
        try:
            await connection.run(reader, writer, self._target, self._source)
        except (OSError, asyncio.CancelledError):
            pass  # one of the sides has gone, or the link was cut: both learn of it below
        finally:
            self._connections.discard(connection)
            writer.transport.abort()


class _Connection:
    """Two pumps, one in each direction. `torn` once bytes were swallowed."""

    def __init__(self, proxy: Proxy, task: asyncio.Task[None]) -> None:
        self._proxy = proxy
        self.task = task
        self.torn = False

    async def run(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: tuple[str, int],
        source: tuple[str, int] | None,
    ) -> None:
        there, back = await asyncio.open_connection(*target, limit=CHUNK, local_addr=source)
        back.transport.set_write_buffer_limits(CHUNK)
        writer.transport.set_write_buffer_limits(CHUNK)
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        try:
            # TLS knows no half-closed connection: when one side has ended, both have.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy = self._proxy
        while data := await reader.read(CHUNK):
            if proxy.delay:
                await asyncio.sleep(proxy.delay)
            if proxy.flow is Flow.SWALLOWED:
                self.torn = True
                continue
            writer.write(data)
            await writer.drain()  # who does not read is not read from
        # Until the system has everything, so that closing does not cut off the last words.
        writer.transport.set_write_buffer_limits(0)
        await writer.drain()
