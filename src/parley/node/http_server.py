"""A small HTTP/1.1 server on aiohttp: one request for a connection, and a limit for everything that a client may take.

Importing aiohttp takes some 130 ms and 9 MB of memory, so a broker imports this module when the first client needs it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from parley.node.logs import Log

MAX_REQUEST = 8 * 1024  # bytes of a request's line and headers
MAX_TARGET = 1024  # characters of a path with its query
FRAMING_BYTES = 4 * 1024  # of a body, beside what it holds
LINGER_SECONDS = 1.0  # for what a refused client still sends, or it would miss the answer
LINGER_BYTES = 64 * 1024
TEXT = "text/plain; charset=utf-8"

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
    "Server": "parley",
}
_NO_REQUEST = b"\0"  # aiohttp refuses it
_HEAD_END = b"\r\n\r\n"


def response(status: HTTPStatus, body: bytes, content_type: str, **headers: str) -> web.Response:
    """An answer after which the connection is closed."""
    kind = web.Response if status < HTTPStatus.BAD_REQUEST else _Refusal
    found = kind(status=status, body=body, headers={"Content-Type": content_type, **_HEADERS, **headers})
    found.force_close()
    return found


def error_page(status: HTTPStatus) -> web.Response:
    """An answer that shows only its status, as a text."""
    allow = {"Allow": "GET, HEAD"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
    return response(status, f"{status.phrase}\n".encode(), TEXT, **allow)


def stream(content_type: str) -> web.StreamResponse:
    """An answer whose parts are written one after the other."""
    found = web.StreamResponse(headers={"Content-Type": content_type, **_HEADERS})
    found.force_close()
    return found


def take_time(request: web.BaseRequest) -> None:
    """Lift the time limit of this connection: it lasts until its handler ends, or the client closes it."""
    _connection(request).take_time()


class _Refusal(web.Response):
    """An answer with an error. What the client still sends is read for a moment, or it would miss the answer."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self._connection = _connection(request)
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        await self._connection.linger()


class HttpServer:
    """A server that runs from `start` to `close`. When all places are taken, the oldest connection is closed for a new one."""

    def __init__(
        self, handle: Handle, log: Log, *, seconds: float, max_connections: int, max_body: int = 0
    ) -> None:
        """`seconds` are those of a connection, from its first byte to its last, unless its handler calls `take_time`."""
        self.log = log
        self.seconds = seconds
        self.max_body = max_body
        self._handle = handle
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._connections: dict[asyncio.Future[None], _Connection] = {}  # by their ends, the oldest first
        self._lasting: dict[asyncio.Future[None], _Connection] = {}  # whose handlers take their time
        self._handlers: set[asyncio.Task[Any]] = set()
        self._manager = web.Server(self._answer, request_factory=self._request, handler_cancellation=True)
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        create = (
            self._loop.create_unix_server if listening.family == socket.AF_UNIX else self._loop.create_server
        )
        self._server = await create(lambda: _Connection(self, self._manager, self._loop), sock=listening)

    async def close(self) -> None:
        """Accept no more, and end what is going on. Handlers have ended on return."""
        if self._server is not None:
            self._server.close()
        ends = {**self._connections, **self._lasting}
        for connection in ends.values():
            connection.abort()
        for task in self._handlers:
            task.cancel()
        if waiting := [*ends, *self._handlers]:
            await asyncio.wait(waiting)

    def opened(self, connection: _Connection) -> None:
        # An honest client takes milliseconds, so the oldest connection most likely only holds its place.
        if len(self._connections) >= self._max_connections:
            self._connections.pop(next(iter(self._connections))).abort()
        self._connections[connection.end] = connection
        connection.end.add_done_callback(self._forget)

    def lasts(self, connection: _Connection) -> None:
        """Free the place of a connection, which is not closed for a new one any more."""
        self._connections.pop(connection.end, None)
        self._lasting[connection.end] = connection

    def _forget(self, end: asyncio.Future[None]) -> None:
        self._connections.pop(end, None)
        self._lasting.pop(end, None)

    def _request(self, *parts: Any) -> web.BaseRequest:  # noqa: ANN401 - aiohttp's own
        message, payload, protocol, writer, task = parts
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._loop, client_max_size=self.max_body
        )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None, "aiohttp runs handlers as tasks"
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        if not _is_plain(request):
            return error_page(HTTPStatus.BAD_REQUEST)
        return await self._handle(request)


