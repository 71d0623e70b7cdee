"""The application as a broker's replica runs it: how long the execution of a block holds the loop is measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import monotonic_ns

from parley.consensus.types import Block
from parley.ledger.application import AdmittedBatch, Results, StateMachine
from parley.ledger.recent import RecentStates
from parley.node.holding import EXECUTION, Holding
from parley.node.telemetry.tally import Tally
from parley.store.interface import KeyValue


class MeasuredMachine:
    """Runs another state machine, measures how long each block takes, and keeps in memory what it used lately."""

    def __init__(self, machine: StateMachine, holding: Holding, recent: RecentStates, tally: Tally) -> None:
        self._machine = machine
        self._holding = holding
        self._recent = recent
        self._tally = tally

    def genesis(self) -> Results:
        return self._machine.genesis()

    def admit(self, body: bytes) -> AdmittedBatch:
        return self._machine.admit(body)

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        what = f"block {block.height}, {len(batches)} batches"
        watched = self._recent.watched(block.height, state)
        began = monotonic_ns()
        results = self._holding.run(EXECUTION, what, lambda: self._machine.apply(block, batches, watched))
        self._tally.longest_execution_ns = max(self._tally.longest_execution_ns, monotonic_ns() - began)
        self._recent.executed(results.writes)
        return results

    def repaired(self, keys: Collection[bytes]) -> None:
        self._recent.forget(keys)
        self._machine.repaired(keys)
