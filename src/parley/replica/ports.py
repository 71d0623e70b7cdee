"""How the world outside touches a replica: the effects that a driver executes, and the application it plugs in.

The node and the simulator execute exactly these effects, in order. Reads go through `StoreReader`, a local store
that answers at once; every write is an effect, so a crash between two effects is a well-defined state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from parley.consensus import events
from parley.consensus.errors import Reason
from parley.consensus.types import QC, Block, Header
from parley.crypto import merkle
from parley.ledger.application import AdmittedBatch, Mounted, Receipt, Results
from parley.mempool.pool import BatchTimer, Intake
from parley.sync.blocks import SyncTimer
from parley.sync.timers import CareTimer, JoinTimer, RecoveryTimer

__all__ = [
    "AdmittedBatch",
    "Applied",
    "Broadcast",
    "Certified",
    "Effect",
    "Found",
    "Halt",
    "Intake",
    "Mounted",
    "Participant",
    "PersistSafety",
    "Receipt",
    "Refused",
    "Report",
    "Restart",
    "Results",
    "Send",
    "SetTimer",
    "Submission",
    "Timer",
    "Write",
]

Timer = events.Timer | BatchTimer | SyncTimer | CareTimer | JoinTimer | RecoveryTimer


class Participant(Protocol):
    """What runs on a broker's disk: a replica, or what puts the disk in order before one can run."""

    @property
    def view(self) -> int: ...

    @property
    def committed_height(self) -> int: ...

    @property
    def executed_height(self) -> int: ...

    def start(self, now: int) -> list[Effect]: ...

    def receive(self, now: int, sender: int, *messages: bytes) -> list[Effect]: ...

    def submit(self, now: int, batch: AdmittedBatch) -> Submission: ...

    def fire(self, now: int, timer: Timer) -> list[Effect]: ...

    def connected(self, now: int, member: int, *, up: bool) -> list[Effect]: ...


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a client's batch, and the effects of it."""

    intake: Intake
    effects: list[Effect]


class Write(Struct, frozen=True):
    """One atomic write; a value of None deletes. `sync`: it and all writes before it are on disk before what follows.

    `applies` is the height whose results it holds, if it is the one write of an executed block. `deferrable`: of what
    follows, only messages need its sync, and they may wait a moment for one that several batches share.
    """

    entries: tuple[tuple[bytes, bytes | None], ...]
    sync: bool
    applies: int | None = None
    deferrable: bool = False


@dataclass(frozen=True, slots=True)
class PersistSafety:
    """Write `record` twice into `slot` of the safety file and sync, before what follows."""

    slot: int
    record: bytes


class Send(Struct, frozen=True):
    to: int
    data: bytes


class Broadcast(Struct, frozen=True):
    """To every other member."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `fire(timer)` once, `delay` milliseconds from now. Timers are never cancelled; late ones are ignored."""

    timer: Timer
    delay: int


class Applied(Struct, frozen=True):
    """A committed block has been executed, and its results are written. `tree` is over `leaves`, as they are certified."""

    block: Block
    receipts: tuple[Receipt, ...]
    leaves: tuple[bytes, ...]
    tree: merkle.Tree


@dataclass(frozen=True, slots=True)
class Certified:
    """A quorum voted for this header, whose results this replica has computed, too: what proofs can be built on (P2)."""

    header: Header
    qc: QC


@dataclass(frozen=True, slots=True)
class Report:
    """Proof that a member signed two contradicting things."""

    evidence: events.Evidence


@dataclass(frozen=True, slots=True)
class ViewFailed:
    """A view ended with a timeout certificate; `leader` should have proposed in it."""

    view: int
    leader: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An input was refused, counted, and changed nothing. `sender` is None for the local client."""

    sender: int | None
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Halt:
    """The replica has stopped taking part; `why` says what an operator should do."""

    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of the local store was damaged or missing; `mended` says whether it is right again."""

    entry: str  # its name, for people
    what: str
    mended: bool


@dataclass(frozen=True, slots=True)
class Restart:
    """All effects before this one are executed; then what runs here is built anew from safety record and store."""

    why: str


Effect = (
    Write
    | PersistSafety
    | Send
    | Broadcast
    | SetTimer
    | Applied
    | Certified
    | Report
    | ViewFailed
    | Refused
    | Halt
    | Found
    | Restart
)
