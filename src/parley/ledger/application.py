"""What runs on the ordered batches: a deterministic state machine over a key-value view, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from parley.consensus.types import Block

__all__ = ["Admitted", "Application", "KeyValue", "Outcome", "Receipt"]


class KeyValue(Protocol):
    """A read-only view of the local store as of the effects executed so far."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order."""
        ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """A batch that may be stored: its name in blocks, and whose it is (empty: nobody's in particular)."""

    digest: bytes
    author: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the application did with one ordered batch."""

    batch: bytes
    code: str
    position: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What executing one block changes. `settled` batches are done with; the rest may be ordered again (P3).

    `receipts` tell the driver; `leaves` are what the history certifies of them.
    """

    writes: tuple[tuple[bytes, bytes | None], ...]
    state_root: bytes
    receipts: tuple[Receipt, ...]
    settled: frozenset[bytes]
    leaves: tuple[bytes, ...] = ()


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
