"""What the state remembers only for a time: each entry is listed under the height at which it is looked at again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parley.application.block import BlockContext
from parley.application.bounds import PER_EXPIRING_ENTRY, fixed
from parley.application.first_keys import FirstKeys
from parley.application.state import State
from parley.application.tables import LARGE, REST, AnyTable, Table

# Of work, a block. It is more than housekeeping has: batches pay for the rest, so that blocks list less while a backlog is
# worked off.
MAX_SWEPT = 192

EXPIRY: Table[bytes, int, bytes] = Table(
    "expiry",
    bytes,
    LARGE,
    REST,
    about="Lists an entry under the height whose block looks at it again.",
    bound=PER_EXPIRING_ENTRY,
)
BEHIND: Table[int] = Table(
    "behind",
    int,
    about="The height whose expiries are still being worked off; no entry: nothing is left over.",
    bound=fixed(1),
)

# (block, tuple of the entry's key, height for which it was listed) -> what it takes of `MAX_SWEPT`
Expire = Callable[[BlockContext, tuple[Any, ...], int], int]


def look_again(state: State, height: int, key: bytes) -> None:
    """List the entry of this key, so that the block at `height` looks at it again."""
    EXPIRY.put(state, height, key, record=b"")


def cancel(state: State, height: int, key: bytes) -> None:
    EXPIRY.delete(state, height, key)


def sweep(block: BlockContext, tables: Mapping[str, tuple[AnyTable, Expire]], first_keys: FirstKeys) -> None:
    """Work off the lists up to this height, as far as one block may. It is the first thing that a block does.

    What waits a little longer has expired all the same: nothing that could still apply depends on it.
    """
    state, height = block.state, block.height
    behind, room = BEHIND.count(state), MAX_SWEPT
    reached = behind or height
    first = first_keys.of(state, EXPIRY)
    lowest = height + 1 if first is None else EXPIRY.unpack(first)[0]  # nothing is listed for lower heights
    while reached <= height and room > 0:
        entries = EXPIRY.first_stored(state, room, reached) if reached >= lowest else []
        for listed, key in entries:
            EXPIRY.delete(state, listed, key)
            table, expire = tables[key.partition(b"/")[0].decode()]
            room -= expire(block, table.unpack(key), reached)
            if room <= 0:
                break
        room -= 1
        if room > 0:
            reached += 1
    left_over = reached if reached <= height else 0
    if left_over != behind:
        BEHIND.add(state, by=left_over - behind)
    block.account_for(MAX_SWEPT - room)
