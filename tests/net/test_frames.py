from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.net.network import LOOPS, NOW, SECONDS, Files, listening

from parley.net import frames
from parley.net.frames import (
    HEADER_SIZE,
    MAX_BATCH,
    MAX_LIMIT,
    PRE_AUTH_LIMIT,
    ConnectionLost,
    EmptyFrame,
    FrameError,
    FrameStream,
    FrameTooLarge,
    FrameTruncated,
)
from parley.net.tls import client_context, connect, server_context, tls_name
from parley.node.certificates import create_authority, issue

Run = Callable[[Coroutine[None, None, None]], None]
every_loop = pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
Pair = tuple[FrameStream, FrameStream]


@asynccontextmanager
async def pair(limit: int = PRE_AUTH_LIMIT) -> AsyncIterator[Pair]:
    """Two ends of one connection, without TLS."""
    streams = []
    for end in socket.socketpair():
        reader, writer = await asyncio.open_connection(sock=end)
        streams.append(FrameStream(reader, writer, limit=limit))
    try:
        yield streams[0], streams[1]
    finally:
        for stream in streams:
            await stream.wait_closed()


@asynccontextmanager
async def secured(folder: Path, limit: int = PRE_AUTH_LIMIT) -> AsyncIterator[Pair]:
    """A client's and a server's end of one connection with TLS."""
    authority = create_authority("org-a", now=NOW)
    files = Files.write(folder, "a1", issue(authority, "a1", "org-a", now=NOW))
    arrived: asyncio.Queue[FrameStream] = asyncio.Queue()
    done = asyncio.Event()

    async def serve(stream: FrameStream) -> None:
        arrived.put_nowait(stream)
        await done.wait()

    async with listening(
        server_context(files.certificate, files.key, [authority.certificate]), serve
    ) as listener:
        context = client_context(authority.certificate)
        client = await connect(listener.address, context, tls_name("a1", "org-a"), timeout=SECONDS)
        server = await arrived.get()
        client.limit = server.limit = limit
        try:
            yield client, server
        finally:
            done.set()
            await client.wait_closed()
            await server.wait_closed()


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


class Measured(bytearray):
    """A buffer that remembers how large it was."""

    most = 0

    def __iadd__(self, data: bytes) -> Self:  # type: ignore[override,misc]
        super().__iadd__(data)
        self.most = max(self.most, len(self))
        return self


def received(pieces: list[bytes], limit: int, *, batches: bool) -> tuple[list[bytes], str]:
    """What a stream makes of these pieces: its frames, and how it ended."""

    async def main() -> tuple[list[bytes], str]:
        reader = asyncio.StreamReader()
        one, other = socket.socketpair()
        with other:
            _, writer = await asyncio.open_connection(sock=one)
            stream = FrameStream(reader, writer, limit=limit)
            stream._buffer = buffer = Measured()
            result: list[bytes] = []
            feeding = asyncio.create_task(feed(reader, pieces))
            try:
                while batch := await (stream.read_many() if batches else first(stream)):
                    result += batch
            except FrameError as error:
                end = type(error).__name__
            else:
                end = "clean"
            await feeding
            assert buffer.most <= HEADER_SIZE + limit
            await stream.wait_closed()
        return result, end

    return asyncio.run(main())


async def turns() -> None:
    """Let the loop do what it can do without waiting."""
    for _ in range(50):
        await asyncio.sleep(0)


async def feed(reader: asyncio.StreamReader, pieces: list[bytes]) -> None:
    for piece in pieces:
        reader.feed_data(piece)
        await asyncio.sleep(0)
    reader.feed_eof()


async def first(stream: FrameStream) -> list[bytes]:
    frame = await stream.read()
    return [] if frame is None else [frame]


def expected(data: bytes, limit: int) -> tuple[list[bytes], str]:
    """The definition of the format, as simply as it can be said."""
    result: list[bytes] = []
    while data:
        if len(data) < 4:
            return result, "FrameTruncated"
        length = int.from_bytes(data[:4], "big")
        if length == 0:
            return result, "EmptyFrame"
        if length > limit:
            return result, "FrameTooLarge"
        if len(data) < 4 + length:
            return result, "FrameTruncated"
        result.append(data[4 : 4 + length])
        data = data[4 + length :]
    return result, "clean"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in pairwise(edges)]


PAYLOADS = st.binary(min_size=1, max_size=80)
PARTS = st.one_of(PAYLOADS.map(framed), PAYLOADS.map(framed), st.binary(max_size=12), st.just(bytes(4)))


