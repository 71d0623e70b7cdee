"""An application on a state of its own, fed with the blocks of a store, to see whether it gives what the store says."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from parley.consensus.types import Block
from parley.ledger.application import Results, StateMachine


class Replay:
    """Also the `KeyValue` that the state machine reads."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._state: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._write(machine.genesis())

    def apply(self, block: Block, bodies: list[bytes]) -> Results:
        results = self._machine.apply(block, list(zip(block.batches, bodies, strict=True)), self)
        self._write(results)
        return results

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        first = at = bisect_left(self._keys, prefix)
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            at += 1
        return iter([(key, self._state[key]) for key in self._keys[first:at]])

    def _write(self, results: Results) -> None:
        for key, value in results.writes:
            if value is None:
                if self._state.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._state:
                    insort(self._keys, key)
                self._state[key] = value
