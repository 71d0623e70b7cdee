"""Batches of keys that are not registered: refused for good, without giving strangers a place to fill (decision 9)."""

from __future__ import annotations

from parley.application.block import BlockContext
from parley.application.bounds import fixed
from parley.application.expiry import look_again
from parley.application.state import State
from parley.application.tables import HASH, Record, Table
from parley.model.names import Position

MAX_STRANGERS = 4_096  # refused batches that are remembered until they expire


class StrangerRecord(Record, frozen=True):
    """The position of a refusal."""

    original: Position


STRANGERS: Table[StrangerRecord, bytes] = Table(
    "stranger",
    StrangerRecord,
    HASH,
    about="Where a batch of an unknown key was refused.",
    expires=True,
    # Unknown keys are of no organisation, so that one can take all places. The others lose little: their batches get
    # `Busy` instead of `UnknownClient`, and nothing was decided for them either way. Known keys are not concerned.
    bound=fixed(
        MAX_STRANGERS,
        ", which all unknown keys share: one can take them all, and then the refusals of others are not remembered, and not "
        "final",
    ),
)
REMEMBERED: Table[int] = Table(
    "strangers", int, about="How many refused batches of unknown keys are remembered.", bound=fixed(1)
)


def original(state: State, digest: bytes) -> Position | None:
    """Where the batch was refused while its key was unknown, if it was."""
    if not REMEMBERED.count(state):  # nearly always, and then it costs one read a block
        return None
    record = STRANGERS.get(state, digest)
    return None if record is None else record.original


def remember(state: State, digest: bytes, not_after: int, at: Position) -> bool:
    """Remember a refused batch; returns whether there was room.

    If not, the refusal is not final: once the key is registered, the batch may be ordered again.
    """
    if REMEMBERED.count(state) >= MAX_STRANGERS:
        return False
    STRANGERS.put(state, digest, record=StrangerRecord(at))
    look_again(state, not_after + 1, STRANGERS.key(digest))
    REMEMBERED.add(state, by=1)
    return True


def expire(block: BlockContext, key: tuple[bytes], _listed: int) -> int:
    STRANGERS.delete(block.state, *key)
    REMEMBERED.add(block.state, by=-1)
    return 2
