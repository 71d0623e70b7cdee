"""What waits on a topic to be numbered, and how much matching may cost more until then: it cannot be refused any more (P23).

Batches join one of two halves and leave it again. What limits constraints ends with the older half, then the newer one is
the older: a topic on which something always waits does not keep for ever what limited it once.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.application.block import BlockContext
from parley.model.refusals import Busy
from parley.modules.staging.tables import PENDING, PendingHalf, PendingRecord, Room
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.subscriptions.matching import Burden

_NONE = PendingHalf(0, Room(0, 0, 0))
_NOTHING = Burden(0, 0)


def join(block: BlockContext, topic: str, height: int, batches: int, room: Room) -> None:
    """Count batches that were committed at `height`, and keep their room."""
    record = PENDING.get(block.state, topic) or PendingRecord(0, _NONE, _NONE)
    half = _half(record, height)
    met = half.room.meet(room) if half.batches else room
    _put(block, topic, height, record, PendingHalf(half.batches + batches, met))


def leave(block: BlockContext, topic: str, height: int, batches: int) -> None:
    """Batches that were committed at `height` wait no longer."""
    record = PENDING.get(block.state, topic)
    assert record is not None, "it counts those that wait"
    half = _half(record, height)
    _put(block, topic, height, record, replace(half, batches=half.batches - batches))


def require_room(block: BlockContext, topic: str, burden: Burden) -> None:
    """Raises `Busy` if a new constraint makes batches that wait cost too much."""
    record = PENDING.get(block.state, topic)
    if record is None:
        return
    index = block[SUBSCRIPTION_INDEX].of_topic(topic)
    for half in (record.older, record.newer):
        added = _NOTHING if index is None else index.opened_since(half.room.since)
        message, batch = added.message + burden.message, added.batch + burden.batch
        if half.batches and (message > half.room.message or batch > half.room.batch):
            raise Busy("pending", batches=record.older.batches + record.newer.batches, topic=topic)


def _half(record: PendingRecord, height: int) -> PendingHalf:
    return record.older if height < record.turn else record.newer


def _put(block: BlockContext, topic: str, height: int, record: PendingRecord, half: PendingHalf) -> None:
    record = replace(record, older=half) if height < record.turn else replace(record, newer=half)
    if not record.older.batches:
        record = PendingRecord(block.height + 1, record.newer, _NONE)
    if record.older.batches:
        PENDING.put(block.state, topic, record=record)
    else:
        PENDING.delete(block.state, topic)
