"""Whether a broker lives, and whether it takes part: two questions, because a supervisor restarts on the first only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parley.application.machine import Machine
from parley.consensus.committee import quorum
from parley.node.holding import Holding
from parley.node.status import FAR_BEHIND, StatusReport
from parley.store.interface import Store

BEAT_MS = 100
BEATS = 600  # that are remembered, a minute
STANDS_MS = 5_000  # by which the loop, or the disk, may be late before it counts as standing still


@dataclass(frozen=True)
class Life:
    """The parts of one life of a broker that tell how it is."""

    status: StatusReport
    store: Store
    machine: Machine
    certificate_ends: Callable[[], int]  # in ms since 1970
    authority_ends: int = 0  # the certificate of the organisation's authority; in ms since 1970


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
    if life is not None and (wait := life.status.driver.disk_wait_ms) > STANDS_MS:
        return f"The disk has not answered for {wait / 1_000:.1f} s."
    if life is not None and life.status.driver.failure.done():
        return "The broker has failed and is about to end; its log says why."
    return ""


def obstacles(life: Life | None) -> list[str]:
    """Why this broker should not be sent to now, a line for each reason; none: it takes part."""
    if life is None:
        return ["It is starting."]
    return [" ".join(why.split()) for why in (*_of_replica(life), *_of_surroundings(life)) if why]


def connected_peers(status: StatusReport) -> int:
    return sum(map(status.peers.connected, range(len(status.config.genesis.brokers))))


def _of_replica(life: Life) -> Iterator[str]:
    status = life.status
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


def _of_surroundings(life: Life) -> Iterator[str]:
    status = life.status
    brokers = status.config.genesis.brokers
    connected, needed = connected_peers(status), quorum(len(brokers)) - 1
    if connected < needed:
        yield (
            f"It is connected to {connected} other brokers, and a quorum needs {needed}. Not connected: "
            f"{', '.join(status.unreachable())}."
        )
    yield status.room.note
    if status.now() >= life.certificate_ends():
        yield "Its certificate has ended: no other broker and no client can reach it."
