"""What the transitions of one block share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

from parley.application.executed import Executed
from parley.application.state import State
from parley.ledger.application import KeyValue
from parley.model.genesis import Genesis
from parley.model.principals import Principal
from parley.model.receipts import BatchReceipt

T = TypeVar("T")
P = ParamSpec("P")

MAX_WORK = 4_096  # entries that work which goes on after its own block may touch in one block


class Hook(Generic[P]):
    """Something that happens in one module and concerns others.

    `name` is for people; `_signature` is a function with the arguments of the handlers, for the type checker.
    """

    def __init__(self, name: str, _signature: Callable[P, None]) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Hook {self.name}>"


class PerBlock(Generic[T]):
    """Something that a module needs during a block and drops at its end."""

    def __init__(self, make: Callable[[BlockContext], T]) -> None:
        self.make = make


class Derived(Generic[T]):
    """Something that a module keeps in memory between blocks. It follows from the state alone: `load` makes it.

    Two of them are equal iff they were derived from the same state; the simulator compares them after every block.
    """

    def __init__(self, name: str, load: Callable[[KeyValue], T]) -> None:
        self.name = name
        self.load = load


class BlockContext:
    """One block while it is applied. `height` and `time` are the block's: there is no other time."""

    def __init__(
        self,
        height: int,
        time: int,
        *,
        genesis: Genesis,
        chain: bytes,
        state: State,
        executed: Executed,
        hooks: Mapping[Hook[Any], tuple[Callable[..., None], ...]],
        derived: Mapping[Derived[Any], Any],
        principal: Callable[[State, bytes], Principal],
    ) -> None:
        self.height = height
        self.time = time
        self.genesis = genesis
        self.chain = chain  # that of the genesis, which is hashed once
        self.state = state
        self.executed = executed
        self.work = MAX_WORK  # entries that may still be touched
        # Bytes that the block's own batches leave for those of earlier blocks that are finished in it.
        self.room = genesis.limits.block_bytes
        self.late: list[BatchReceipt] = []  # of batches of earlier blocks that were finished in this one
        self.dropped: list[bytes] = []  # digests of batches whose bodies will never be read again
        self.urgent = False  # there is more to do, even if no batch comes
        self._hooks = hooks
        self._derived = derived
        self._principal = principal
        self._made: dict[PerBlock[Any], Any] = {}

    def __getitem__(self, slot: PerBlock[T] | Derived[T]) -> T:
        if isinstance(slot, Derived):
            found: T = self._derived[slot]
            return found
        if slot not in self._made:
            self._made[slot] = slot.make(self)
        made: T = self._made[slot]
        return made

    def call(self, hook: Hook[P], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the handlers of the hook, in the order of the modules."""
        for handle in self._hooks.get(hook, ()):
            handle(*args, **kwargs)

    def principal(self, key: bytes) -> Principal:
        return self._principal(self.state, key)
