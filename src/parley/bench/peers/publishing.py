"""What the publishing clients of all systems share: the messages, the interface, and how they ask until a system is ready."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from itertools import chain, cycle, islice, repeat
from typing import Any, Protocol, TypeVar

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
