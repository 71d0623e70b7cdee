"""A loop in a thread of its own, and methods of a client that are waited for there instead of awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from parley.client.errors import ClientClosed

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class Thread:
    """A thread with a loop of its own, in which coroutines are run from other threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop,), name="parley-client", daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def run(self, work: Awaitable[T]) -> T:
        """Wait for the result here, while it is worked out there; if waiting is interrupted, so is the work."""
        if self._loop is None:
            if asyncio.iscoroutine(work):
                work.close()  # or Python would complain that it was never run
            raise ClientClosed("The client is not open; use it inside `with`.")
        future = asyncio.run_coroutine_threadsafe(_coroutine(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _coroutine(work: Awaitable[T]) -> T:
    return await work


class Waiting(Protocol[C_co]):
    """A client without `await`: the client that it stands for, and the thread that runs it."""

    @property
    def client(self) -> C_co: ...
    @property
    def thread(self) -> Thread: ...


class Blocking:
    """A part of a client without `await`. Its methods are made by `blocking`."""


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Waiting[C], P], T]:
    """The method of the same name, waited for."""

    @wraps(method)
    def call(self: Waiting[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.thread.run(method(self.client, *args, **kwargs))

    return call
