"""Observers that compute for themselves: what replicas report, sign and keep in memory must be what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, Protocol

from parley.application.block import Derived
from parley.consensus.types import Block, Header
from parley.ledger.application import Mounted, Results, StateMachine, Writes
from parley.replica.ports import Receipt
from parley.sim.observations import Applied, Observation, Submitted
from parley.store.interface import KeyValue
from parley.store.memory import MemoryStore


class EqualResults:
    """Every correct replica gets the same receipts from a block, and every committed header names the true state."""

    name = "equal results"

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._bodies: dict[bytes, bytes] = {}
        self._state = MemoryStore()
        genesis = machine.genesis()
        self._state.write(genesis.writes)
        self._roots = [genesis.state_root]
        self._receipts: list[tuple[Receipt, ...]] = [genesis.receipts]

    def see(self, event: Observation) -> str | None:
        match event:
            case Submitted():
                self._bodies[event.batch] = event.data
            case Applied():
                if event.block.height == len(self._roots):
                    self._execute(event)
                differ = None if event.suspect else self._receipts_differ(event)
                return differ or self._root_differs(event.replica, event.block.header)
            case _:
                pass
        return None

    def _execute(self, event: Applied) -> None:
        batches = [(batch, self._bodies.get(batch, b"")) for batch in event.block.batches]
        results = self._machine.apply(event.block, batches, self._state)
        self._state.write(results.writes)
        self._roots.append(results.state_root)
        self._receipts.append(results.receipts)

    def _receipts_differ(self, event: Applied) -> str | None:
        height = event.block.height
        if height >= len(self._receipts) or event.receipts == self._receipts[height]:
            return None
        return f"replica {event.replica} got other receipts at height {height} than executing the chain gives"

    def _root_differs(self, replica: int, header: Header) -> str | None:
        height = header.executed_height
        if height >= len(self._roots) or header.state_root == self._roots[height]:
            return None
        return (
            f"replica {replica} committed a header at height {header.height} with state root "
            f"{header.state_root.hex()[:12]} for height {height}, where executing the chain gives "
            f"{self._roots[height].hex()[:12]}"
        )


class Keeping(StateMachine, Protocol):
    """A state machine that says what it keeps between blocks, as those made of modules do."""

    @property
    def derived(self) -> dict[Derived[Any], Any] | None:
        """None before the first block."""


class KeptState:
    """After every block, what a correct replica keeps in memory equals what loading it from the store gives.

    Otherwise a replica that was started again would decide differently from those that were not.
    """

    name = "kept state"

    def __init__(self) -> None:
        self._differing: dict[tuple[int, int], tuple[str, ...]] = {}  # by member and height

    def watched(self, member: int, mounted: Mounted[Keeping]) -> Mounted:
        """The application of one member, whose memory is compared from now on."""

        def note(height: int, names: tuple[str, ...]) -> None:
            self._differing[member, height] = names

        return Mounted(_Compared(mounted.machine, note), mounted.keeper)

    def see(self, event: Observation) -> str | None:
        if not isinstance(event, Applied):
            return None
        names = self._differing.pop((event.replica, event.block.height), ())
        if not names or event.suspect:  # memory is right where a disk is damaged
            return None
        return (
            f"after height {event.block.height} replica {event.replica} keeps other {', '.join(names)} in memory than its "
            f"store gives"
        )


class _Compared:
    """A state machine that loads what it keeps once more after every block; `note` gets the names of what differs."""

    def __init__(self, machine: Keeping, note: Callable[[int, tuple[str, ...]], None]) -> None:
        self._machine = machine
        self._note = note
        self.genesis, self.admit, self.repaired = machine.genesis, machine.admit, machine.repaired

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        results = self._machine.apply(block, batches, state)
        kept, after = self._machine.derived or {}, _After(state, results.writes)
        self._note(block.height, tuple(one.name for one in kept if _differs(one, kept[one], after)))
        return results


class _After:
    """The application's part of a store with the results of one more block."""

    def __init__(self, before: KeyValue, writes: Writes) -> None:
        self._before = before
        self._written = dict(writes)

    def get(self, key: bytes) -> bytes | None:
        return self._written[key] if key in self._written else self._before.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        new = {key: value for key, value in self._written.items() if key >= start and key.startswith(prefix)}
        old = (entry for entry in self._before.scan(prefix, start) if entry[0] not in new)
        both = merge(sorted(new.items()), old, key=itemgetter(0))
        return ((key, value) for key, value in both if value is not None)


def _differs(derived: Derived[object], kept: object, store: KeyValue) -> bool:
    try:
        return bool(kept != derived.load(store))
    except Exception:  # noqa: BLE001 - a damaged disk cannot be loaded, and the replica must not notice that it was tried
        return True