class _Connection(web.RequestHandler):
    """One connection. Aiohttp sees the head of a request when it has come whole and is not too long."""

    def __init__(self, server: HttpServer, manager: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(manager, loop=loop, lingering_time=0, tcp_keepalive=False, auto_decompress=False)
        self.end: asyncio.Future[None] = loop.create_future()
        self._server = server
        self._deadline = loop.call_later(server.seconds, self.abort)
        self._head = b""
        self._left = server.max_body + FRAMING_BYTES if server.max_body else 0  # bytes that may follow it
        self._refused = HTTPStatus.BAD_REQUEST  # if it is no request
        self._lingering = False
        self._socket: asyncio.Transport | None = None  # which aiohttp forgets when it closes it

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def take_time(self) -> None:
        """Lift the time limit: from now on this connection lasts until its handler ends, or the client closes it."""
        self._deadline.cancel()
        self._server.lasts(self)

    async def linger(self) -> None:
        self._lingering, self._left = True, LINGER_BYTES
        if self._socket is not None and not self._socket.is_closing():
            self._socket.write_eof()
            await asyncio.wait([self.end], timeout=LINGER_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._socket = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        self._server.opened(self)

    def connection_lost(self, error: BaseException | None) -> None:
        self._deadline.cancel()
        super().connection_lost(error)
        if not self.end.done():
            self.end.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._head.endswith(_HEAD_END):
            self._go_on(data)
            return
        begin = max(0, len(self._head) - len(_HEAD_END))
        self._head += data
        end = self._head.find(_HEAD_END, begin)
        size = len(self._head) if end < 0 else end + len(_HEAD_END)
        if size > MAX_REQUEST:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif end >= 0 and self._head.partition(b"\r\n")[0].count(b" ") != 2:  # aiohttp is not that strict
            self._refuse(HTTPStatus.BAD_REQUEST)
        elif end >= 0:
            self._head, rest = self._head[:size], self._head[size:]
            super().data_received(self._head)
            self._go_on(rest)

    def _go_on(self, data: bytes) -> None:
        """Take what follows the head: a body up to its limit, or, after an answer with an error, what is dropped."""
        if self._lingering:
            self._left -= len(data)
            if self._left < 0:
                self.abort()
        elif wanted := data[: self._left]:
            self._left -= len(wanted)
            super().data_received(wanted)

    def _refuse(self, status: HTTPStatus) -> None:
        self._head, self._refused = _HEAD_END, status
        super().data_received(_NO_REQUEST)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's words, for its own page
    ) -> web.StreamResponse:
        if status != HTTPStatus.INTERNAL_SERVER_ERROR:
            return error_page(self._refused)
        self._server.log.error("http_failed", path=request.path, why=str(exc), exc_info=exc)
        return error_page(HTTPStatus.INTERNAL_SERVER_ERROR)


def _connection(request: web.BaseRequest) -> _Connection:
    found = request.protocol
    assert isinstance(found, _Connection), "the server makes no others"
    return found


def _is_plain(request: web.BaseRequest) -> bool:
    """Whether it asks for a path of this server, in a version of HTTP that is spoken here."""
    target = request.raw_path
    return (
        request.version in (HttpVersion10, HttpVersion11)
        and target.startswith("/")
        and len(target) <= MAX_TARGET
        and target.isascii()
        and target.isprintable()
    )
