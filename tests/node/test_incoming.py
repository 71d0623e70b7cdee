"""A ping is answered at once, also while the replica takes nothing, and costs others no more than its sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from msgspec import Struct
from tests.net.network import LOOPS, SECONDS

from parley.net.frames import FrameError, FrameStream
from parley.net.messages import PING, Ping, Pong, decode_reply, encode
from parley.node.incoming import AHEAD_BYTES, AHEAD_MESSAGES, TURN, Incoming
from parley.replica import wire

Run = Callable[[Coroutine[None, None, None]], None]
every_loop = pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
LIMIT = 1024 * 1024
TIME = 1_700_000_000_000


class Stage:
    """Another broker's end of a connection, and what became of what it sent."""

    def __init__(self, other: FrameStream, incoming: Incoming) -> None:
        self.other = other
        self.incoming = incoming
        self.taken: list[bytes] = []
        self.groups: list[int] = []
        self.free = asyncio.Event()  # whether the replica takes messages
        self.free.set()
        self.enough = 2**62  # messages, after which no more are taken

    async def take(self, group: list[bytes]) -> bool:
        await self.free.wait()
        self.groups.append(len(group))
        self.taken += group
        return len(self.taken) < self.enough


@asynccontextmanager
async def connected() -> AsyncIterator[Stage]:
    arrived: asyncio.Queue[FrameStream] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.put_nowait(FrameStream(reader, writer, limit=LIMIT))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    other = FrameStream(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    stream = await arrived.get()
    try:
        yield Stage(other, Incoming(stream, heard=lambda: None, now=lambda: TIME))
    finally:
        await other.wait_closed()
        await stream.wait_closed()
        server.close()


def play(run: Run, story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        async with connected() as stage:
            await story(stage)

    run(asyncio.wait_for(played(), SECONDS))


async def full(incoming: Incoming) -> None:
    while not incoming.full:  # noqa: ASYNC110 - only the reader knows it
        await asyncio.sleep(0)


async def pong(stage: Stage) -> Pong:
    frame = await stage.other.read()
    assert frame is not None
    reply = decode_reply(frame)
    assert isinstance(reply, Pong)
    return reply


def test_no_message_of_a_replica_begins_like_a_ping() -> None:
    kinds: tuple[type[Struct], ...] = get_args(wire.WireMessage)
    tags = {kind.__struct_config__.tag for kind in kinds}
    assert PING[1] == Ping.__struct_config__.tag
    assert PING[1] not in tags
    assert all(encode(Ping(number)).startswith(PING) for number in (0, 127, 128, 2**16, 2**32 - 1))


@every_loop
def test_a_ping_is_answered_while_the_replica_waits(run: Run) -> None:
    async def story(stage: Stage) -> None:
        stage.free.clear()
        running = asyncio.create_task(stage.incoming.run(stage.take))
        stage.other.write(b"a message")
        stage.other.write(encode(Ping(7)))
        assert await pong(stage) == Pong(7, TIME)
        assert stage.taken == []
        stage.free.set()
        stage.other.close()
        await running
        assert stage.taken == [b"a message"]

    play(run, story)


@every_loop
def test_messages_come_in_order_and_in_turns_and_without_the_pings(run: Run) -> None:
    async def story(stage: Stage) -> None:
        sent = [number.to_bytes(2) for number in range(1_000)]
        for number, frame in enumerate(sent):
            stage.other.write(frame)
            if number % 7 == 0:
                stage.other.write(encode(Ping(number)))
        stage.other.close()
        await stage.incoming.run(stage.take)
        assert stage.taken == sent
        assert max(stage.groups) <= TURN

    play(run, story)


@every_loop
def test_many_pings_get_few_answers(run: Run) -> None:
    async def story(stage: Stage) -> None:
        running = asyncio.create_task(stage.incoming.run(stage.take))
        for number in range(20_000):
            stage.other.write(encode(Ping(number)))
        answers = 1
        while (await pong(stage)).number != 20_000 - 1:
            answers += 1
        assert answers <= 1_000
        assert stage.taken == []
        stage.other.close()
        await running

    play(run, story)


@every_loop
@pytest.mark.parametrize("size", [10, LIMIT // 2])
def test_what_is_read_ahead_is_bounded(run: Run, size: int) -> None:
    async def story(stage: Stage) -> None:
        stage.free.clear()
        incoming = stage.incoming
        running = asyncio.create_task(incoming.run(stage.take))
        number = 4 * AHEAD_MESSAGES if size == 10 else 4 * AHEAD_BYTES // size
        for _ in range(number):
            stage.other.write(bytes(size))
        await full(incoming)
        assert incoming._bytes <= AHEAD_BYTES + 2 * LIMIT
        assert len(incoming._frames) <= AHEAD_MESSAGES + 1_024
        stage.free.set()
        stage.other.close()
        await running
        assert len(stage.taken) == number

    play(run, story)


@every_loop
def test_who_is_not_listened_to_any_more_is_cut_also_while_much_waits(run: Run) -> None:
    async def story(stage: Stage) -> None:
        stage.free.clear()
        stage.enough = 1
        running = asyncio.create_task(stage.incoming.run(stage.take))
        for _ in range(4 * AHEAD_MESSAGES):
            stage.other.write(bytes(10))
        await full(stage.incoming)
        stage.free.set()
        await running
        assert len(stage.taken) == TURN

    play(run, story)


@every_loop
def test_what_came_before_a_bad_frame_is_still_taken(run: Run) -> None:
    async def story(stage: Stage) -> None:
        stage.other.write(b"good")
        stage.other.write(bytes(LIMIT + 1))
        with pytest.raises(FrameError):
            await stage.incoming.run(stage.take)
        assert stage.taken == [b"good"]

    play(run, story)


@every_loop
def test_a_ping_that_is_none_goes_to_the_replica_which_refuses_it(run: Run) -> None:
    async def story(stage: Stage) -> None:
        stage.other.write(PING + b"\xc1")
        stage.other.close()
        await stage.incoming.run(stage.take)
        assert stage.taken == [PING + b"\xc1"]

    play(run, story)


@every_loop
def test_a_fault_of_the_replica_ends_the_connection(run: Run) -> None:
    async def story(stage: Stage) -> None:
        async def stumble(_: list[bytes]) -> bool:
            raise KeyError("a mistake")

        stage.other.write(b"a message")
        with pytest.raises(KeyError):
            await stage.incoming.run(stumble)

    play(run, story)
