"""The thread that waits for the disk, so that the event loop does not (decision 23)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic_ns

DiskWork = Callable[[], None]


class Disk:
    """A thread that does work on the disk, one piece after another.

    After each it calls `done` on the loop, with the error or None, and the ns that it took. Not a ThreadPoolExecutor: its futures take several times as long.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, done: Callable[[BaseException | None, int], None]
    ) -> None:
        self._loop = loop
        self._done = done
        self._work: SimpleQueue[DiskWork | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # None until there is something to do

    def do(self, work: DiskWork) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="disk", daemon=True)
            thread.start()
            self._thread = thread
        self._work.put(work)

    def close(self) -> None:
        """Finish the work that was handed over, and end the thread."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            began, failed = monotonic_ns(), None
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the loop decides what becomes of it
                failed = error
            self._loop.call_soon_threadsafe(self._done, failed, monotonic_ns() - began)
