"""What executing a block costs a simulated machine: time in which its replica does nothing else, like a broker's one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from parley.application.block import Derived
from parley.application.machine import Machine
from parley.consensus.types import Block
from parley.ledger import layout
from parley.ledger.application import Results
from parley.store.interface import KeyValue

MILLISECOND = 1_000  # microseconds
KIBIBYTE = 1_024
COMPARISONS = "comparisons"  # how applications that count them name them


@dataclass(frozen=True, slots=True)
class Prices:
    """Microseconds for what execution does, measured and then rounded up: docs/simulator.md says how."""

    block: int = 100
    batch: int = 80
    written: int = 30  # entry of the state, with the nodes of the state map above it
    read: int = 6  # entry, also of an index
    leaf: int = 12
    kibibyte: int = 3  # of bodies and of leaves
    thousand_comparisons: int = 400

    def slower(self, times: int) -> Prices:
        """Those of a machine that is so many times slower."""
        return Prices(*(times * price for price in astuple(self)))


class Meter:
    """The time that one machine spends on execution: `due` is for the clock, `took` for those who watch."""

    def __init__(self) -> None:
        self._owed = 0  # microseconds that have not passed yet
        self._took: dict[int, int] = {}

    def charge(self, height: int, microseconds: int) -> None:
        self._owed += microseconds
        self._took[height] = microseconds

    def due(self) -> int:
        """Milliseconds that have to pass now. What is less than one is carried over: the clock has nothing shorter."""
        due, self._owed = divmod(self._owed, MILLISECOND)
        return due

    def took(self, height: int) -> int:
        """Microseconds for the block of this height, which is then forgotten; 0 if nothing was charged."""
        return self._took.pop(height, 0)

    def reset(self) -> None:
        self._owed = 0
        self._took.clear()


class Charged:
    """A state machine that charges what it executes. It is a function of the block and the state, as execution itself is."""

    def __init__(self, machine: Machine, prices: Prices, meter: Meter) -> None:
        self._machine = machine
        self._prices = prices
        self._meter = meter
        self.genesis, self.admit, self.repaired = machine.genesis, machine.admit, machine.repaired

    @property
    def derived(self) -> dict[Derived[Any], Any] | None:
        return self._machine.derived

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        machine, view = self._machine, _Counted(state)
        starting, compared = machine.derived is None, machine.executed.totals[COMPARISONS]
        results = machine.apply(block, batches, view)
        # The first block of a life also reads what is kept in memory from then on: that belongs to the start.
        read = 0 if starting else view.read
        compared = machine.executed.totals[COMPARISONS] - compared
        self._meter.charge(block.height, self._cost(batches, results, read, compared))
        return results

    def _cost(
        self, batches: Sequence[tuple[bytes, bytes]], results: Results, read: int, compared: int
    ) -> int:
        prices = self._prices
        size = sum(len(body) for _, body in batches) + sum(map(len, results.leaves))
        written = sum(key.startswith(layout.ENTRIES) for key, _ in results.writes)
        return (
            prices.block
            + prices.batch * len(batches)
            + prices.written * written
            + prices.read * read
            + prices.leaf * len(results.leaves)
            + prices.kibibyte * size // KIBIBYTE
            + prices.thousand_comparisons * compared // 1_000
        )


class _Counted:
    """A view of the state that counts the entries which are read through it."""

    def __init__(self, state: KeyValue) -> None:
        self._state = state
        self.read = 0

    def get(self, key: bytes) -> bytes | None:
        self.read += 1
        return self._state.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for entry in self._state.scan(prefix, start):
            self.read += 1
            yield entry
