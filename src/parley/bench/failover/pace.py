"""Something that is done so many times a second while a block runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def steadily(rate: float, act: Callable[[], object]) -> AsyncIterator[None]:
    """Call `act` so many times a second while the context is open; an error of it is raised when the context ends."""

    async def again_and_again() -> None:
        due = time.monotonic()
        while True:
            act()
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    task = asyncio.create_task(again_and_again())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
