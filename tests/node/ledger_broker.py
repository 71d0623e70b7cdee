"""A broker that has executed a ledger made by a test, and shows it under the header that was certified last."""

from __future__ import annotations

import msgspec
from tests.application.world import Actor
from tests.client.ledger import Ledger

from parley.applications import DATA_SHARD
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.ledger.layout import StoredBlock
from parley.ledger.proofs import history_leaf_of
from parley.ledger.recent import RecentStates
from parley.model.credentials import Credential
from parley.node.access import Caller
from parley.node.archive import Archive
from parley.node.view import View
from parley.store.memory import MemoryStore

encode = msgspec.msgpack.encode


class LedgerBroker:
    """`ledger` goes on: `execute` runs what was ordered since, and `certify` shows it as well."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.store, self._executed = MemoryStore(), 0
        self.recent = RecentStates(self.store, 0)
        self._history = MountainRange()
        self.archive = Archive(self.store, DATA_SHARD)

    def execute(self) -> None:
        ledger, before = self.ledger, self._executed
        for (block, batches), outcome in zip(ledger.blocks[before:], ledger.outcomes[before:], strict=True):
            nodes = self._history.append(history_leaf_of(block.height, block.id, outcome.leaves))
            state = [(layout.APPLICATION + key, value) for key, value in outcome.writes]
            self.recent.before_write(block.height, state)
            self.store.write(
                [
                    *state,
                    (layout.committed(block.height), encode(StoredBlock.of(block))),
                    (layout.receipts(block.height), encode(tuple(outcome.leaves))),
                    *((layout.history_node(level, index), node) for level, index, node in nodes),
                    *((layout.batch(batch.digest), batch.body) for batch in batches),
                ]
            )
        self._executed = len(ledger.outcomes)

    def certify(self) -> View:
        """What was ordered so far is executed and certified; the view of it."""
        self.execute()
        height, anchor = self.ledger.height, self.ledger.anchor()
        return View(self.archive, self.recent.at(height), anchor)

    def caller(self, who: Actor) -> Caller:
        genesis = self.ledger.genesis
        credential = Credential(genesis.chain, who.organisation, who.name, who.key, 2**61, bytes(64))
        return Caller.of(credential, genesis)
