"""The pages' HTTP server: strangers get a short answer or none, and no client holds it up or makes it grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs
from tests.node.network import SECONDS
from tests.node.watching import Page, ask, get

from parley.net.listener import ListenError
from parley.net.tls import Address
from parley.node.http_server import MAX_REQUEST
from parley.node.telemetry.server import Answer, PageServer, listen_http

ANY = Address("127.0.0.1", 0)
HOST = b"Host: localhost\r\n\r\n"  # the last line of a request's head
LARGE = bytes(64 * 1024 * 1024)  # more than what sockets take by themselves


async def site(path: str) -> Answer | None:
    match path:
        case "/hello":
            return Answer(HTTPStatus.OK, b"hello\n")
        case "/large":
            return Answer(HTTPStatus.OK, LARGE)
        case "/broken":
            raise RuntimeError("a defect")
        case _:
            return None


@asynccontextmanager
async def served(seconds: float = SECONDS, max_connections: int = 8) -> AsyncIterator[PageServer]:
    server = await listen_http(
        ANY, site, structlog.get_logger(), seconds=seconds, max_connections=max_connections
    )
    try:
        yield server
    finally:
        await server.close()


def run(story: Coroutine[Any, Any, None]) -> None:
    """On the event loop that brokers run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story)


def told(
    story: Callable[[PageServer], Coroutine[Any, Any, None]],
    seconds: float = SECONDS,
    max_connections: int = 8,
) -> None:
    async def tell() -> None:
        async with served(seconds, max_connections) as server:
            await story(server)

    run(tell())


def test_a_page_is_given_once_and_the_connection_closed() -> None:
    async def story(server: PageServer) -> None:
        page = await get(server.address, "/hello?with=words")
        assert (page.status, page.body) == (200, b"hello\n")
        assert page.headers["Content-Length"] == "6"
        assert page.headers["Connection"] == "close"

    told(story)


def test_head_gives_the_headers_of_get_and_no_body() -> None:
    async def story(server: PageServer) -> None:
        head, page = (
            await ask(server.address, b"HEAD /hello HTTP/1.0\r\n\r\n"),
            await get(server.address, "/hello"),
        )
        for one in (head, page):
            del one.headers["Date"]
        assert head == Page(200, page.headers, b"")

    told(story)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n" + HOST, 404),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 5\r\n" + HOST + b"hello", 405),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 500000\r\n" + HOST + b"hello", 405),
        (b"GET /hello HTTP/2.0\r\n" + HOST, 400),
        (b"GET hello HTTP/1.1\r\n" + HOST, 400),
        (b"GET http://elsewhere/hello HTTP/1.1\r\n" + HOST, 400),
        (b"GET  /hello HTTP/1.1\r\n" + HOST, 400),
        (b"GET /hel\xfflo HTTP/1.1\r\n" + HOST, 400),
        (b"get /hello HTTP/1.1\r\n" + HOST, 400),
        (b"GET /" + b"x" * 2_000 + b" HTTP/1.1\r\n" + HOST, 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: localhost\r\n" + HOST, 400),
        (b"\x16\x03\x01\x02\x00 a TLS hello\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * MAX_REQUEST + b"\r\n", 431),
        (b"x" * (2 * MAX_REQUEST), 431),
    ],
)
def test_what_is_no_request_for_a_page_is_refused_with_the_reason(request_: bytes, status: int) -> None:
    async def story(server: PageServer) -> None:
        page = await ask(server.address, request_)
        assert page.status == status
        assert page.body == f"{HTTPStatus(status).phrase}\n".encode()
        assert ("Allow" in page.headers) == (status == 405)

    told(story)


@pytest.mark.parametrize(
    "called", ["127.0.0.1", "127.0.0.1:9464", "localhost:8080", "[::1]:9464", "LOCALHOST"]
)
def test_who_calls_this_machine_by_its_number_or_as_localhost_is_answered(called: str) -> None:
    async def story(server: PageServer) -> None:
        page = await ask(server.address, f"GET /hello HTTP/1.1\r\nhost:{called} \r\n\r\n".encode())
        assert page.status == 200

    told(story)


