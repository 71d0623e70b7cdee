"""What runs on the ordered batches: a deterministic state machine over a key-value view, and the keeper of its bodies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol

from msgspec import Struct
from typing_extensions import TypeVar

from parley.consensus.types import Block
from parley.model.names import Position
from parley.model.receipts import BatchReceipt
from parley.model.refusals import class_of
from parley.store.interface import KeyValue

Writes = tuple[tuple[bytes, bytes | None], ...]


class AdmittedBatch(Struct, frozen=True, gc=False):
    """A batch that may be stored: its digest in blocks, its author (empty: none is known), and its bytes.

    The author's batches with the same `session` apply in sequence (P3): the next one after this has the sequence
    `following`. Without a session a batch needs no other one first.
    """

    digest: bytes
    author: bytes
    body: bytes
    session: bytes = b""
    sequence: int = 0
    following: int = 0


class Receipt(Struct, frozen=True, gc=False):
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
class Results:
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

    @property
    def put_off(self) -> frozenset[bytes]:
        """Of the batches that are not settled, those that miss nothing but room; the others need another batch first."""
        undecided = (one for one in self.receipts if one.batch not in self.settled)
        return frozenset(one.batch for one in undecided if class_of(one.code).keeps_place)


class StateMachine(Protocol):
    """Deterministic: no clock, no network, no randomness."""

    def genesis(self) -> Results:
        """The state before block 1."""

    def admit(self, body: bytes) -> AdmittedBatch:
        """The batch, if all checks that need no state pass, that of its signature included (P4). Raises `Refused`."""

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        """Execute one block over (digest, body) pairs; `state` holds the results of all blocks before it.

        Bodies are not checked again: each has passed `admit`, with this digest.
        """

    def repaired(self, keys: Collection[bytes]) -> None:
        """Forget what is remembered of these entries: a repair has written them, and no block."""


class Indexing(Protocol):
    """The derived entries of one executed block, from a part of its leaves after another: blocks can be large."""

    def add(self, leaves: Sequence[bytes]) -> Writes:
        """What the next leaves give by themselves."""

    def rest(self) -> Iterator[tuple[bytes, bytes | None]]:
        """What they give together, after the last of them."""


class BodyKeeper(Protocol):
    """What a broker stores besides the state; nothing of it is replicated."""

    def is_body(self, body: bytes, digest: bytes) -> bool:
        """Whether this is the batch of that digest, checked as for `admit`. Nothing of it is kept for `apply`."""

    def receipt(self, leaf: bytes) -> BatchReceipt | None:
        """The leaf, if it is the receipt of a batch. Raises `ValueError` if it cannot be read."""

    def may_be_late(self, kind: int) -> bool:
        """Whether batches of this kind may have a receipt in a later block than their own."""

    def indexing(self, height: int, state: KeyValue, first: int = 0) -> Indexing:
        """The derived entries that an executed block adds: for a broker that gets old blocks without executing them.

        `first` is the position of the first leaf that it will be given.
        """

    def place_of(self, key: bytes, value: bytes) -> Position | None:
        """The height and the position of the leaf to which an entry of an index leads. Raises `ValueError` if it cannot be read.

        None for entries of indices that come by execution and go by erasure: they lead to no block.
        """

    def passing(self) -> tuple[bytes, ...]:
        """The prefixes of the indices whose entries come by execution and go by erasure."""

    def receipt_height(self, digest: bytes, state: KeyValue) -> int | None:
        """The block of the receipt of a batch that is to be found; None: there is none, or it cannot be read."""

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:
        """Whether the body of the batch that this receipt is of is still to be kept; no receipt of a batch: no."""

    def erase(self, state: KeyValue, height: int, limit: int) -> Erasure:
        """Up to `limit` bodies that are over since the last call whose `writes` were written (P5, P21)."""

    def remains(self, body: bytes) -> bytes:
        """What stays of an erased body: enough to check who signed it, nothing that shows what it said (P21)."""


M_co = TypeVar("M_co", bound=StateMachine, default=StateMachine, covariant=True)


class Mounted(NamedTuple, Generic[M_co]):
    """An application on one broker."""

    machine: M_co
    keeper: BodyKeeper
