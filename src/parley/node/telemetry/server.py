"""A small HTTP/1.1 server for machines that watch: GET and HEAD, one request for a connection, everything bounded.

It speaks in clear and asks nobody who they are. What it says is for the operator's own network. On the loopback interface
it also has to be called by its number or as localhost: a web page that has a name of its own point there (DNS rebinding)
learns nothing through its reader's browser.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from parley.net.listener import ListenError
from parley.net.tls import Address
from parley.node.logs import Log

MAX_REQUEST = 8 * 1024  # bytes of a request's line and headers
MAX_CONNECTIONS = 32
BACKLOG = 64
SECONDS = 10.0  # for one connection, from its first byte to its last
LINGER_SECONDS, LINGER_BYTES = (
    1.0,
    64 * 1024,
)  # for what a refused client still sends, or it would miss the answer

TEXT = "text/plain; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1024}) HTTP/1\.[01]")
_HOST = re.compile(rb"\r\nHost:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Site = Callable[[str], Awaitable[Answer | None]]  # what is at a path; None: nothing


class HttpServer:
    """Made by `listen_http`. A connection is closed after its answer, whatever the client would like."""

    def __init__(
        self, address: Address, site: Site, log: Log, *, seconds: float, max_connections: int
    ) -> None:
        self.address = address
        self._site = site
        self._log = log
        self._seconds = seconds
        self._max_connections = max_connections
        self._connections: dict[asyncio.Task[None], asyncio.WriteTransport] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=MAX_REQUEST)

    async def close(self) -> None:
        """Accept no more, and end what is going on."""
        assert self._server is not None, "it was started"
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An honest one takes milliseconds: whoever has been there longest is likely to only hold a place.
        if len(self._connections) >= self._max_connections:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).abort()
            oldest.cancel()
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer.transport
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._converse(reader, writer)
        except (OSError, TimeoutError):  # it is gone, or too slow
            pass
        finally:
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            await self._refuse(reader, writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        request = _REQUEST.fullmatch(head.partition(b"\r\n")[0])
        if request is None:
            await self._refuse(reader, writer, HTTPStatus.BAD_REQUEST)
            return
        if is_loopback(self.address) and not all(map(_is_own, _HOST.findall(head))):
            await self._refuse(reader, writer, HTTPStatus.MISDIRECTED_REQUEST)
            return
        method, target = request[1].decode(), request[2].decode()
        if method not in {"GET", "HEAD"}:
            await self._refuse(reader, writer, HTTPStatus.METHOD_NOT_ALLOWED)
            return
        answer = await self._answer(target.partition("?")[0])
        writer.write(_encoded(answer, with_body=method == "GET"))
        await _finish(writer)

    async def _answer(self, path: str) -> Answer:
        try:
            return await self._site(path) or _plain(HTTPStatus.NOT_FOUND)
        except Exception as error:  # noqa: BLE001 - whoever watches must not break what is watched
            self._log.error("metrics_failed", path=path, why=str(error), exc_info=error)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: HTTPStatus
    ) -> None:
        writer.write(_encoded(_plain(status), with_body=True))
        writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                left = LINGER_BYTES
                while left > 0 and (data := await reader.read(left)):
                    left -= len(data)
        await _finish(writer)


async def listen_http(
    address: Address,
    site: Site,
    log: Log,
    *,
    seconds: float = SECONDS,
    max_connections: int = MAX_CONNECTIONS,
) -> HttpServer:
    """Raises `ListenError` if the port cannot be had."""
    try:
        listening = socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=address.host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise ListenError(address, error.strerror or str(error)) from error
    bound = Address(*listening.getsockname()[:2])
    server = HttpServer(bound, site, log, seconds=seconds, max_connections=max_connections)
    await server.start(listening)
    return server


def is_loopback(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host == "localhost"


def _is_own(called: bytes) -> bool:
    """Whether this is a number or localhost, which nobody can have point elsewhere; the port may differ in a tunnel."""
    host = re.sub(r":[0-9]*\Z", "", called.decode(errors="replace"))
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host.lower() == "localhost"
    return True


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Until the other side has taken everything."""
    writer.close()
    await writer.wait_closed()


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode() + (answer.body if with_body else b"")
