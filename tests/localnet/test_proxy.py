"""The proxy hands on every byte as it is, until it is told to cut the link; healing makes it usable again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from parley.localnet.proxy import CHUNK, Flow, Proxy

SECONDS = 20.0


@asynccontextmanager
async def echoing() -> AsyncIterator[Proxy]:
    """A server that answers with what it is sent, behind a proxy."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with asyncio.timeout(SECONDS), Proxy(target) as proxy:
            yield proxy
    finally:
        server.close()


async def dial(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def asked(proxy: Proxy, word: bytes) -> bytes:
    """What comes back on a new connection; nothing, if it breaks."""
    reader, writer = await dial(proxy)
    try:
        writer.write(word)
        return await reader.readexactly(len(word))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    finally:
        writer.transport.abort()


def test_bytes_arrive_as_they_were_sent() -> None:
    async def story() -> None:
        data = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(40_000))
        async with echoing() as proxy:
            reader, writer = await dial(proxy)
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            writer.transport.abort()

    asyncio.run(story())


def test_a_refused_link_breaks_what_is_open_and_turns_away_who_comes() -> None:
    async def story() -> None:
        async with echoing() as proxy:
            reader, writer = await dial(proxy)
            writer.write(b"before")
            assert await reader.readexactly(6) == b"before"
            proxy.cut(Flow.REFUSED)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            assert await asked(proxy, b"during") == b""
            proxy.heal()
            assert await asked(proxy, b"after") == b"after"
            writer.transport.abort()

    asyncio.run(story())


def test_a_connection_that_lost_bytes_ends_when_the_link_heals() -> None:
    async def story() -> None:
        async with echoing() as proxy:
            torn, writer = await dial(proxy)
            idle, other = await dial(proxy)
            other.write(b"ready")
            assert await idle.readexactly(5) == b"ready"
            proxy.cut(Flow.SWALLOWED)
            writer.write(b"lost")
            while not any(one.torn for one in proxy._connections):  # noqa: ASYNC110 - a proxy tells nobody
                await asyncio.sleep(0)
            proxy.heal()
            with suppress(ConnectionError):
                assert await torn.read() == b""
            other.write(b"still here")  # it lost nothing, so it goes on
            assert await idle.readexactly(10) == b"still here"
            assert await asked(proxy, b"after") == b"after"
            writer.transport.abort()
            other.transport.abort()

    asyncio.run(story())


def test_a_slow_link_is_late_and_complete() -> None:
    async def story() -> None:
        async with echoing() as proxy:
            proxy.delay = 0.05
            clock = asyncio.get_running_loop().time
            begin = clock()
            assert await asked(proxy, b"slowly") == b"slowly"
            assert clock() - begin >= 0.1  # there and back

    asyncio.run(story())


def test_nobody_behind_the_proxy_is_like_a_link_that_breaks() -> None:
    async def story() -> None:
        async with echoing() as proxy:
            gone = Proxy(proxy.address)
            await proxy.close()
            async with gone:
                assert await asked(gone, b"anybody?") == b""

    asyncio.run(story())
