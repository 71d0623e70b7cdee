"""Whether a broker lives, and whether it takes part: two questions, because a supervisor restarts on the first only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass

from parley.application.machine import Machine
from parley.node.clock import ClockWatch
from parley.node.holding import Holding
from parley.node.peers import Peers
from parley.node.shown import Showing
from parley.node.status import FAR_BEHIND, StatusReport
from parley.store.interface import Store

BEAT_MS = 100
BEATS = 600  # that are remembered, a minute
STANDS_MS = 5_000  # by which the loop, or the disk, may be late before it counts as standing still


@dataclass(frozen=True)
class ShardLife:
    """The parts of one shard that tell how it is."""

    status: StatusReport
    store: Store
    machine: Machine


@dataclass(frozen=True)
class Life:
    """The parts of one life of a broker that tell how it is."""

    shards: tuple[ShardLife, ...]
    peers: Peers
    clients: Sized
    clock: ClockWatch
    showing: Showing
    now: Callable[[], int]  # ms since 1970

    @property
    def labelled(self) -> Iterator[tuple[str, ShardLife]]:
        """The shards, each with the words that begin a line about it; empty words if there is only one."""
        several = len(self.shards) > 1
        return ((f"Shard {one.status.config.shard}: " if several else "", one) for one in self.shards)


class Pulse:
    """Beats as long as the event loop turns; `ticks` are those of a clock that nobody sets, in ms.

    With each beat `holding` learns by how much the loop was late, and names what no job explains.
    """

    def __init__(self, ticks: Callable[[], int], holding: Holding | None = None) -> None:
        self._ticks = ticks
        self._holding = holding
        self._late: deque[int] = deque(maxlen=BEATS)
        self._beat(0)

    async def run(self) -> None:
        """Until it is cancelled."""
        self._beat(0)  # it may have been made long before
        while True:
            await asyncio.sleep(BEAT_MS / 1_000)
            self.beat()

    def beat(self) -> None:
        late = self.late
        self._late.append(late)
        self._beat(late)

    def _beat(self, late: int) -> None:
        self._last = self._ticks()
        if self._holding is not None:
            self._holding.beat(late, BEAT_MS)

    @property
    def late(self) -> int:
        """By how many ms the next beat is late now."""
        return max(0, self._ticks() - self._last - BEAT_MS)

    @property
    def worst(self) -> int:
        """Of the last minute, in ms."""
        return max(self.late, *self._late, 0)


def ailment(pulse: Pulse, life: Life | None) -> str:
    """Why this process is of no more use as it is; empty: it lives."""
    if pulse.late > STANDS_MS:
        return f"The event loop has stood still for {pulse.late / 1_000:.1f} s."
    drivers = [] if life is None else [one.status.driver for one in life.shards]
    if (wait := max((driver.disk_wait_ms for driver in drivers), default=0)) > STANDS_MS:
        return f"The disk has not answered for {wait / 1_000:.1f} s."
    if any(driver.failure.done() for driver in drivers):
        return "The broker has failed and is about to end; its log says why."
    return ""


def obstacles(life: Life | None) -> list[str]:
    """Why this broker should not be sent to now, a line for each reason; none: it takes part."""
    if life is None:
        return ["It is starting."]
    of_shards = (
        f"{shard}{why}"
        for shard, one in life.labelled
        for why in (*_of_replica(one.status), *_of_surroundings(one.status))
        if why
    )
    return [" ".join(why.split()) for why in (*of_shards, *_of_certificate(life))]


def connected_members(status: StatusReport) -> int:
    """How many other members of a shard's committee this broker exchanges messages with."""
    return sum(map(status.peers.connected, range(status.config.committee.size)))


def _of_replica(status: StatusReport) -> Iterator[str]:
    replica = status.driver.replica
    match status.state():
        case "halted":
            yield status.driver.halted or "It has halted."
        case "recovering":
            yield f"It is recovering. {status.abstaining()}"
        case "rebuilding":
            yield "It fetches a certified snapshot, or fills in its history after one."
        case "starting":
            yield "Nothing has been certified since it started."
        case "lagging":
            behind = replica.committed_height - replica.executed_height
            if behind > FAR_BEHIND:
                yield f"It is behind: {behind} blocks wait for execution."
            else:
                yield "It is behind the others: its newest certified header is too old to serve from."
        case "waiting":
            yield "The network stands still: the newest certified header is too old to serve from."
        case _:
            return


def _of_surroundings(status: StatusReport) -> Iterator[str]:
    connected, needed = connected_members(status), status.config.committee.quorum - 1
    if connected < needed:
        yield (
            f"It is connected to {connected} other brokers, and a quorum needs {needed}. Not connected: "
            f"{', '.join(status.unreachable())}."
        )
    yield status.room.note


def _of_certificate(life: Life) -> Iterator[str]:
    if life.now() >= life.showing.current.ends:
        yield "Its certificate has ended: no other broker and no client can reach it."
