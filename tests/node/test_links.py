"""A link to another broker dials again at once when that broker has just been heard, and never trusts an old connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import pytest
import structlog

from parley.net.tls import Address, Unreachable
from parley.node import links
from parley.node.links import STABLE_SECONDS, Backoff, Link

ADDRESS = Address("127.0.0.1", 1)


class Wire:
    """A connection that says nothing until it is closed."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()
        self.greeted = asyncio.Event()
        self.write_buffer_bytes = 0

    def is_closed(self) -> bool:
        return self._closed.is_set()

    def write(self, _: bytes) -> None:
        self.greeted.set()

    async def drain(self) -> None:
        pass

    async def read(self) -> bytes | None:
        await self._closed.wait()
        return None

    def close(self) -> None:
        self._closed.set()

    async def wait_closed(self) -> None:
        self.close()


class Dialled:
    """What happens when the link dials: each answer of `outcomes` in turn."""

    def __init__(self, *outcomes: Wire | Exception) -> None:
        self._outcomes = list(outcomes)
        self.count = 0
        self._again = asyncio.Event()

    async def __call__(self, *_: object, **__: object) -> Wire:
        self.count += 1
        self._again.set()
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def times(self, count: int) -> None:
        while self.count < count:
            self._again.clear()
            await self._again.wait()


@pytest.fixture(autouse=True)
def _never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next", lambda _: 3_600.0)


def link(ticks: Callable[[], int]) -> Link:
    return Link(
        "beta-1",
        ADDRESS,
        ssl.create_default_context(),
        hello=lambda: b"hello",
        log=structlog.get_logger(),
        ticks=ticks,
    )


def test_who_was_just_heard_is_dialled_without_waiting_out_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        dialled = Dialled(Unreachable("beta-1", ADDRESS, "nobody is there"), Wire())
        monkeypatch.setattr(links, "connect", dialled)
        one = link(lambda: 0)
        running = asyncio.create_task(one.run())
        await dialled.times(1)
        one.dial_now()
        await dialled.times(2)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_old_connection_to_who_was_just_heard_is_made_anew_and_a_new_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        first, second = Wire(), Wire()
        dialled = Dialled(first, second)
        monkeypatch.setattr(links, "connect", dialled)
        time = 0
        one = link(lambda: time)
        running = asyncio.create_task(one.run())
        await dialled.times(1)
        await first.greeted.wait()
        one.dial_now()
        assert not first.is_closed()
        time = int(STABLE_SECONDS * 1_000)
        one.dial_now()
        assert first.is_closed()
        await dialled.times(2)
        assert not second.is_closed()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(story(), 60))
