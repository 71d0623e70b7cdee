"""What an outside observer of a simulated network sees; checkers judge nothing but these."""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.types import Block
from parley.replica.ports import Receipt
from parley.store.interface import KeyValue


@dataclass(frozen=True, slots=True)
class _OfReplica:
    replica: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client has made this batch; it may reach any replica from now on."""

    batch: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Resumed(_OfReplica):
    """A correct replica has done all that a start brings: it has executed what its disk holds of the committed chain."""

    executed: int


@dataclass(frozen=True, slots=True)
class Started(_OfReplica):
    """A correct replica came up with this committed height; `joining`: with a state that it will not use."""

    committed: int
    joining: bool = False


@dataclass(frozen=True, slots=True)
class Sent(_OfReplica):
    """These bytes left a correct replica."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Persisted(_OfReplica):
    """A correct replica finished writing this safety record."""

    record: bytes


@dataclass(frozen=True, slots=True)
class Crashed(_OfReplica):
    """A correct replica lost power; `record` is what it was writing into the safety file, if it was."""

    record: bytes | None


@dataclass(frozen=True, slots=True)
class Wiped(_OfReplica):
    """A correct replica lost its disk, the safety record included, and got a new one (P10)."""


@dataclass(frozen=True, slots=True)
class Recovered(_OfReplica):
    """A correct replica came back with this safety record, or `fault` says why it could not."""

    record: bytes | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Applied(_OfReplica):
    """A correct replica executed a committed block; `leaves` is what its disk holds of the results.

    `suspect`: its disk was damaged, so it may execute the block wrongly, and must notice by what others certify.
    `execution_us` is how long that took, where it is charged.
    """

    block: Block
    receipts: tuple[Receipt, ...]
    leaves: bytes = b""
    suspect: bool = False
    execution_us: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """A client that asks for little has got it after so many views and milliseconds.

    `steps` is how many batches had to be ordered for it, one after the other.
    """

    asked: str
    steps: int
    views: int
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Certified(_OfReplica):
    """A correct replica can prove to clients what blocks up to this height did."""

    height: int


@dataclass(frozen=True, slots=True)
class Failed(_OfReplica):
    """A correct replica stopped by itself, or an input made it raise."""

    why: str


@dataclass(frozen=True, slots=True)
class Status(_OfReplica):
    """Where one correct replica stands."""

    up: bool
    view: int
    committed: int


@dataclass(frozen=True, slots=True)
class Healed:
    """The fault phase is over: all links work and all correct replicas are up."""

    time: int
    replicas: tuple[Status, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over; `outstanding` are batches whose clients still wait, `settled` the height of the last success."""

    time: int
    replicas: tuple[Status, ...]
    outstanding: tuple[bytes, ...]
    settled: int


@dataclass(frozen=True, slots=True)
class Opened(_OfReplica):
    """The run is over, and the disk of a correct replica is looked at; `whole`: it is complete, and may sign."""

    store: KeyValue
    whole: bool = True


Observation = (
    Submitted
    | Resumed
    | Started
    | Sent
    | Persisted
    | Crashed
    | Wiped
    | Recovered
    | Applied
    | Served
    | Certified
    | Failed
    | Healed
    | Ended
    | Opened
)
