"""An application on a state of its own, fed with the blocks of a store, to see whether it gives what the store says."""

from __future__ import annotations

from parley.consensus.types import Block
from parley.ledger.application import Results, StateMachine
from parley.store.memory import MemoryStore


class Replay:
    """From the genesis on, one block after the other."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._state = MemoryStore()
        self._state.write(machine.genesis().writes)

    def apply(self, block: Block, bodies: list[bytes]) -> Results:
        results = self._machine.apply(block, list(zip(block.batches, bodies, strict=True)), self._state)
        self._state.write(results.writes)
        return results
