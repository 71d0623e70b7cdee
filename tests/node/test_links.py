"""A link to another broker is dialled again at once when that broker was heard, and when it no longer answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

import pytest
import structlog

from parley.model.refusals import Busy
from parley.net.messages import PING, Failure, Pong, decode_ping, encode
from parley.net.tls import Address, Unreachable
from parley.node import links
from parley.node.contact import SILENCE_MS, Contact
from parley.node.links import FIRST_PAUSE, LONGEST_PAUSE, REFUSED_PAUSE, Backoff, Link

ADDRESS = Address("127.0.0.1", 1)


class Wire:
    """A connection on which the other side says what a test has it say."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.write_buffer_bytes = 0
        self._closed = False

    def is_closed(self) -> bool:
        return self._closed

    def write(self, frame: bytes) -> None:
        self.said.put_nowait(frame)

    async def drain(self) -> None:
        pass

    async def read(self) -> bytes | None:
        return await self._frames.get()

    def answer(self, frame: bytes) -> None:
        self._frames.put_nowait(frame)

    def close(self) -> None:
        self._closed = True
        self._frames.put_nowait(None)

    abort = close

    async def wait_closed(self) -> None:
        self.close()


class Stage:
    """A link whose attempts to dial have the given outcomes, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: Wire | Exception) -> None:
        monkeypatch.setattr(links, "connect", self._connect)
        self._outcomes = list(outcomes)
        self.dialled: asyncio.Queue[None] = asyncio.Queue()
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self.now = 1_000
        self.times: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.contact = Contact(lambda: self.now, lambda _: None)
        self.link = Link(
            "beta-1",
            ADDRESS,
            ssl.create_default_context(),
            hello=lambda: b"hello",
            contact=self.contact,
            told_time=lambda theirs, round_trip: self.times.put_nowait((theirs, round_trip)),
            log=structlog.get_logger(),
            ticks=lambda: self.now,
        )
        pause = Backoff.next

        def never(backoff: Backoff) -> float:
            self.pauses.put_nowait(pause(backoff))
            return 3_600.0

        monkeypatch.setattr(Backoff, "next", never)

    async def _connect(self, *_: object, **__: object) -> Wire:
        self.dialled.put_nowait(None)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        async def played() -> None:
            running = asyncio.create_task(self.link.run())
            try:
                await story
            finally:
                running.cancel()
                await asyncio.wait([running])

        asyncio.run(asyncio.wait_for(played(), 60))


async def pinged(wire: Wire) -> int:
    """The number of the next ping."""
    while not (frame := await wire.said.get()).startswith(PING):
        pass
    return decode_ping(frame).number


def test_who_was_just_heard_is_dialled_without_waiting_out_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, Unreachable("beta-1", ADDRESS, "nobody is there"), Wire())

    async def story() -> None:
        await stage.dialled.get()
        stage.link.dial_now()
        await stage.dialled.get()

    stage.play(story())


def test_a_connection_without_answers_is_made_again_and_one_with_answers_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Wire(), Wire()
    stage = Stage(monkeypatch, first, second)

    async def story() -> None:
        await stage.dialled.get()
        number = await pinged(first)
        stage.now += SILENCE_MS - 1
        first.answer(encode(Pong(number, 77)))
        assert await stage.times.get() == (77, SILENCE_MS - 1)
        stage.now += SILENCE_MS - 1
        stage.link.beat()
        assert not first.is_closed()
        stage.now += 1
        stage.link.beat()
        assert first.is_closed()
        stage.link.dial_now()
        await stage.dialled.get()
        await pinged(second)
        assert not second.is_closed()

    stage.play(story())


def test_who_is_refused_waits_longer_before_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Wire(), Wire()
    stage = Stage(monkeypatch, first, second)

    async def story() -> None:
        await stage.dialled.get()
        first.answer(encode(Failure.of(0, Busy("broker_garbage", broker="beta-1", seconds=30))))
        first.close()
        assert LONGEST_PAUSE < await stage.pauses.get() <= REFUSED_PAUSE
        assert "garbage" in stage.contact.problem

    stage.play(story())


def test_a_connection_that_does_not_last_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = [Wire() for _ in range(8)]
    stage = Stage(monkeypatch, *wires, Wire())

    async def story() -> None:
        pauses = []
        for wire in wires:
            await stage.dialled.get()
            wire.answer(encode(Pong(await pinged(wire), 0)))
            wire.close()
            pauses.append(await stage.pauses.get())
            stage.link.dial_now()
        assert pauses[0] <= FIRST_PAUSE
        assert pauses[-1] >= LONGEST_PAUSE / 2

    stage.play(story())
