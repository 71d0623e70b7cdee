"""What runs on the ordered batches: a deterministic state machine over a key-value view, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from parley.consensus.types import Block

__all__ = ["Admitted", "Application", "Erasure", "KeyValue", "Outcome", "Receipt", "Writes"]

Writes = tuple[tuple[bytes, bytes | None], ...]


class KeyValue(Protocol):
    """A read-only view of the local store as of the effects executed so far."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order."""
        ...


class Admitted(Struct, frozen=True):
    """A batch that may be stored: its name in blocks, and whose it is (empty: nobody's in particular)."""

    digest: bytes
    author: bytes


class Receipt(Struct, frozen=True):
    """What the application did with one ordered batch."""

    batch: bytes
    code: str
    position: int


@dataclass(frozen=True, slots=True)
class Erasure:
    """Batches whose bodies are no longer to be kept, and the derived entries that remember how far this has got."""

    batches: tuple[bytes, ...]
    writes: Writes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What executing one block changes. `settled` batches are done with; the rest may be ordered again (P3).

    `receipts` tell the driver; `leaves` are what the history certifies of them. `urgent`: there are results besides those
    of the block's own batches, or more to come, so that the next blocks should not wait for anything to order.
    """

    writes: Writes
    state_root: bytes
    receipts: tuple[Receipt, ...]
    settled: frozenset[bytes]
    leaves: tuple[bytes, ...] = ()
    urgent: bool = False


class Application(Protocol):
    """A deterministic state machine over ordered batches: no clock, no network, no randomness."""

    def genesis(self) -> Outcome:
        """The state before block 1."""
        ...

    def admit(self, body: bytes) -> Admitted:
        """What can be told of a batch without the state, its signature included (P4). Raises `Refused`."""
        ...

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Outcome:
        """Execute one block over (digest, body) pairs; `state` holds the results of all blocks before it."""
        ...

    # What follows is for the keeper of the store, and changes nothing that is replicated.

    def is_body(self, body: bytes, name: bytes) -> bool:
        """Whether this is the batch of that name, checked as for `admit`. Nothing of it is kept for `apply`."""
        ...

    def indices(self, height: int, leaves: Sequence[bytes], state: KeyValue) -> Writes:
        """The derived entries that an executed block adds: for a broker that gets old blocks without executing them."""
        ...

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:
        """Whether the body of the batch that this receipt is of is still to be kept; no receipt of a batch: no."""
        ...

    def erase(self, state: KeyValue, limit: int) -> Erasure:
        """Up to `limit` bodies that retention has ended since the last call whose `writes` were written (P5, P21)."""
        ...

    def remains(self, body: bytes) -> bytes:
        """What stays of an erased body: enough to check who signed it, nothing that shows what it said (P21)."""
        ...
