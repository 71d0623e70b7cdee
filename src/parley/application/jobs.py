"""What is decided in one block and carried out over the next ones, as much at a time as a block has room for.

A job is an entry of a table whose keys begin with an organisation: the one that it is done for. Organisations share what
a block has for jobs, so that the backlog of one does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parley.application.block import BlockContext
from parley.application.first_keys import FirstKeys
from parley.application.tables import AnyTable

# Does a part of a job: (block, key of its entry) -> whether it is done. It takes what it does from `block.work`, and does at
# least a little: what must stay together is done together, even if that is more than is left.
Job = Callable[..., bool]


def carry_out(block: BlockContext, jobs: Mapping[AnyTable, Job], first_keys: FirstKeys) -> None:
    """Go on with the jobs, each organisation's within its share of the block's housekeeping."""
    waiting = [table for table in jobs if first_keys.of(block.state, table) is not None]
    if not waiting:
        return
    # Whatever the rest of the block's housekeeping took: nobody's expiries may hold up the jobs of others.
    block.work = max(block.work, block.budget.housekeeping // 4, 1)
    names = [organisation.name for organisation in block.genesis.organisations]
    # Each block begins with another organisation: one piece of a job may be most of what there is.
    first = block.height % len(names)
    names = names[first:] + names[:first]
    busy = [name for name in names if any(table.first_stored(block.state, 1, name) for table in waiting)]
    total = block.work
    for turn, name in enumerate(busy):
        # The first one always has something to spend.
        block.work = share = max(total // (len(busy) - turn), 0 if turn else 1)
        for table in waiting:
            _work_off(block, table, name, jobs[table])
        total -= share - block.work
    block.work = total
    block.urgent = True


def _work_off(block: BlockContext, table: AnyTable, organisation: str, job: Job) -> None:
    for key in table.first_stored(block.state, max(block.work, 0), organisation):
        if block.work <= 0:
            return
        if table.has(block.state, *key) and job(block, *key):
            table.delete(block.state, *key)
            block.work -= 1
