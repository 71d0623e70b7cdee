"""Staging: batches that are ordered and stored but not numbered until their writer commits the stage, whole and once (P23).

A staged batch has no sequence and its refusals are not remembered. That it is ordered again, after a grant or a repair,
does no harm: it counts only when a commit that its publisher signs names it.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from parley.application.admission import OpenedBatch
from parley.application.block import BlockContext
from parley.application.expiry import MAX_SWEPT, look_again
from parley.application.module import BatchKind, Module
from parley.application.quotas import HELD
from parley.application.state import State
from parley.ledger.application import KeyValue
from parley.model.batches import STAGED as STAGED_KIND
from parley.model.batches import BatchHeader
from parley.model.names import Position
from parley.model.principals import ClientRecord, Principal
from parley.model.receipts import BatchReceipt, Done, Duplicate
from parley.model.refusals import Busy, Invalid, LimitExceeded
from parley.modules.publishing import budget
from parley.modules.publishing.rules import require_publishing
from parley.modules.staging import staged
from parley.modules.staging.budget import COMMIT_BUDGET, MAX_COUNTED_PER_BLOCK
from parley.modules.staging.numbering import MAX_NUMBERED_BYTES, number
from parley.modules.staging.operations import CommitStage, digests_hash
from parley.modules.staging.receipts import Staged
from parley.modules.staging.refusals import NotStaged, StageOver
from parley.modules.staging.tables import (
    COMMITTED,
    CONTENTS,
    MAX_WRITERS,
    OVER,
    PENDING,
    PENDING_BATCHES,
    STAGED,
    STAGES,
    STAGING,
    WEIGHTS,
    WRITERS,
    CommittedRecord,
    PendingRecord,
    StagedRecord,
    StageRecord,
)
from parley.modules.staging.texts import TEXTS
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.subscriptions.rules import CONSTRAINT_OPENED, CONSTRAINT_OPENING
from parley.modules.topics.access import Action
from parley.modules.topics.refusals import UnknownPartition
from parley.modules.topics.rules import require
from parley.modules.topics.tables import TopicRecord

MAX_WRITERS_PER_CLIENT = 16_384
WRITER_KEPT = 10_000_000  # heights after its last commit for which a writer is remembered
MAX_COUNTED = MAX_COUNTED_PER_BLOCK  # messages of one commit whose cost is looked at again
MAX_DROPPED = 256  # a block
CHUNK = 512  # batches of a commit in one entry


def stage(block: BlockContext, by: Principal, opened: OpenedBatch, at: Position) -> Staged | Duplicate:
    state, header, messages = block.state, opened.batch.header, opened.batch.messages
    require_open(state, header)
    known = STAGED.get(state, opened.digest)
    if known is not None:
        return Duplicate(known.at)
    topic = require_publishing(state, by, header)
    charge = staged.charge(opened.size, header.count)
    staged.require_room(block, by.require_client(), topic.name, charge)
    parts = staged.parts_of(messages)
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    compared = (
        0 if index is None else index.cost((count, dict(tags)) for part in parts for count, tags in part.tags)
    )
    budget.require_affordable(compared)
    record = StagedRecord(
        header.publisher,
        topic.name,
        header.partition,
        header.session,
        header.sequence,
        header.count,
        opened.size,
        header.not_after,
        at,
        len(parts),
        compared,
        WEIGHTS.count(state, topic.name),
    )
    staged.put(state, opened.digest, record, parts)
    return Staged(header.not_after)


def require_open(state: State, header: BatchHeader) -> None:
    """Raises `StageOver` if the writer has committed the stage of this batch, or a later one."""
    last = STAGES.get(state, header.topic, header.publisher, header.session)
    if last is not None and header.sequence <= last.stage:
        raise _over(header.sequence, last)


def commit(block: BlockContext, by: Principal, operation: CommitStage, at: Position) -> Done | Duplicate:
    """Commit a stage, all of it or nothing; `numbering` gives the batches their offsets when there is room."""
    client = by.require_client()
    state, key = block.state, (operation.topic, client.key, operation.writer)
    last, named = STAGES.get(state, *key), digests_hash(operation.digests)
    if last is not None and operation.stage <= last.stage:
        if (operation.stage, named) == (last.stage, last.digests):
            return Duplicate(last.at)
        raise _over(operation.stage, last)
    topic = require(state, by, Action.PUBLISH, operation.topic)
    block[COMMIT_BUDGET].commit(len(operation.digests))
    batches = _batches(block, client, topic, operation)
    room = _room(block, topic, batches)
    if last is None:
        _begin(block, client, key)
    pending = (0 if last is None else last.pending) + len(batches)
    STAGES.put(state, *key, record=StageRecord(operation.stage, at, named, pending))
    OVER.put(state, *key, record=b"")
    if batches:
        _enqueue(state, operation, at, batches, room)
    return Done()


def expire(block: BlockContext, key: tuple[bytes], _listed: int) -> int:
    """Drop a staged batch that was not committed in time. Returns what that takes of `MAX_SWEPT`."""
    record = STAGED.get(block.state, *key)
    assert record is not None, "what leaves before is no longer listed"
    return 1 + staged.drop(block, *key, record) * MAX_SWEPT // staged.DROPPED_BYTES


def expire_writer(block: BlockContext, key: tuple[str, bytes, bytes], _listed: int) -> int:
    """The height has come for which a writer is listed: it is forgotten, or listed again if it committed since."""
    record = STAGES.get(block.state, *key)
    assert record is not None, "a writer goes only here"
    until = record.at[0] + WRITER_KEPT
    if until < block.height and not record.pending:
        STAGES.delete(block.state, *key)
        staged.hold(block.state, WRITERS, key[1], -1)
    else:
        look_again(block.state, max(until, block.height) + 1, STAGES.key(*key))
    return 1


def clear(block: BlockContext) -> None:
    """Drop what writers have staged besides what they committed, as much as a block may; at the beginning of a block."""
    state, room = block.state, MAX_DROPPED
    for key in OVER.first_stored(state, MAX_DROPPED):
        last = STAGES.get(state, *key)
        limit = -1 if last is None else last.stage
        for _, _, _, its_stage, digest in STAGING.first_stored(state, room, *key):
            if its_stage <= limit:
                room -= _drop(block, digest)
                if room <= 0:
                    return
        room -= 1
        if room <= 0:
            return
        OVER.delete(state, *key)


def require_pending_room(block: BlockContext, topic: str, weight: int) -> None:
    """Raises `Busy` if a new constraint makes committed batches cost too much: they cannot be refused any more."""
    pending = PENDING.get(block.state, topic)
    if pending is not None and weight > pending.room:
        raise Busy("pending", batches=pending.batches, topic=topic)


def weigh(block: BlockContext, topic: str, weight: int) -> None:
    """Note that a new constraint makes each message of the topic cost up to `weight` comparisons more."""
    pending = PENDING.get(block.state, topic)
    if pending is not None:
        PENDING.put(block.state, topic, record=replace(pending, room=pending.room - weight))
    WEIGHTS.add(block.state, topic, by=weight)


def is_dropped(receipt: BatchReceipt, _place: int | None, store: KeyValue) -> bool:
    """Whether a batch that was staged, and not numbered, is staged no more."""
    return store.get(STAGED.place(receipt.digest)) is None


def _drop(block: BlockContext, digest: bytes) -> int:
    """Drop a staged batch. Returns what that takes of `MAX_DROPPED`."""
    record = STAGED.get(block.state, digest)
    if record is None:  # it has expired in this block
        return 1
    return 1 + staged.drop(block, digest, record) * MAX_DROPPED // staged.DROPPED_BYTES


def _over(stage: int, last: StageRecord) -> StageOver:
    return StageOver(stage=stage, last=last.stage, height=last.at[0])


def _batches(
    block: BlockContext, client: ClientRecord, topic: TopicRecord, operation: CommitStage
) -> dict[bytes, StagedRecord]:
    """The staged batches that the commit names, in its order. Raises `Refused` if one cannot be committed."""
    batches: dict[bytes, StagedRecord] = {}
    mine = (client.key, operation.topic, operation.writer, operation.stage)
    for digest in operation.digests:
        if digest in batches:
            raise Invalid("named_twice", digest=digest)
        record = STAGED.get(block.state, digest)
        if record is None or record.until < block.height:
            raise NotStaged("gone", digest=digest)
        if (record.publisher, record.topic, record.writer, record.stage) != mine:
            raise NotStaged("other", digest=digest, stage=operation.stage, topic=operation.topic)
        if record.partition >= topic.partitions:  # the topic may have been created again, with fewer
            raise UnknownPartition(topic=topic.name, last=topic.partitions - 1)
        batches[digest] = record
    return batches


def _room(block: BlockContext, topic: TopicRecord, batches: dict[bytes, StagedRecord]) -> int:
    """What each message may cost more until all are numbered. Raises `Refused` if one costs too much already.

    Constraints that were opened since a batch was staged can have added no more than their weight to each of the
    messages; only where that is too much they are looked at again.
    """
    limit, index = budget.MAX_COMPARED, block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    weight, counted, room = WEIGHTS.count(block.state, topic.name), 0, limit
    for digest, record in batches.items():
        compared = record.compared + record.count * (weight - record.weight)
        if index is None:
            compared = 0
        elif compared > limit:
            counted += record.count
            if counted > MAX_COUNTED:
                raise LimitExceeded("staged_again")
            block[COMMIT_BUDGET].count(record.count)
            compared = index.cost((1, dict(tags)) for _, tags in staged.contents(block.state, digest, record))
            budget.require_affordable(compared)
        room = min(room, (limit - compared) // record.count)
    return room


def _begin(block: BlockContext, client: ClientRecord, key: tuple[str, bytes, bytes]) -> None:
    """Remember a writer that commits for the first time. Raises `LimitExceeded`."""
    if HELD.count(block.state, WRITERS.what, client.key) >= MAX_WRITERS_PER_CLIENT:
        raise LimitExceeded(
            "writers",
            client=f"{client.organisation}/{client.name}",
            limit=MAX_WRITERS_PER_CLIENT,
            kept=WRITER_KEPT,
        )
    WRITERS.require(block, client.organisation, MAX_WRITERS)
    staged.hold(block.state, WRITERS, client.key, 1)
    look_again(block.state, block.height + WRITER_KEPT + 1, STAGES.key(*key))


def _enqueue(
    state: State, operation: CommitStage, at: Position, batches: dict[bytes, StagedRecord], room: int
) -> None:
    for digest, record in batches.items():
        staged.unlist(state, digest, record)
    for ordinal, first in enumerate(range(0, len(batches), CHUNK)):
        digests = operation.digests[first : first + CHUNK]
        publisher = batches[digests[0]].publisher
        waiting = CommittedRecord(publisher, operation.topic, operation.writer, digests)
        COMMITTED.put(state, at, ordinal, record=waiting)
    PENDING_BATCHES.add(state, by=len(batches))
    before = PENDING.get(state, operation.topic) or PendingRecord(0, room)
    after = PendingRecord(before.batches + len(batches), min(before.room, room))
    PENDING.put(state, operation.topic, record=after)


def module(numbered_bytes: int = MAX_NUMBERED_BYTES) -> Module:
    """`numbered_bytes`: of batches that one block may number; all brokers must have the same, simulations have less."""
    return Module(
        name="staging",
        operations={CommitStage: commit},
        batches=(BatchKind(STAGED_KIND, "stage", stage, sequence=False, late=True),),
        tables=(
            STAGES,
            STAGED,
            CONTENTS,
            STAGING,
            COMMITTED,
            OVER,
            PENDING,
            PENDING_BATCHES,
            WEIGHTS,
        ),
        outcomes=(Staged,),
        refusals=(StageOver, NotStaged),
        texts=TEXTS,
        hooks={CONSTRAINT_OPENING: require_pending_room, CONSTRAINT_OPENED: weigh},
        expire={STAGED: expire, STAGES: expire_writer},
        begin_block=clear,
        end_block=partial(number, numbered_bytes=numbered_bytes),
        over={Staged: is_dropped},
    )


MODULE = module()
