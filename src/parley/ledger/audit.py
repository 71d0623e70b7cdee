"""The offline verifier of a whole store: from the genesis file over every block, batch, receipt and state entry.

It believes nothing in the store. With an application it also executes every block again, so that a store is right only
if its results are what the ordered batches give; without one it checks that everything fits together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.ledger.application import Mounted
from parley.ledger.audit_blocks import Audit
from parley.ledger.audit_entries import Fault
from parley.model.genesis import Genesis
from parley.store.interface import KeyValue


@dataclass(frozen=True, slots=True)
class Verdict:
    """`heights` blocks were checked; `first_fault` names the first entry that is wrong and what is wrong with it.

    `replayed`: every block was executed again. It cannot be once bodies have been erased.
    """

    heights: int
    publications: int
    first_fault: str | None
    replayed: bool = False

    @property
    def valid(self) -> bool:
        return self.first_fault is None


def verify_store(
    store: KeyValue,
    genesis: Genesis,
    mounted: Mounted,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    shard: int,
    replay: bool = True,
) -> Verdict:
    """Check everything that a broker stores of a shard; `progress` is told heights done and heights in all."""
    audit = Audit(store, genesis, mounted, shard=shard, replay=replay)
    fault: str | None = None
    try:
        for height in audit.run():
            progress(height, audit.highest)
    except Fault as found:
        fault = str(found)
    return Verdict(audit.height, audit.publications, fault, audit.replayed)
