"""What is mounted on the replicas of a run: the application, who uses it, and what must hold of it besides."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from parley.crypto.hashing import digest
from parley.mempool.pool import Limits
from parley.replica.ports import Mounted
from parley.replica.rejoining import Patience
from parley.sim import counter
from parley.sim.charge import Meter
from parley.sim.checkers import Checker, NoDuplication
from parley.sim.observations import Observation
from parley.sim.report import Answers
from parley.sim.results import EqualResults
from parley.sim.workload import Workload
from parley.sim.world import World
from parley.store.interface import KeyValue


class Users(Protocol):
    """The clients of a run."""

    answers: Answers

    def start(self) -> None: ...

    def stop(self) -> None:
        """Begin nothing new; what is outstanding is still retried."""

    def outstanding(self) -> tuple[bytes, ...]: ...

    def see(self, event: Observation) -> None: ...


class Setting(Protocol):
    """One application in one network."""

    name: str
    chain: bytes
    version: int  # of the application
    recovery_views: int  # in how many views all must have healed, besides some for each member
    patience: Patience  # when replicas start from a snapshot
    limits: Limits  # of their pools

    def mounted(self, member: int, meter: Meter) -> Mounted:
        """A new application of a member: its replica gets one in each of its lives. Execution may be charged to `meter`."""

    def users(self, world: World) -> Users: ...

    def checkers(self) -> list[Checker]:
        """To be asked for once: they are of one run."""

    def is_sound(self, store: KeyValue) -> bool:
        """Whether a disk holds all that it should, as far as this can be told of the application."""


class Counting:
    """The counter of `parley.sim.counter`: little to do, so that all is about order."""

    name = "counter"
    version = 1
    recovery_views = 40  # clients retry every three seconds, and views pass while they wait
    patience = Patience()
    limits = Limits()

    def __init__(self, seed: int, clients: int, batches: int) -> None:
        self._users = partial(Workload, seed=seed, clients=clients, batches=batches)
        self.chain = digest("sim/chain", str(seed).encode())

    def mounted(self, member: int, meter: Meter) -> Mounted:  # noqa: ARG002 - all have the same, and it costs nothing
        return counter.mounted()

    def users(self, world: World) -> Users:
        return self._users(world)

    def checkers(self) -> list[Checker]:
        return [NoDuplication(), EqualResults(counter.Counter())]

    def is_sound(self, store: KeyValue) -> bool:  # noqa: ARG002 - its disks are not damaged
        return True
