"""What an outside observer of a simulated network sees; checkers judge nothing but these."""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.types import Block
from parley.replica.ports import KeyValue, Receipt


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client has made this batch; it may reach any replica from now on."""

    batch: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Resumed:
    """A correct replica has done all that a start brings: it has executed what its disk holds of the committed chain."""

    replica: int
    executed: int


@dataclass(frozen=True, slots=True)
class Started:
    """A correct replica came up with this committed height; `joining`: with a state that it will not use."""

    replica: int
    committed: int
    joining: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """These bytes left a correct replica."""

    replica: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Persisted:
    """A correct replica finished writing this safety record."""

    replica: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Crashed:
    """A correct replica lost power; `record` is what it was writing into the safety file, if it was."""

    replica: int
    record: bytes | None


@dataclass(frozen=True, slots=True)
class Wiped:
    """A correct replica lost its disk, the safety record included, and got a new one (P10)."""

    replica: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A correct replica came back with this safety record, or `fault` says why it could not."""

    replica: int
    record: bytes | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """A correct replica executed a committed block; `leaves` is what its disk holds of the results.

    `suspect`: its disk was damaged, so it may execute the block wrongly, and must notice by what others certify.
    """

    replica: int
    block: Block
    receipts: tuple[Receipt, ...]
    leaves: bytes = b""
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Certified:
    """A correct replica can prove to clients what blocks up to this height did."""

    replica: int
    height: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A correct replica stopped by itself, or an input made it raise."""

    replica: int
    why: str


@dataclass(frozen=True, slots=True)
class Status:
    """Where one correct replica stands."""

    replica: int
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
class Opened:
    """The run is over, and the disk of a correct replica is looked at; `whole`: it is complete, and may sign."""

    replica: int
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
    | Certified
    | Failed
    | Healed
    | Ended
    | Opened
)
