"""How the world outside touches a replica: the effects that a driver executes, and the two things it plugs in.

The node and the simulator execute exactly these effects, in order. Reads go through `KeyValue`, a local store that
answers at once; every write is an effect, so a crash between two effects is a well-defined state.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.errors import Reason
from parley.consensus.events import Evidence
from parley.consensus.events import Timer as ConsensusTimer
from parley.consensus.types import QC, Block, Header
from parley.ledger.application import Admitted, Application, KeyValue, Outcome, Receipt
from parley.mempool.pool import BatchTimer
from parley.sync.blocks import SyncTimer

__all__ = [
    "Admitted",
    "Application",
    "Applied",
    "Broadcast",
    "Certified",
    "Effect",
    "Halt",
    "KeyValue",
    "Outcome",
    "PersistSafety",
    "Receipt",
    "Refused",
    "Report",
    "Send",
    "SetTimer",
    "Timer",
    "Write",
]

Timer = ConsensusTimer | BatchTimer | SyncTimer


@dataclass(frozen=True, slots=True)
class Write:
    """One atomic write; a value of None deletes. `sync`: it and all writes before it are on disk before what follows.

    `applies` is the height whose results it holds, if it is the one write of an executed block.
    """

    entries: tuple[tuple[bytes, bytes | None], ...]
    sync: bool
    applies: int | None = None


@dataclass(frozen=True, slots=True)
class PersistSafety:
    """Write `record` twice into `slot` of the safety file and sync, before what follows."""

    slot: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Broadcast:
    """To every other member."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `fire(timer)` once, `delay` milliseconds from now. Timers are never cancelled; late ones are ignored."""

    timer: Timer
    delay: int


@dataclass(frozen=True, slots=True)
class Applied:
    """A committed block has been executed and its results are on disk."""

    block: Block
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class Certified:
    """A quorum voted for this header, whose results this replica has computed, too: what proofs can be built on (P2)."""

    header: Header
    qc: QC


@dataclass(frozen=True, slots=True)
class Report:
    """Proof that a member signed two contradicting things."""

    evidence: Evidence


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


Effect = Write | PersistSafety | Send | Broadcast | SetTimer | Applied | Certified | Report | Refused | Halt
