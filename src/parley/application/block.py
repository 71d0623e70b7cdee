"""What the transitions of one block share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from parley.application.executed import Executed
from parley.application.state import State
from parley.application.work import Budget, Shares
from parley.model.genesis import Genesis
from parley.model.principals import Principal
from parley.model.receipts import BatchReceipt
from parley.store.interface import KeyValue

T = TypeVar("T")
P = ParamSpec("P")


class Hook(Generic[P]):
    """Something that happens in one module and concerns others.

    `name` is for people; `_signature` is a function with the arguments of the handlers, for the type checker.
    """

    def __init__(self, name: str, _signature: Callable[P, None]) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Hook {self.name}>"


@dataclass(frozen=True, eq=False)
class PerBlock(Generic[T]):
    """Something that a module needs during a block and drops at its end."""

    make: Callable[[BlockContext], T]


@dataclass(frozen=True, eq=False)
class Derived(Generic[T]):
    """Something that a module keeps in memory between blocks. It follows from the state alone: `load` makes it.

    Two of them are equal iff they were derived from the same state; the simulator compares them after every block.
    """

    name: str
    load: Callable[[KeyValue], T]


@dataclass(eq=False, kw_only=True)
class BlockContext:
    """One block while it is applied. `height` and `time` are the block's: there is no other time."""

    height: int
    time: int
    genesis: Genesis
    chain: bytes  # that of the genesis, which is hashed once
    state: State
    executed: Executed
    hooks: Mapping[Hook[Any], tuple[Callable[..., None], ...]]
    derived: Mapping[Derived[Any], Any]
    principals: Callable[[State, bytes], Principal]
    budget: Budget
    room: int  # bytes that the block's own batches leave for those of earlier blocks that are finished in it
    # What is left for work that was decided in earlier blocks; less than nothing if its last piece was too large.
    work: int = field(init=False)
    # Work that is done or set aside before the batches, beyond what housekeeping pays for.
    taken_from_batches: int = field(init=False, default=0)
    # For its batches, while they are executed.
    shares: Shares = field(init=False, default_factory=lambda: Shares(0, ()))
    # Receipts of batches of earlier blocks that were finished in this one.
    late: list[BatchReceipt] = field(init=False, default_factory=list)
    # Digests of batches whose bodies will never be read again.
    dropped: list[bytes] = field(init=False, default_factory=list)
    urgent: bool = field(init=False, default=False)  # there is more to do, even if no batch comes
    _made: dict[PerBlock[Any], Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.work = self.budget.housekeeping

    def __getitem__(self, slot: PerBlock[T] | Derived[T]) -> T:
        if isinstance(slot, Derived):
            found: T = self.derived[slot]
            return found
        if slot not in self._made:
            self._made[slot] = slot.make(self)
        made: T = self._made[slot]
        return made

    def call(self, hook: Hook[P], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the handlers of the hook, in the order of the modules."""
        for handle in self.hooks.get(hook, ()):
            handle(*args, **kwargs)

    def account_for(self, work: int) -> None:
        """Work is done in this block in any case: housekeeping pays at most half of what it has left, batches the rest."""
        part = min(work, max(self.work, 0) // 2)
        self.work -= part
        self.taken_from_batches += work - part

    def spend(self, work: int, *, done: bool = False) -> None:
        """Take work for the batch that is executed, before anything is written. Raises `NoRoom` if there is no room.

        `done`: it is not given back if there is no room for what follows.
        """
        self.shares.spend(work, done=done)

    def at_most(self, work: int, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a part of a job now, with so much work, which the operation that begins the job has spent."""
        before, self.work = self.work, work
        done = job(*args, **kwargs)
        self.work = before
        return done

    def principal(self, key: bytes) -> Principal:
        return self.principals(self.state, key)
