"""An observer that executes the agreed chain itself: what replicas report and sign must be what comes out."""

from __future__ import annotations

from parley.consensus.types import Header
from parley.ledger.application import StateMachine
from parley.replica.ports import Receipt
from parley.sim.entries import Entries
from parley.sim.observations import Applied, Observation, Submitted


class EqualResults:
    """Every correct replica gets the same receipts from a block, and every committed header names the true state."""

    name = "equal results"

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._bodies: dict[bytes, bytes] = {}
        self._state = Entries()
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
