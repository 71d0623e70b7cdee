"""One machine of the simulated network: a disk that survives, and a replica that may die at any effect and come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from parley.consensus.errors import Reason
from parley.consensus.record import SafetyState
from parley.replica.ports import Effect, LocalStore, Participant
from parley.sim.disk import Disk

__all__ = ["Host", "Participant", "Start"]


Start = Callable[[tuple[int, SafetyState], LocalStore], Participant]


class Host:
    """The state of one machine. `executed` counts its effects over all restarts: the index at which it can crash."""

    def __init__(self, index: int, disk: Disk, launch: Start, chance: Random, *, correct: bool) -> None:
        self.index = index
        self.disk = disk
        self.launch = launch
        self.chance = chance
        self.correct = correct
        self.participant: Participant | None = None
        self.incarnation = 0
        self.executed = 0
        self.crashes = 0
        self.crash_at: int | None = None
        self.crash_during: type[Effect] | None = None
        self.downtime = 0
        self.refused: Counter[Reason] = Counter()
        self._last_view = 0
        self._last_committed = 0

    @property
    def up(self) -> bool:
        return self.participant is not None

    @property
    def view(self) -> int:
        return self.participant.view if self.participant else self._last_view

    @property
    def committed(self) -> int:
        return self.participant.executed_height if self.participant else self._last_committed

    def arm(self, effects: int, downtime: int, during: type[Effect] | None = None) -> None:
        """Crash when `effects` more effects have been executed, or at the first after that of the kind `during`."""
        self.crash_at = self.executed + effects
        self.crash_during = during
        self.downtime = downtime

    def crashes_at(self, effect: Effect) -> bool:
        """Whether the power fails now, in the middle of `effect`."""
        if self.crash_at is None or self.executed < self.crash_at:
            return False
        return self.crash_during is None or isinstance(effect, self.crash_during)

    def disarm(self) -> None:
        self.crash_at = None

    def stop(self) -> None:
        """The process is gone; its memory with it."""
        self._last_view, self._last_committed = self.view, self.committed
        self.participant = None
        self.incarnation += 1