@pytest.mark.parametrize(
    "called", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "localhost.evil", ""]
)
def test_a_name_that_a_stranger_has_point_here_is_not_answered(called: str) -> None:
    """What a web page could have its reader's browser ask."""

    async def story(server: PageServer) -> None:
        head = f"GET /hello HTTP/1.1\r\nX: y\r\nHost: {called}\r\n\r\n"
        assert (await ask(server.address, head.encode())).status == 421

    told(story)


def test_a_page_that_fails_says_so_to_the_log_and_nothing_of_it_to_the_client() -> None:
    async def story(server: PageServer) -> None:
        with capture_logs() as events:
            page = await get(server.address, "/broken")
        assert (page.status, page.body) == (500, b"Internal Server Error\n")
        assert [(event["event"], event["path"], event["why"]) for event in events] == [
            ("metrics_failed", "/broken", "a defect")
        ]

    told(story)


@pytest.mark.parametrize("beginning", [b"", b"GET /hello HT", b"GET /hello HTTP/1.1\r\nX: y\r\n"])
def test_a_client_that_does_not_finish_its_request_is_dropped(beginning: bytes) -> None:
    async def story(server: PageServer) -> None:
        reader, writer = await open_at(server)
        writer.write(beginning)
        assert await rest(reader) == b""
        writer.close()
        assert (await get(server.address, "/hello")).status == 200

    told(story, seconds=0.3)


def test_a_client_that_does_not_read_is_dropped_and_its_place_is_free_again() -> None:
    async def story(server: PageServer) -> None:
        reader, writer = await open_at(server)
        writer.write(b"GET /large HTTP/1.1\r\n" + HOST)
        await reader.readexactly(10_000)
        async with asyncio.timeout(SECONDS):
            await asyncio.wait(server._http._connections)
        assert not server._http._connections
        assert len(await rest(reader)) < len(LARGE)
        writer.close()

    told(story, seconds=0.5)


def test_who_only_holds_a_place_loses_it_to_the_next_one() -> None:
    async def story(server: PageServer) -> None:
        held = [await open_at(server) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET /hello")
        assert (await get(server.address, "/hello")).status == 200
        assert await rest(held[0][0]) == b""
        for reader, writer in held[1:]:  # there is room for these
            writer.write(b" HTTP/1.1\r\n" + HOST)
            assert b"hello\n" in await rest(reader)
        for _, writer in held:
            writer.close()

    told(story, max_connections=3)


def test_no_flood_of_connections_makes_it_grow() -> None:
    async def story(server: PageServer) -> None:
        held = [await open_at(server) for _ in range(50)]
        assert len(server._http._connections) <= 3
        assert (await get(server.address, "/hello")).status == 200
        for _, writer in held:
            writer.close()

    told(story, max_connections=3)


def test_closing_ends_what_is_going_on() -> None:
    async def story() -> None:
        async with served() as server:
            reader, writer = await open_at(server)
            writer.write(b"GET /hello HTTP/1.1\r\n")
            assert (await get(server.address, "/hello")).status == 200
        assert await rest(reader) == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await open_at(server)

    run(story())


def test_a_port_that_cannot_be_had_is_named() -> None:
    async def story(server: PageServer) -> None:
        with pytest.raises(ListenError, match=f"cannot listen on {server.address}"):
            await listen_http(server.address, site, structlog.get_logger())

    told(story)


def test_it_also_listens_on_ipv6() -> None:
    async def story() -> None:
        try:
            server = await listen_http(Address("::1", 0), site, structlog.get_logger())
        except ListenError:
            pytest.skip("this machine has no IPv6")
        assert (await get(server.address, "/hello")).status == 200
        await server.close()

    run(story())


async def open_at(server: PageServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(server.address.host, server.address.port)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the server is done with the connection, in whatever way."""
    found = b""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(SECONDS):
            while data := await reader.read(2**20):
                found += data
    return found
