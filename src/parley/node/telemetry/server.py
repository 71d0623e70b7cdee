"""The broker's pages over HTTP, for machines that watch: GET and HEAD.

They are given in clear and without asking who the client is. What they say is for the operator's own network. On the loopback
interface the server also has to be called by its number or as localhost: a web page that has a name of its own point there
(DNS rebinding) learns nothing through its reader's browser.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from parley.net.listener import ListenError
from parley.net.tls import Address
from parley.node.logs import Log

if TYPE_CHECKING:  # imported with the first request
    from aiohttp import web

MAX_CONNECTIONS = 32
BACKLOG = 64
SECONDS = 10.0  # for one connection, from its first byte to its last
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Site = Callable[[str], Awaitable[Answer | None]]  # the answer at a path; None: there is nothing


class PageServer:
    """Made by `listen_http`. A connection is closed after its answer."""

    def __init__(
        self, address: Address, site: Site, log: Log, *, seconds: float, max_connections: int
    ) -> None:
        from parley.node.http_server import HttpServer  # noqa: PLC0415 - it takes its time and memory

        self.address = address
        self._site = site
        self._log = log
        self._http = HttpServer(self._answer, log, seconds=seconds, max_connections=max_connections)

    async def start(self, listening: socket.socket) -> None:
        await self._http.start(listening)

    async def close(self) -> None:
        """Accept no more, and end what is going on."""
        await self._http.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from parley.node.http_server import error_page, response  # noqa: PLC0415

        if is_loopback(self.address) and not all(map(_is_own, request.headers.getall("Host", []))):
            return error_page(HTTPStatus.MISDIRECTED_REQUEST)
        if request.method not in {"GET", "HEAD"}:
            return error_page(HTTPStatus.METHOD_NOT_ALLOWED)
        path = request.raw_path.partition("?")[0]
        try:
            answer = await self._site(path)
        except Exception as error:  # noqa: BLE001 - a page that fails must not break what is watched
            self._log.error("metrics_failed", path=path, why=str(error), exc_info=error)
            return error_page(HTTPStatus.INTERNAL_SERVER_ERROR)
        if answer is None:
            return error_page(HTTPStatus.NOT_FOUND)
        return response(answer.status, answer.body, answer.content_type)


async def listen_http(
    address: Address,
    site: Site,
    log: Log,
    *,
    seconds: float = SECONDS,
    max_connections: int = MAX_CONNECTIONS,
) -> PageServer:
    """Raises `ListenError` if the port cannot be had."""
    listening = _listening(address)
    bound = Address(*listening.getsockname()[:2])
    server = PageServer(bound, site, log, seconds=seconds, max_connections=max_connections)
    await server.start(listening)
    return server


def _listening(address: Address) -> socket.socket:
    try:
        return socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=address.host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise ListenError(address, error.strerror or str(error)) from error


def is_loopback(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host == "localhost"


def _is_own(called: str) -> bool:
    """Whether this is a number or localhost, which nobody can have point elsewhere; the port may differ in a tunnel."""
    host = re.sub(r":[0-9]*\Z", "", called)
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host.lower() == "localhost"
    return True
