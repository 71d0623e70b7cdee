"""What a module declares: operations and what they do, tables, outcomes, hooks, and what follows from its receipts.

A module's folder has `operations.py` (what a client may ask), `tables.py` (what is kept), `refusals.py` with `texts.py`
where it has codes or reasons of its own, and `rules.py`, which holds the transitions and the `Module` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from parley.application.admission import OpenedBatch
from parley.application.block import BlockContext, Derived, Hook
from parley.application.expiry import Expire
from parley.application.jobs import Job
from parley.application.operations import Operation
from parley.application.rows import ChangeTable
from parley.application.state import State
from parley.application.tables import AnyTable, Reader
from parley.ledger.application import Erasure
from parley.model.batches import BatchHeader
from parley.model.genesis import Genesis
from parley.model.names import Position
from parley.model.principals import Principal
from parley.model.receipts import BatchReceipt, Leaf, Outcome
from parley.model.refusals import Refused
from parley.model.texts import Texts
from parley.store.interface import KeyValue

# What applies one operation; the receipt will be the leaf at the position.
Apply = Callable[[BlockContext, Principal, Any, Position], Outcome]
# Why a batch can never be applied any more, in whatever state: (block, publisher, header) -> the refusal.
TooLate = Callable[[BlockContext, Principal, BatchHeader], Refused | None]
ApplyBatch = Callable[[BlockContext, Principal, OpenedBatch, Position], Outcome]
Cost = Callable[[Reader, Principal, Any], int]
IndexEntries = Iterator[tuple[bytes, bytes | None]]  # of a store; None deletes
Index = Callable[[int, int, Any], IndexEntries]


@dataclass(frozen=True)
class BatchKind:
    """Batches of one kind, by the number in their header. Without a `sequence` they may be applied in any order.

    What `too_late` refuses uses up nothing: no turn in its sequence, which ends with what the batch was made for.
    """

    kind: int
    name: str
    apply: ApplyBatch
    sequence: bool = True
    too_late: TooLate | None = None
    late: bool = False  # receipts of such batches may stand in later blocks


@dataclass(frozen=True)
class Module:
    """One capability of an application. Callables get the block first."""

    name: str
    operations: Mapping[type[Operation], Apply] = field(default_factory=dict)
    # What an operation will touch, in `parley.application.work`'s unit: brokers charge their clients for it, too. Those that
    # are not named here touch a few entries. What would take more than a block has is begun as a job.
    costs: Mapping[type[Operation], Cost] = field(default_factory=dict)
    # What goes on over blocks, by the table that lists it.
    jobs: Mapping[AnyTable, Job] = field(default_factory=dict)
    # What clients may choose among, by the name of the choice, where that differs between applications.
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    batches: tuple[BatchKind, ...] = ()
    tables: tuple[AnyTable, ...] = ()
    outcomes: tuple[type[Outcome], ...] = ()
    leaves: tuple[type[Leaf], ...] = ()
    refusals: tuple[type[Refused], ...] = ()
    texts: Texts = field(default_factory=dict)
    changes: tuple[ChangeTable, ...] = ()  # ledger tables besides those of every application
    derived: tuple[Derived[Any], ...] = ()
    hooks: Mapping[Hook[Any], Callable[..., None]] = field(default_factory=dict)
    # Every table with `expires` is named here: what happens when the height has come.
    expire: Mapping[AnyTable, Expire] = field(default_factory=dict)
    # Which principal a key is. One module of an application says so.
    principals: Callable[[Genesis], Callable[[State, bytes], Principal]] | None = None
    begin_block: Callable[[BlockContext], None] | None = None  # in list order, before any batch
    end_block: Callable[[BlockContext], None] | None = None  # in list order, after the last batch
    # Leaves besides receipts, after `end_block`.
    certify: Callable[[BlockContext], Iterable[Leaf]] | None = None
    # What a broker keeps besides the state.
    # Derived entries of leaves, and of receipts with such an outcome: (height, position, leaf) -> them.
    index: Mapping[type[Leaf | Outcome], Index] = field(default_factory=dict)
    # Derived entries that execution gives.
    derive: Callable[[BlockContext, KeyValue], IndexEntries] | None = None
    # Whether a batch with such an outcome will never be read again, so that its body goes: (receipt, place, store).
    over: Mapping[type[Outcome], Callable[[BatchReceipt, int | None, KeyValue], bool]] = field(
        default_factory=dict
    )
    # More bodies to erase: (store, height of its state, how many) -> them, and what remembers how far this has got.
    erase: Callable[[KeyValue, int, int], Erasure] | None = None
