"""Numbering: at the end of a block, as many batches of committed stages get their offsets as it has room for (P23).

`turns` says whose batch comes next. What was decided with the commit is not decided again: not even the publisher's
revocation takes it back. Only a topic that was deleted since has no place for it.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.application.block import BlockContext
from parley.application.work import Budget
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.budget import MESSAGES, work_of
from parley.modules.publishing.receipts import Published
from parley.modules.publishing.rules import append, count_published
from parley.modules.publishing.rules import number as give_numbers
from parley.modules.staging import pending, staged
from parley.modules.staging.tables import (
    OVER,
    PENDING_BATCHES,
    STAGED,
    STAGES,
    OverRecord,
    StagedRecord,
)
from parley.modules.staging.turns import Client, Turns
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.topics.rules import record_of

MAX_NUMBERED = 512  # batches a block
MAX_NUMBERED_BYTES = 4 * 1024 * 1024  # a block, or less if its own batches leave less of it
RESERVED = 4  # the part of a block's work that is left to numbering while something waits: one of so many
_BYTES = MAX_NUMBERED_BYTES // Budget().batches  # that are as much of a block as one unit of work

Writer = tuple[str, str, bytes, bytes]  # organisation, topic, publisher, writer


def reserve(block: BlockContext) -> None:
    """Set work aside for the end of the block; at its beginning. Jobs are left half of the block's housekeeping."""
    if PENDING_BATCHES.count(block.state):
        block.work -= min(_reserved(block), max(block.work, 0) // 2)


def number(block: BlockContext, *, numbered_bytes: int) -> None:
    """Number committed batches: as many as fit into so many bytes and the block's work, and at least one."""
    if not PENDING_BATCHES.count(block.state):  # nearly always, and then it costs one read a block
        return
    turn, turns = _Turn(block, min(block.room, numbered_bytes)), Turns(block)
    # The first that does not fit is the first in the next block, so it fits there.
    while (client := turns.next()) is not None and (cost := turn.take(client)):
        turns.charge(client, cost)
    turns.keep()
    turn.settle()
    block.urgent = block.urgent or PENDING_BATCHES.count(block.state) > 0


def cost_of(record: StagedRecord) -> int:
    """What part of a block numbering a batch takes, as far as that is known without looking at it, in work."""
    return max(staged.work_of(record) + work_of(record.compared), record.size // _BYTES)


def _reserved(block: BlockContext) -> int:
    return block.budget.batches // RESERVED


class _Turn:
    """What one block numbers."""

    def __init__(self, block: BlockContext, room: int) -> None:
        self._block = block
        self._room = room
        self._work = max(block.shares.left, 0) + _reserved(block)
        self._taken = 0
        # By the writer and the height of the commit.
        self._numbered: dict[tuple[Writer, int], int] = {}

    def take(self, client: Client) -> int:
        """What the next batch of the client costs, now that it is numbered; nothing: it does not fit."""
        block, digest, entry = self._block, client.digest, client.entry
        record = STAGED.get(block.state, digest)
        assert record is not None, "what is committed stays until its turn"
        if not self._has_room(record):
            return 0
        topic = record_of(block.state, entry.topic)
        if topic.deleted or entry.at < topic.created:
            staged.drop(block, digest, record)
        elif self._give_numbers(digest, record):
            first = append(block, topic, record.partition, record.count)
            staged.forget(block.state, digest, record)
            count_published(block, record.topic, record.count, record.size)
            title = block.principal(record.publisher).title
            place = (record.topic, record.partition, record.count, Published(first))
            block.late.append(BatchReceipt(digest, record.publisher, title, *place))
        else:
            return 0
        self._count(client, record)
        return cost_of(record)

    def _has_room(self, record: StagedRecord) -> bool:
        """Whether a batch fits, as far as that is known without looking at it; the first of a block always does."""
        if not self._taken:
            return True
        fits = self._taken < MAX_NUMBERED and staged.charge(record.size, 0) <= self._room
        return fits and staged.work_of(record) <= self._work

    def _give_numbers(self, digest: bytes, record: StagedRecord) -> bool:
        """Whether matching fits in the block; that of its first batch always does."""
        block = self._block
        index = block[SUBSCRIPTION_INDEX].of_topic(record.topic)
        if index is None:
            return True
        contents = list(staged.contents(block.state, digest, record))
        tags = [dict(pairs) for _, pairs in contents]
        compared = index.cost((1, its) for its in tags)
        work = len(tags) // MESSAGES + work_of(compared)
        if self._taken and staged.work_of(record) + work > self._work:
            return False
        self._work -= work
        block.executed.add("comparisons", compared)
        give_numbers(block, (record.topic, record.partition), index, tags, lambda at: contents[at][0])
        return True

    def _count(self, client: Client, record: StagedRecord) -> None:
        self._room -= staged.charge(record.size, 0)
        self._work -= staged.work_of(record)
        self._taken += 1
        entry = client.entry
        which = ((client.organisation, entry.topic, client.publisher, entry.writer), entry.at[0])
        self._numbered[which] = self._numbered.get(which, 0) + 1

    def settle(self) -> None:
        """Count down what waits."""
        block = self._block
        PENDING_BATCHES.add(block.state, by=-self._taken)
        for (writer, height), done in self._numbered.items():
            pending.leave(block, writer[1], height, done)
            last = STAGES.get(block.state, *writer[1:])
            assert last is not None, "a writer stays as long as something of it waits"
            last = replace(last, pending=last.pending - done)
            STAGES.put(block.state, *writer[1:], record=last)
            if not last.pending:
                OVER.put(block.state, *writer, record=OverRecord(last.stage))
