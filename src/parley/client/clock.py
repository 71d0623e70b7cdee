"""The client's clock: certified headers show when this machine's clock is behind (P5), and then correct it (P7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parley.client.circumstances import CLOCK_TOLERANCE

log = logging.getLogger("parley.client")


class Clock:
    """This machine's clock, put forward by as much as it is known to be behind. Times are in ms since 1970.

    No quorum signs a time that is far ahead of its own. So a header that is ahead of this clock shows by how much it is
    behind at least. The headers of f+1 brokers, one of which is honest, show how far it is behind.
    """

    def __init__(self, machine: Callable[[], int], freshness_ms: int) -> None:
        self._machine = machine
        self._freshness_s = freshness_ms / 1_000
        self._compared: float | None = None  # when that was, by the loop's clock
        self.newest = 0  # the time of the newest certified header that was shown; 0: none was
        self.behind = 0  # ms, at least; 0: there is no reason to doubt it
        self.comparing = asyncio.Lock()

    def now(self, read: int | None = None) -> int:
        """The time now, or at the moment when this machine's clock showed `read`."""
        return (self._machine() if read is None else read) + self.behind

    def is_settled(self) -> bool:
        """Whether it is not in doubt, or was just compared."""
        if not self.behind:
            return True
        return self._compared is not None and _loop_time() - self._compared < self._freshness_s

    def saw(self, time: int) -> None:
        """Take note of a certified header's time: if it is ahead, the clock is behind by at least as much."""
        self.newest = max(self.newest, time)
        ahead = time - self._machine()
        if ahead <= max(self.behind, CLOCK_TOLERANCE):
            return
        if not self.behind:
            log.warning(
                "This machine's clock is at least %.1f s behind: a certified header is ahead of it. Set the clock; until "
                "then the headers of several brokers are compared to tell what is new.",
                ahead / 1_000,
            )
        self.behind = ahead

    def compared(self) -> None:
        """The newest headers of f+1 brokers were seen: by the newest of all, set how far the clock is behind, or that it is not."""
        ahead = self.newest - self._machine()
        self.behind = ahead if ahead > CLOCK_TOLERANCE else 0
        self._compared = _loop_time()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
