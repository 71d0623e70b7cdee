"""How the world outside touches a replica: the effects that a driver executes, and the two things it plugs in.

The node and the simulator execute exactly these effects, in order. Reads go through `KeyValue`, a local store that
answers at once; every write is an effect, so a crash between two effects is a well-defined state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from parley.consensus.errors import Reason
from parley.consensus.events import Evidence
from parley.consensus.events import Timer as ConsensusTimer
from parley.consensus.types import Block
from parley.mempool.pool import BatchTimer
from parley.sync.blocks import SyncTimer

__all__ = [
    "Application",
    "Applied",
    "Broadcast",
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


class KeyValue(Protocol):
    """A read-only view of the local store as of the effects executed so far."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order."""
        ...


@dataclass(frozen=True, slots=True)
class Write:
    """One atomic write; a value of None deletes. `sync`: it and all writes before it are on disk before what follows."""

    entries: tuple[tuple[bytes, bytes | None], ...]
    sync: bool


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
class Receipt:
    """What the application did with one ordered batch."""

    batch: bytes
    code: str
    position: int


@dataclass(frozen=True, slots=True)
class Applied:
    """A committed block has been executed and its results are on disk."""

    block: Block
    receipts: tuple[Receipt, ...]


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


Effect = Write | PersistSafety | Send | Broadcast | SetTimer | Applied | Report | Refused | Halt


@dataclass(frozen=True, slots=True)
class Outcome:
    """What executing one block changes. `settled` batches are done with; the rest may be ordered again (P3)."""

    writes: tuple[tuple[bytes, bytes | None], ...]
    state_root: bytes
    receipts: tuple[Receipt, ...]
    settled: frozenset[bytes]


class Application(Protocol):
    """A deterministic state machine over ordered batches: no clock, no network, no randomness."""

    def genesis(self) -> Outcome:
        """The state before block 1."""
        ...

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Outcome:
        """Execute one block over (digest, body) pairs; `state` holds the results of all blocks before it."""
        ...
