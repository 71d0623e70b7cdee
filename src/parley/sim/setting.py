"""What is mounted on the replicas of a run: the application, who uses it, and what must hold of it besides."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import Protocol

from parley.crypto.hashing import digest
from parley.replica.ports import KeyValue, Mounted
from parley.replica.rejoining import Patience
from parley.sim import counter
from parley.sim.checkers import Checker, NoDuplication
from parley.sim.observations import Observation
from parley.sim.results import EqualResults
from parley.sim.workload import Workload
from parley.sim.world import World


class Users(Protocol):
    """The clients of a run. `settled` is the height at which the last of them succeeded."""

    @property
    def settled(self) -> int: ...

    @property
    def acknowledged(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None:
        """Begin nothing new; what is outstanding is still retried."""

    def outstanding(self) -> tuple[bytes, ...]: ...

    def see(self, event: Observation) -> None: ...

    def receipts(self) -> Tally[str]:
        """The receipts of the chain by their codes."""


class Setting(Protocol):
    """One application in one network."""

    @property
    def name(self) -> str: ...

    @property
    def chain(self) -> bytes: ...

    @property
    def version(self) -> int:
        """Of the application."""

    @property
    def recovery_views(self) -> int:
        """In how many views all must have healed, besides some for each member."""

    @property
    def patience(self) -> Patience:
        """When replicas start from a snapshot."""

    def mounted(self, member: int) -> Mounted:
        """A new application of a member: its replica gets one in each of its lives."""

    def users(self, world: World) -> Users: ...

    def checkers(self) -> list[Checker]:
        """To be asked for once: they are of one run."""

    def is_sound(self, store: KeyValue) -> bool:
        """Whether a disk holds all that it should, as far as this can be told of the application."""


@dataclass(frozen=True, slots=True)
class Counting:
    """The counter of `parley.sim.counter`: little to do, so that all is about order."""

    seed: int
    clients: int
    batches: int
    name: str = "counter"
    version: int = 1
    recovery_views: int = 40  # clients retry every three seconds, and views pass while they wait
    patience: Patience = field(default_factory=Patience)

    @property
    def chain(self) -> bytes:
        return digest("sim/chain", str(self.seed).encode())

    def mounted(self, member: int) -> Mounted:  # noqa: ARG002 - all members have the same
        return counter.mounted()

    def users(self, world: World) -> Users:
        return Workload(world, self.seed, self.clients, self.batches)

    def checkers(self) -> list[Checker]:
        return [NoDuplication(), EqualResults(counter.Counter())]

    def is_sound(self, store: KeyValue) -> bool:  # noqa: ARG002 - its disks are not damaged
        return True
