"""Publishing processes of all systems: what they are told and answer, the messages, and what their clients share.

Lines of JSON on standard input and output: first comes a `Job`, which is answered by `READY` after the warm-up; `GO`
begins what is measured, which a `Report` ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain, cycle, islice, repeat
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

SystemName = Literal["parley", "nats", "kafka", "rabbitmq"]


class Job(Struct, forbid_unknown_fields=True, kw_only=True):
    """The same numbers of messages of the same size for every system; the rest is what suits it."""

    system: SystemName
    servers: list[str]  # host:port; of Parley the genesis file
    target: str  # a topic, stream or queue, which is made if need be
    size: int  # bytes of a message
    messages: int
    warm_up: int  # messages before those that count
    batch: int = 0  # messages that the client hands over as one; 0: as the client does by itself
    in_flight: int = (
        0  # messages, or batches, that wait for their acknowledgement; 0: as the client does by itself
    )
    synced: bool = False  # asked for where it is a property of the target
    identity: str = ""  # of Parley's client


class Report(Struct, forbid_unknown_fields=True):
    """From the first message handed over to the last acknowledgement."""

    seconds: float
    cpu_us: int  # of the publishing process


DISTINCT = 4_096  # messages that are made before and sent in turn
READY_SECONDS = 120.0  # for servers to start, to find each other, and to make a replicated target
POLL_SECONDS = 0.2

T = TypeVar("T")


class NotAcknowledged(Exception):  # noqa: N818 - it names the condition
    """A system refused a message, or said something else than that it is stored."""


class Publisher(Protocol):
    """One client of a system. It raises if a single message is not acknowledged."""

    async def prepare(self) -> None:
        """Wait until the system can be used, make the target with all its replicas, and connect."""

    async def publish(self, count: int) -> None:
        """Return when all of them are acknowledged."""

    async def close(self) -> None: ...


def library(name: str) -> Any:  # noqa: ANN401 - of the extra `peers`: nothing is known about it where it is not installed
    return import_module(name)


def payloads(size: int) -> Iterator[bytes]:
    """Without end. They look random and cost nothing to make: slices of one block."""
    block = os.urandom(size + DISTINCT)
    return cycle([block[at : at + size] for at in range(DISTINCT)])


def batches(values: Iterator[bytes], count: int, size: int) -> Iterator[list[bytes]]:
    """So many of the values, in lists of `size`; the last one may be shorter."""
    whole, rest = divmod(count, size)
    return (list(islice(values, length)) for length in chain(repeat(size, whole), [rest] * bool(rest)))


async def publish_lists(
    lists: Iterable[list[bytes]], publish: Callable[[list[bytes]], Awaitable[None]], in_flight: int
) -> None:
    """Publish all of them, so many at a time."""
    room = asyncio.Semaphore(in_flight)

    async def flight(values: list[bytes]) -> None:
        try:
            await publish(values)
        finally:
            room.release()

    async with asyncio.TaskGroup() as flights:
        for values in lists:
            await room.acquire()
            flights.create_task(flight(values))


async def eventually(ask: Callable[[], Awaitable[T]], *errors: type[Exception]) -> T:
    """Ask until there is an answer, for a while: servers that start refuse, and do not yet know each other."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            return await ask()
        except errors:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)
