"""The one port of a broker, on which other brokers and clients arrive and strangers are turned away cheaply."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from parley.net.frames import CLOSE_SECONDS, FrameStream, reason_of
from parley.net.limits import source_of
from parley.net.sockets import keep_alive
from parley.net.tls import Address

HANDSHAKE_SECONDS = 5.0  # for the other side to finish the TLS handshake
BACKLOG = 256  # connections that the system keeps waiting to be accepted
ACCEPT_PAUSE_SECONDS = 0.1  # after accepting failed, usually because the process has too many files open


class Visit:
    """A connection that has come in. `source` is the other side's address or network."""

    __slots__ = ("_connection", "source")

    def __init__(self, source: str, connection: socket.socket) -> None:
        self.source = source
        self._connection = connection

    def end(self) -> None:
        """Cut it: a read from it finds its end at once."""
        with suppress(OSError):  # it may have ended by itself
            self._connection.shutdown(socket.SHUT_RDWR)


class Door(Protocol):
    """Who may come in. Every `enter` that admits has its `leave`; a visit may be ended early to make room for another."""

    def enter(self, visit: Visit) -> bool: ...

    def leave(self, visit: Visit) -> None: ...

    def failed(self, visit: Visit, reason: str) -> None:
        """It was admitted but did not complete the TLS handshake."""


Serve = Callable[[FrameStream, Visit], Awaitable[None]]


class ListenError(Exception):
    """The port cannot be had."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(
            f"cannot listen on {address}: {reason}; choose another address or stop what uses this one"
        )


class Listener:
    """A listening port. Strangers meet the door before the costly handshake, so that a flood is cheap to refuse."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        door: Door,
        serve: Serve,
        handshake_seconds: float,
    ) -> None:
        self._listening = listening
        self._front = context, serve
        self._door = door
        self._handshake_seconds = handshake_seconds
        self._connections: set[asyncio.Task[None]] = set()
        self.address = Address(*listening.getsockname()[:2])
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def present(self, context: ssl.SSLContext, serve: Serve) -> None:
        """Meet whoever comes from now on with another certificate; those who are there keep the one that they were shown.

        Both change at once, so that `serve` can know which certificate its connection was opened with.
        """
        self._front = context, serve

    async def close(self) -> None:
        """Accept no more, cancel whatever serves a connection, and return when all are closed."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()
        self._listening.close()
        await asyncio.sleep(0)  # a task that never ran would not close its socket
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Take one connection; the loop comes back for the next, so that a flood does not have the loop to itself."""
        try:
            accepted, peer = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it was gone before we came
            return
        except OSError:
            self._loop.remove_reader(self._listening)
            self._pause = self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume)
            return
        visit = Visit(source_of(peer[0]), accepted)
        if not self._door.enter(visit):
            accepted.close()
            return
        accepted.setblocking(False)
        with suppress(OSError):  # it may be gone already, and then the handshake says so
            keep_alive(accepted)
        task = self._loop.create_task(self._welcome(accepted, visit, *self._front))
        self._connections.add(task)
        task.add_done_callback(self._ended)

    async def _welcome(
        self,
        accepted: socket.socket,
        visit: Visit,
        context: ssl.SSLContext,
        serve: Serve,
    ) -> None:
        try:
            stream = await self._handshake(accepted, context)
        except OSError as error:
            self._door.failed(visit, reason_of(error))
        else:
            try:
                await serve(stream, visit)
            finally:
                await stream.wait_closed()
        finally:
            self._door.leave(visit)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # reported at once, not when the task is collected
            self._loop.call_exception_handler({"message": "serving a connection failed", "exception": error})

    async def _handshake(self, accepted: socket.socket, context: ssl.SSLContext) -> FrameStream:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=context,
            ssl_handshake_timeout=self._handshake_seconds,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )
        return FrameStream(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))


def listen(
    address: Address,
    context: ssl.SSLContext,
    door: Door,
    serve: Serve,
    *,
    handshake_seconds: float = HANDSHAKE_SECONDS,
) -> Listener:
    """Serve each connection that passes the door and the handshake in a task of its own; it is closed after `serve`."""
    try:
        listening = socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=address.host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise ListenError(address, error.strerror or str(error)) from error
    listening.setblocking(False)
    return Listener(listening, context, door, serve, handshake_seconds)