@settings(max_examples=1_000, deadline=None)
@given(
    st.lists(PARTS, max_size=8).map(b"".join),
    st.lists(st.integers(0, 2_000), max_size=12),
    st.integers(1, 90),
    st.booleans(),
)
@example(framed(b"ab") + b"\xff\xff\xff\xff", [], 2, True)
def test_any_bytes_become_their_frames_and_one_typed_end_within_the_limit(
    data: bytes, places: list[int], limit: int, batches: bool
) -> None:
    assert received(cut(data, places), limit, batches=batches) == expected(data, limit)


@pytest.mark.parametrize("batches", [False, True])
def test_frames_reassemble_however_they_are_split(batches: bool) -> None:
    payloads = [b"a", b"\x00\x00\x00\x01", b"last"]
    data = framed(*payloads)
    for place in range(len(data) + 1):
        assert received(cut(data, [place]), 16, batches=batches) == (payloads, "clean")
    assert received(cut(data, list(range(len(data)))), 16, batches=batches) == (payloads, "clean")


@every_loop
def test_an_oversized_frame_is_refused_when_only_its_header_has_come(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            one._writer.write(struct.pack(">I", PRE_AUTH_LIMIT + 1))
            with pytest.raises(FrameTooLarge) as refused:
                await other.read()
            assert (refused.value.length, refused.value.limit) == (PRE_AUTH_LIMIT + 1, PRE_AUTH_LIMIT)
            with pytest.raises(FrameTooLarge):  # there is no way past it
                await other.read_many()

    run(main())


@every_loop
def test_an_empty_frame_is_refused(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            one._writer.write(bytes(HEADER_SIZE))
            with pytest.raises(EmptyFrame):
                await other.read()

    run(main())


@every_loop
def test_frames_before_a_bad_one_are_delivered_first(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            one._writer.write(framed(b"one", b"two") + b"\xff" * 4)
            assert await other.read_many() == [b"one", b"two"]
            with pytest.raises(FrameTooLarge):
                await other.read_many()

    run(main())


@every_loop
def test_a_frame_that_breaks_off_says_how_much_came(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            one._writer.write(framed(b"whole", b"broken")[:-2])
            one.close()
            assert await other.read() == b"whole"
            with pytest.raises(FrameTruncated) as broken:
                await other.read()
            assert "after 8 of 10 bytes" in str(broken.value)

    run(main())


@every_loop
def test_a_larger_limit_lets_the_next_frame_in(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            large = bytes(range(256)) * 4_096
            one.write(b"credential")
            one.write(large)
            assert await other.read() == b"credential"
            other.limit = len(large)
            assert await other.read() == large

    run(main())


@every_loop
def test_a_smaller_limit_holds_for_what_is_already_buffered(run: Run) -> None:
    async def main() -> None:
        async with pair(limit=100) as (one, other):
            one._writer.write(framed(b"first", bytes(90)))
            assert await other.read() == b"first"
            other.limit = 10
            with pytest.raises(FrameTooLarge):
                await other.read()

    run(main())


@every_loop
def test_what_one_end_writes_the_other_reads(run: Run, tmp_path: Path) -> None:
    sizes = [1, 15, 16 * 1024 - 1, 16 * 1024, 3, 65_536, 300_000, 7, *range(1, 400)]
    payloads = [bytes([size % 251]) * size for size in sizes]

    async def main() -> None:
        async with secured(tmp_path, limit=1_000_000) as (client, server):
            for sender, receiver in ((client, server), (server, client)):
                for payload in payloads:
                    sender.write(payload)
                got: list[bytes] = []
                while len(got) < len(payloads):
                    got += await receiver.read_many()
                assert got == payloads

    run(main())


@every_loop
def test_small_frames_travel_together(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            for number in range(100):
                one.write(b"%d" % number)
            assert one.write_buffer_bytes > 0  # nothing left yet
            assert await other.read_many() == [b"%d" % number for number in range(100)]
            assert one.write_buffer_bytes == 0

    run(main())


@every_loop
def test_one_read_returns_a_bounded_number_of_frames(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            one._writer.write(framed(*[b"x"] * (2 * MAX_BATCH)))
            one.close()
            counts = []
            while batch := await other.read_many():
                counts.append(len(batch))
            assert max(counts) == MAX_BATCH
            assert sum(counts) == 2 * MAX_BATCH

    run(main())


@every_loop
def test_a_read_that_is_cancelled_loses_nothing(run: Run) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            data = framed(b"patience")
            one._writer.write(data[:6])
            reading = asyncio.create_task(other.read())
            while not other._buffer:  # noqa: ASYNC110 - until the first half is there
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            one._writer.write(data[6:])
            assert await other.read() == b"patience"

    run(main())


@every_loop
def test_a_writer_waits_for_a_slow_reader_and_sees_what_waits(run: Run, tmp_path: Path) -> None:
    payload = bytes(500_000)

    async def main() -> None:
        async with secured(tmp_path, limit=1_000_000) as (client, server):
            count = 40  # more than sockets, transports and readers hold on the way
            for _ in range(count):
                client.write(payload)
            assert client.write_buffer_bytes > 10 * len(payload)
            draining = asyncio.create_task(client.drain())
            await asyncio.sleep(0)
            assert not draining.done()
            for _ in range(count):
                assert await server.read() == payload
            await draining
            assert client.write_buffer_bytes < 64 * 1024

    run(main())


@every_loop
def test_closing_sends_what_was_written(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with secured(tmp_path) as (client, server):
            client.write(b"last words")
            client.close()
            assert client.write_buffer_bytes == 0
            assert await server.read() == b"last words"
            assert await server.read() is None
            assert await server.read_many() == []

    run(main())


@every_loop
def test_a_closed_stream_takes_frames_without_complaint_and_reports_at_drain(
    run: Run, tmp_path: Path
) -> None:
    async def main() -> None:
        async with secured(tmp_path) as (client, server):
            await client.wait_closed()
            assert await server.read() is None
            for stream in (client, server):
                await stream.wait_closed()
                for size in (1, 100_000):
                    stream.write(bytes(size))
                with pytest.raises(ConnectionLost):
                    await stream.drain()
                assert stream.write_buffer_bytes == 0
                stream.close()
                await stream.wait_closed()

    run(main())


@every_loop
def test_a_connection_that_is_cut_is_lost_to_reads_and_closes_quietly(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with secured(tmp_path) as (client, server):
            server._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            server._writer.transport.abort()
            with pytest.raises(ConnectionLost, match="reset"):
                await client.read()
            with pytest.raises(ConnectionLost):
                await client.drain()
            client.write(b"into the void")
            await client.wait_closed()
            await server.wait_closed()

    run(main())


@every_loop
def test_closing_ends_even_if_the_other_side_left_much_unread_and_went(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CLOSE_SECONDS", 0.05)

    async def main() -> None:
        async with secured(tmp_path) as (client, server):
            client._writer.write(bytes(200_000))  # enough for the server to stop reading
            await turns()
            assert client.write_buffer_bytes == 0
            client._writer.transport.abort()  # no good-bye
            await client.wait_closed()
            await turns()
            await server.wait_closed()

    run(main())


@every_loop
def test_closing_ends_even_if_the_other_side_never_reads(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CLOSE_SECONDS", 0.05)

    async def main() -> None:
        async with secured(tmp_path) as (client, server):
            for _ in range(20):
                server.write(bytes(1_000_000))
            await server.wait_closed()
            assert client.limit == PRE_AUTH_LIMIT

    run(main())


@every_loop
def test_waiting_for_the_end_can_be_given_up_and_taken_up_again(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with secured(tmp_path) as (client, _):
            waiting = asyncio.create_task(client.wait_closed())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.wait_closed()

    run(main())


@pytest.mark.parametrize("limit", [0, -1, MAX_LIMIT + 1])
def test_no_caller_can_set_a_limit_that_does_not_bound(limit: int) -> None:
    async def main() -> None:
        async with pair() as (one, _):
            with pytest.raises(ValueError, match="frame limit"):
                one.limit = limit
            assert one.limit == PRE_AUTH_LIMIT

    asyncio.run(main())


@pytest.mark.parametrize("size", [0, MAX_LIMIT + 1])
def test_what_no_reader_takes_cannot_be_written(size: int) -> None:
    async def main() -> None:
        async with pair() as (one, other):
            with pytest.raises(ValueError, match="a frame has"):
                one.write(bytes(size))
            one.write(b"fine")
            assert await other.read() == b"fine"

    asyncio.run(main())


def test_a_stream_without_tls_knows_neither_certificate_nor_source() -> None:
    async def main() -> None:
        async with pair() as (one, _):
            assert one.peer_certificate is None
            assert one.source == ""

    asyncio.run(main())
