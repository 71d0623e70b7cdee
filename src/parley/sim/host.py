"""One machine of the simulated network: a disk that survives, and a replica that may die at any effect and come back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from parley.consensus.record import SafetyState, recover_record
from parley.ledger import layout
from parley.ledger.application import StateMachine
from parley.replica.ports import Effect, Participant
from parley.sim.charge import Meter
from parley.sim.disk import Disk
from parley.store.interface import StoreReader


class Running(NamedTuple):
    """What runs on a machine, and the state machine with which batches of its clients are opened."""

    participant: Participant
    machine: StateMachine


Start = Callable[[tuple[int, SafetyState], StoreReader], Running]


class NewDisk(Protocol):
    """Makes the disk of a replica that is new, or that has lost what it signed and must abstain (P10)."""

    def __call__(self, *, abstaining: bool = False) -> Disk: ...


class Host:
    """The state of one machine. `executed` counts its effects over all restarts: the index at which it can crash."""

    def __init__(
        self,
        index: int,
        new_disk: NewDisk,
        launch: Start,
        chance: Random,
        *,
        correct: bool,
        meter: Meter | None = None,
    ) -> None:
        self.index = index
        self.disk = new_disk()
        self._new_disk = new_disk
        self.launch = launch
        self.chance = chance
        self.correct = correct
        self.meter = meter or Meter()
        self.running: Running | None = None
        self.incarnation = 0
        self.executed = 0
        self.crashes = 0
        self.wiped = False
        self.damaged = False
        self.joining = False  # at its last start
        self.suspect = False  # its state may be wrong since a bit of its disk flipped
        self.crash_at: int | None = None  # which effect; None: it is not to crash
        self.crash_during: type[Effect] | None = None
        self.downtime = 0
        self.refused: Counter[str] = Counter()  # by reason
        self.unreachable: set[int] = set()  # as its replica was informed
        # Inputs that wait until execution is over; None: nothing is being executed.
        self.backlog: deque[Callable[[], None]] | None = None
        self._last_view = 0
        self._last_committed = 0

    @property
    def up(self) -> bool:
        return self.running is not None

    @property
    def view(self) -> int:
        return self.running.participant.view if self.running else self._last_view

    @property
    def committed(self) -> int:
        """What it has executed; what it is executing now does not count yet."""
        if self.running is None or self.backlog is not None:
            return self._last_committed
        return self.running.participant.executed_height

    @property
    def is_whole(self) -> bool:
        """Whether no record is still to come, and it may sign."""
        fetching = any(self.disk.get(mark) is not None for mark in (layout.JOINING, layout.BACKFILL))
        return not fetching and (self.recovered or not self.wiped)

    @property
    def recovered(self) -> bool:
        """Whether it lost its safety record and takes part again."""
        return self.wiped and not recover_record(self.disk.slots, "its disk")[1].abstains

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

    def wipe(self) -> None:
        """A new disk in the place of the old one; the replica must be down."""
        assert not self.up, "a disk is not pulled out of a running machine"
        self.disk = self._new_disk(abstaining=True)
        self.wiped = True
        self._last_committed = 0

    def occupy(self, committed: int) -> None:
        """It executes from now on, and takes no input; `committed` is what it had executed before."""
        self._last_committed = committed
        self.backlog = deque()

    def release(self) -> deque[Callable[[], None]]:
        """Execution is over: the inputs that have waited for that."""
        waiting, self.backlog = self.backlog or deque(), None
        return waiting

    def stop(self) -> None:
        """The process is gone; its memory with it."""
        self._last_view, self._last_committed = self.view, self.committed
        self.running = self.backlog = None
        self.unreachable.clear()
        self.meter.reset()
        self.incarnation += 1
