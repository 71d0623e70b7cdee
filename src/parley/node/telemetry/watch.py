"""Logs when a broker becomes ready or is no longer, and when the network stands still and goes on again.

An operator may not ask /readyz at the right moment. The log has each change once, and again only with another reason
or after a long time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from parley.node.logs import Log, Throttled
from parley.node.status import StatusReport
from parley.node.telemetry.health import Life, connected_members, obstacles
from parley.replica.replica import Replica

LOOK_SECONDS = 1.0
START_MS = 5_000  # in which a broker that has just started need not be ready
# For which a broker has to be ready again before the log says so: else it would come and go.
SETTLED_MS = 5_000
QUIET_MS = 600_000  # between two lines with the same reasons


class Watch:
    """Looks at a broker every second. `ticks` is a monotonic clock in ms."""

    def __init__(self, log: Log, ticks: Callable[[], int]) -> None:
        self._log = log
        self._ticks = ticks
        self._ready: bool | None = None  # as the log says; None: it has said nothing yet
        self._changed = ticks()  # when the log said so
        self._clear_since: int | None = None  # since when there are no obstacles
        self._obstacles = Throttled(QUIET_MS)
        # The shards of which the log says that they stand still: since when, and how often it may say so again.
        self._stalled: dict[int, tuple[int, Throttled]] = {}

    async def run(self, life: Callable[[], Life | None]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(life())

    def look(self, life: Life | None) -> None:
        now = self._ticks()
        if reasons := obstacles(life):
            self._on_obstacles(reasons, now)
        else:
            self._on_none(now)
        for one in () if life is None else life.shards:
            self._look_at_progress(one.status, now)

    def _on_obstacles(self, reasons: list[str], now: int) -> None:
        self._clear_since = None
        if self._ready is None and now - self._changed < START_MS:
            return
        if self._ready is not False:
            self._ready, self._changed = False, now
            self._obstacles = Throttled(QUIET_MS)  # an earlier incident must not hide this one
        # Numbers in the reasons change all the time, and are no other reason.
        kind = re.sub(r"\d+", "", " ".join(reasons))
        if self._obstacles.count("not_ready", kind, now):
            self._log.warning("not_ready", why=" ".join(reasons))

    def _on_none(self, now: int) -> None:
        if self._clear_since is None:
            self._clear_since = now
        if self._ready is False and now - self._clear_since < SETTLED_MS:
            return
        if self._ready is not True:
            self._log.info("ready", after_ms=self._clear_since - self._changed)
            self._ready, self._changed = True, now

    def _look_at_progress(self, status: StatusReport, now: int) -> None:
        replica, shard = status.driver.replica, status.config.shard
        if not isinstance(replica, Replica) or status.driver.halted is not None:
            return  # it is this broker that does not take part
        still = status.driver.still_ms
        if still <= status.config.genesis.timeouts.freshness:
            if (before := self._stalled.pop(shard, None)) is not None:
                self._log.info("resumed", shard=shard, after_ms=now - still - before[0])
            return
        _, said = self._stalled.setdefault(shard, (now - still, Throttled(QUIET_MS)))
        down = ", ".join(status.unreachable()) or "none"
        if said.count("stalled", down, now):
            self._log.error(
                "stalled",
                shard=shard,
                for_ms=still,
                view=replica.view,
                peers_up=connected_members(status),
                down=down,
                waiting=replica.waiting[0],
                behind=replica.behind,
            )
