"""Numbering: at the end of a block, as many batches of committed stages get their offsets as it has room for (P23).

`turns` says whose batch comes next. What was decided with the commit is not decided again: not even the publisher's
revocation takes it back. Only a topic that was deleted since has no place for it.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.application import exceeding
from parley.application.block import BlockContext
from parley.application.exceeding import NUMBERING
from parley.application.work import Budget
from parley.model.names import Position
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
_PASSED_OVER = 4  # work for a batch that does not fit, besides reading it
_BYTES = MAX_NUMBERED_BYTES // Budget().batches  # that are as much of a block as one unit of work

_Writer = tuple[str, str, Position, bytes, bytes]  # with the organisation before


def reserve(block: BlockContext) -> None:
    """Set work aside for the end of the block; at its beginning."""
    if PENDING_BATCHES.count(block.state):
        block.account_for(_reserved(block))


def number(block: BlockContext, *, numbered_bytes: int) -> None:
    """Number committed batches: as many as fit into so many bytes and the block's work."""
    if not PENDING_BATCHES.count(block.state):  # nearly always, and then it costs one read a block
        return
    turn, turns = _Turn(block, min(block.room, numbered_bytes)), Turns(block)
    while (client := turns.next()) is not None and turn.goes_on(client):
        cost, numbered = turn.take(client)
        if numbered:
            turns.charge(client, cost)
        else:  # others may have something that takes less
            turns.pass_over(client, cost)
    turns.keep()
    turn.settle()
    block.urgent = block.urgent or PENDING_BATCHES.count(block.state) > 0


def cost_of(record: StagedRecord, work: int) -> int:
    """What part of a block numbering a batch took, in work: of its room for bytes, if that is more."""
    return max(work, record.size // _BYTES)


def _reserved(block: BlockContext) -> int:
    return block.budget.batches // RESERVED


def _reading(record: StagedRecord) -> int:
    """What it takes to know what matching takes."""
    return record.count // MESSAGES


class _Turn:
    """What one block numbers."""

    def __init__(self, block: BlockContext, room: int) -> None:
        self._block = block
        self._room = room
        self._work = max(block.shares.left, 0) + _reserved(block)
        # Not in a block in which another batch took much more than its share.
        others = 0 if block.shares.exceeding is None else block.shares.exceeding[1]
        self._may_exceed = others <= 2 * _reserved(block) and exceeding.numbering_may(block)
        self._taken = 0
        # By the writer and the height of the commit.
        self._numbered: dict[tuple[_Writer, int], int] = {}

    def goes_on(self, client: Client) -> bool:
        """Whether the block has work left, and room for the bytes of the client's next batch; its first needs none."""
        if self._work <= 0 or self._taken == MAX_NUMBERED:
            return False
        return not self._taken or staged.charge(self._record(client).size, 0) <= self._room

    def take(self, client: Client) -> tuple[int, bool]:
        """What the next batch of the client has cost, and whether it is numbered: or it takes more than there is."""
        before, record = self._work, self._record(client)
        if numbered := self._has_work(record) and self._number(client, record):
            self._count(client, record)
        else:
            self._work -= _PASSED_OVER
        taken = before - self._work
        return (cost_of(record, taken) if numbered else taken), numbered

    def _record(self, client: Client) -> StagedRecord:
        record = STAGED.get(self._block.state, client.digest)
        assert record is not None, "what is committed stays until its turn"
        return record

    def _number(self, client: Client, record: StagedRecord) -> bool:
        """Number the batch, or drop it with its topic; returns whether it fits."""
        block, digest = self._block, client.digest
        topic = record_of(block.state, record.topic)
        if topic.deleted or topic.created != record.topic_id:
            staged.drop(block, digest, record)
            return True
        if not self._give_numbers(digest, record):
            return False
        first = append(block, topic, record.partition, record.count)
        staged.forget(block.state, digest, record)
        count_published(block, record.topic, record.count, record.size)
        title = block.principal(record.publisher).title
        place = (record.topic, record.topic_id, record.partition, record.count, Published(first))
        block.late.append(BatchReceipt(digest, record.publisher, title, *place))
        return True

    def _has_work(self, record: StagedRecord) -> bool:
        """Whether a batch fits, as far as that is known without looking at it: by what matching took when it was last read."""
        work = staged.work_of(record)
        if self._block[SUBSCRIPTION_INDEX].of_topic(record.topic) is not None:
            work += _reading(record) + work_of(record.compared)
        return work <= self._work or self._can_exceed(work)

    def _give_numbers(self, digest: bytes, record: StagedRecord) -> bool:
        """Number what the messages match. Returns False, with nothing numbered, if that takes more than there is."""
        block = self._block
        index = block[SUBSCRIPTION_INDEX].of_topic(record.topic)
        if index is None:
            return True
        before, reading = self._work, _reading(record)
        self._work -= reading  # whether it fits or not
        compared = index.cost(staged.runs(block.state, digest, record))
        work = reading + work_of(compared)
        total = work + staged.work_of(record)
        if total > before and not self._exceed(total):
            # Remember what it takes now, or every block would read it again in vain.
            STAGED.put(block.state, digest, record=replace(record, compared=compared))
            return False
        self._work = before - work
        block.executed.add("comparisons", compared)
        contents = list(staged.contents(block.state, digest, record))
        tags = [dict(pairs) for _, pairs in contents]
        give_numbers(block, (record.topic, record.partition), index, tags, lambda at: contents[at][0])
        return True

    def _can_exceed(self, work: int) -> bool:
        """Whether a batch may take more than there is: only if no block sets so much aside."""
        return self._may_exceed and work > _reserved(self._block)

    def _exceed(self, work: int) -> bool:
        """Let a batch take more than there is, if it may: once in as many blocks as set so much aside."""
        if not self._can_exceed(work):
            return False
        self._may_exceed = False
        exceeding.note(self._block, NUMBERING, work, _reserved(self._block))
        return True

    def _count(self, client: Client, record: StagedRecord) -> None:
        self._room -= staged.charge(record.size, 0)
        self._work -= staged.work_of(record)
        self._taken += 1
        writer = (client.organisation, *staged.writer_of(record))
        which = (writer, client.entry.at[0])
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
