"""Numbering: at the end of a block, as many batches of committed stages get their offsets as it has room for (P23).

The oldest commit comes first, and its batches in the order in which it names them. What was decided with the commit is not
decided again: not even the publisher's revocation takes it back. Only a topic that was deleted since has no place for it.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.application.block import BlockContext
from parley.model.names import Position
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.budget import MAX_COMPARED
from parley.modules.publishing.receipts import Published
from parley.modules.publishing.rules import append, count_published
from parley.modules.publishing.rules import number as give_numbers
from parley.modules.staging import staged
from parley.modules.staging.tables import (
    COMMITTED,
    PENDING,
    PENDING_BATCHES,
    STAGED,
    STAGES,
    CommittedRecord,
    StagedRecord,
)
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.topics.rules import record_of

MAX_NUMBERED = 1_024  # batches a block
MAX_NUMBERED_BYTES = 4 * 1024 * 1024  # a block, or less if its own batches leave less of it


def number(block: BlockContext, *, numbered_bytes: int) -> None:
    """Number committed batches: as many as fit into so many bytes, and at least one."""
    if not PENDING_BATCHES.count(block.state):  # nearly always, and then it costs one read a block
        return
    turn = _Turn(block, min(block.room, numbered_bytes))
    for at, ordinal in COMMITTED.first(block.state, MAX_NUMBERED):
        if not turn.take(at, ordinal):
            break
    block.urgent = block.urgent or PENDING_BATCHES.count(block.state) > 0


class _Turn:
    """What one block numbers."""

    def __init__(self, block: BlockContext, room: int) -> None:
        self._block = block
        self._room = room
        self._taken = 0
        self._compared = MAX_COMPARED

    def take(self, at: Position, ordinal: int) -> bool:
        """Whether all batches of this entry have had their turn. `at` is the position of the commit's receipt."""
        state = self._block.state
        waiting = COMMITTED.get(state, at, ordinal)
        assert waiting is not None, "it was just found"
        topic = record_of(state, waiting.topic)
        title = self._block.principal(waiting.publisher).title
        gone = topic.deleted or at < topic.created
        done = 0
        for digest in waiting.digests:
            record = STAGED.get(state, digest)
            assert record is not None, "what is committed stays until its turn"
            if not self._has_room(record) or not (gone or self._give_numbers(digest, record)):
                break
            if gone:
                staged.drop(self._block, digest, record)
            else:
                first = append(self._block, topic, record.partition, record.count)
                staged.forget(state, digest, record)
                count_published(self._block, record.topic, record.count, record.size)
                place = (record.topic, record.partition, record.count, Published(first))
                self._block.late.append(BatchReceipt(digest, record.publisher, title, *place))
            self._room -= staged.charge(record.size, 0)
            self._taken += 1
            done += 1
        self._settle((at, ordinal), waiting, done)
        return done == len(waiting.digests)

    def _has_room(self, record: StagedRecord) -> bool:
        if not self._taken:
            return True
        return self._taken < MAX_NUMBERED and staged.charge(record.size, 0) <= self._room

    def _give_numbers(self, digest: bytes, record: StagedRecord) -> bool:
        """Whether matching fits in the block; the first batch of a block always does."""
        block = self._block
        index = block[SUBSCRIPTION_INDEX].of_topic(record.topic)
        if index is None:
            return True
        contents = list(staged.contents(block.state, digest, record))
        tags = [dict(pairs) for _, pairs in contents]
        compared = index.cost((1, its) for its in tags)
        if compared > self._compared:
            return False
        self._compared -= compared
        log = (record.topic, record.partition)
        give_numbers(block, log, index, tags, lambda at: contents[at][0])
        return True

    def _settle(self, key: tuple[Position, int], waiting: CommittedRecord, done: int) -> None:
        if not done:
            return
        state = self._block.state
        left = waiting.digests[done:]
        if left:
            COMMITTED.put(state, *key, record=replace(waiting, digests=left))
        else:
            COMMITTED.delete(state, *key)
        PENDING_BATCHES.add(state, by=-done)
        pending = PENDING.get(state, waiting.topic)
        assert pending is not None, "it counts those that wait"
        if pending.batches > done:
            PENDING.put(state, waiting.topic, record=replace(pending, batches=pending.batches - done))
        else:
            PENDING.delete(state, waiting.topic)
        writer = (waiting.topic, waiting.publisher, waiting.writer)
        last = STAGES.get(state, *writer)
        assert last is not None, "a writer stays as long as something of it waits"
        STAGES.put(state, *writer, record=replace(last, pending=last.pending - done))
