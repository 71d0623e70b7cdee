"""Numbering: at the end of a block, as many batches of committed stages get their offsets as it has room for (P23).

The oldest commit comes first, and its batches in the order in which it names them. What was decided with the commit is not
decided again: not even the publisher's revocation takes it back. Only a topic that was deleted since has no place for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from parley.model.names import Position
from parley.model.receipts import BatchReceipt, Published
from parley.model.records import StageRecord, TopicRecord, stage_key, topic_key
from parley.pubsub import staged
from parley.pubsub.publications import append, give_places
from parley.pubsub.records import (
    COMMITTED,
    PENDING,
    CommittedRecord,
    PendingRecord,
    StagedRecord,
    pending_key,
    staged_key,
)
from parley.pubsub.step import Step

__all__ = ["MAX_NUMBERED_BYTES", "Numbered", "number"]

MAX_NUMBERED = 1_024  # batches a block
MAX_NUMBERED_BYTES = 4 * 1024 * 1024  # a block, or less if its own batches leave less of it


@dataclass(frozen=True, slots=True)
class Numbered:
    receipt: BatchReceipt
    size: int


def number(step: Step, room: int) -> list[Numbered]:
    """As many as fit into so many bytes, and at least one."""
    if not step.state.count(PENDING):  # nearly always, and then it costs one read a block
        return []
    step.budget.reserve()
    turn = _Turn(step, room)
    for key in step.state.keys(COMMITTED, MAX_NUMBERED):
        if not turn.take(key):
            break
    return turn.numbered


class _Turn:
    """What one block numbers."""

    def __init__(self, step: Step, room: int) -> None:
        self._step = step
        self._room = room
        self._taken = 0
        self.numbered: list[Numbered] = []

    def take(self, key: bytes) -> bool:
        """Whether all batches of this entry have had their turn."""
        state = self._step.state
        waiting = state.get(CommittedRecord, key)
        assert waiting is not None, "it was just found"
        topic = state.get(TopicRecord, topic_key(waiting.topic))
        assert topic is not None, "a topic's record stays"
        title = self._step.registry.standing(state, waiting.publisher).title
        gone = topic.deleted or _position(key) < topic.created
        done = 0
        for name in waiting.digests:
            record = state.get(StagedRecord, staged_key(name))
            assert record is not None, "what is committed stays until its turn"
            if not self._has_room(record) or not (gone or self._give_places(name, record)):
                break
            if gone:
                staged.drop(self._step, name, record)
            else:
                first = append(self._step, topic, record.partition, record.count)
                staged.forget(state, name, record)
                place = (record.topic, record.partition, record.count, Published(first))
                self.numbered.append(
                    Numbered(BatchReceipt(name, record.publisher, title, *place), record.size)
                )
            self._room -= staged.charge(record.size, 0)
            self._taken += 1
            done += 1
        self._settle(key, waiting, done)
        return done == len(waiting.digests)

    def _has_room(self, record: StagedRecord) -> bool:
        if not self._taken:
            return True
        return self._taken < MAX_NUMBERED and staged.charge(record.size, 0) <= self._room

    def _give_places(self, name: bytes, record: StagedRecord) -> bool:
        """Whether matching fits in the block; the first batch of a block always does."""
        step = self._step
        index = step.interests.index(record.topic)
        if index is None:
            return True
        contents = list(staged.contents(step.state, name, record))
        tags = [dict(pairs) for _, pairs in contents]
        if not step.budget.take(sum(map(index.cost, tags))):
            return False
        give_places(step, (record.topic, record.partition), index, tags, lambda at: contents[at][0])
        return True

    def _settle(self, key: bytes, waiting: CommittedRecord, done: int) -> None:
        if not done:
            return
        state = self._step.state
        left = waiting.digests[done:]
        if left:
            state.put(key, replace(waiting, digests=left))
        else:
            state.delete(key)
        state.add(PENDING, -done)
        pending = state.get(PendingRecord, pending_key(waiting.topic))
        assert pending is not None, "it counts those that wait"
        if pending.batches > done:
            state.put(pending_key(waiting.topic), replace(pending, batches=pending.batches - done))
        else:
            state.delete(pending_key(waiting.topic))
        writer = stage_key(waiting.publisher, waiting.topic, waiting.writer)
        last = state.get(StageRecord, writer)
        assert last is not None, "a writer stays as long as something of it waits"
        state.put(writer, replace(last, pending=last.pending - done))


def _position(key: bytes) -> Position:
    """Of the commit's receipt."""
    at = len(COMMITTED)
    return int.from_bytes(key[at : at + 8], "big"), int.from_bytes(key[at + 8 : at + 12], "big")
