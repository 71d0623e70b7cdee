"""Staging: batches that are ordered and stored but not numbered until their writer commits the stage, whole and once (P23).

A staged batch has no sequence and its refusals are not remembered. That it is ordered again, after a grant or a repair,
does no harm: it counts only when a commit that its publisher signs names it.
"""

from __future__ import annotations

from functools import partial

from parley.application.admission import OpenedBatch
from parley.application.block import BlockContext
from parley.application.expiry import look_again
from parley.application.module import BatchKind, Module
from parley.application.quotas import HELD
from parley.application.state import State
from parley.application.tables import Reader
from parley.model.batches import STAGED as STAGED_KIND
from parley.model.batches import BatchHeader
from parley.model.names import Position
from parley.model.principals import ClientRecord, Principal
from parley.model.receipts import BatchReceipt, Done, Duplicate
from parley.model.refusals import LimitExceeded, Refused
from parley.modules.publishing import budget
from parley.modules.publishing.rules import require_publishing
from parley.modules.staging import checking, pending, staged, turns
from parley.modules.staging.numbering import MAX_NUMBERED_BYTES, number, reserve
from parley.modules.staging.operations import CommitStage, digests_hash, is_repetition
from parley.modules.staging.receipts import Staged
from parley.modules.staging.refusals import NotStaged, StageOver
from parley.modules.staging.tables import (
    COMMITTED,
    COMMITTING,
    CONTENTS,
    MAX_WRITERS,
    OVER,
    PENDING,
    PENDING_BATCHES,
    QUEUES,
    STAGED,
    STAGES,
    STAGING,
    TURNS,
    WAITING,
    WRITERS,
    CommittedRecord,
    OverRecord,
    Room,
    StagedRecord,
    StageRecord,
    Writer,
)
from parley.modules.staging.texts import TEXTS
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.subscriptions.rules import CONSTRAINT_OPENING
from parley.modules.topics.access import Action
from parley.modules.topics.rules import require
from parley.store.interface import KeyValue

MAX_WRITERS_PER_CLIENT = 16_384
WRITER_KEPT = 10_000_000  # heights after its last commit for which a writer is remembered
CHUNK = 512  # batches of a commit in one entry
_DECIDING = 8  # entries that any commit writes


def stage(block: BlockContext, by: Principal, opened: OpenedBatch, at: Position) -> Staged | Duplicate:
    state, header, messages = block.state, opened.batch.header, opened.batch.messages
    require_open(state, header)
    known = STAGED.get(state, opened.digest)
    if known is not None:
        return Duplicate(known.at)
    topic = require_publishing(block, by, header)
    staged.require_room(block, by.require_client(), topic, staged.charge(opened.size, header.count))
    block.spend(header.count // budget.MESSAGES, done=True)
    parts = staged.parts_of(messages)
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    runs = ((count, dict(tags)) for part in parts for count, tags in part.tags)
    compared = 0 if index is None else index.cost(runs)
    budget.require_affordable(compared)
    record = StagedRecord(
        header.publisher,
        topic.name,
        topic.created,
        header.partition,
        header.session,
        header.sequence,
        header.count,
        opened.size,
        header.not_after,
        at,
        len(parts),
        compared,
    )
    block.spend(staged.work_of(record))
    staged.put(state, opened.digest, record, parts)
    return Staged(header.not_after)


def require_open(state: State, header: BatchHeader) -> None:
    """Raises `StageOver` if the writer has committed the stage of this batch, or a later one."""
    last = STAGES.get(state, header.topic, header.topic_id, header.publisher, header.session)
    if last is not None and header.sequence <= last.stage:
        raise _over(header.sequence, last)


def commit(block: BlockContext, by: Principal, operation: CommitStage, at: Position) -> Done | Duplicate:
    """Commit a stage, all of it or nothing; `numbering` gives the batches their offsets when there is room.

    What is too much for one block is looked at in several: until then it is `Busy`, and goes on when it is ordered again.
    """
    try:
        decided = _commit(block, by, operation, at)
    except Refused as refused:
        if refused.settles:
            checking.end(block, by.key, operation)
        raise
    checking.end(block, by.key, operation)
    return decided


def _commit(block: BlockContext, by: Principal, operation: CommitStage, at: Position) -> Done | Duplicate:
    client = by.require_client()
    state, key = block.state, (operation.topic, operation.topic_id, client.key, operation.writer)
    last, named = STAGES.get(state, *key), digests_hash(operation.digests)
    if last is not None and operation.stage <= last.stage:
        if operation.stage < last.stage:
            raise _over(operation.stage, last)
        if is_repetition((operation.source, named), (last.source, last.digests)):
            return Duplicate(last.at)
        raise StageOver("repeated", stage=operation.stage, last=last.stage, height=last.at[0])
    topic = require(block, by, Action.PUBLISH, operation.topic, topic_id=operation.topic_id)
    room = checking.check(block, client.key, topic, operation)
    if last is None:
        _begin(block, client, key)
    waiting = (0 if last is None else last.pending) + len(operation.digests)
    record = StageRecord(operation.stage, at, named, waiting, operation.source)
    STAGES.put(state, *key, record=record)
    if operation.digests:
        _enqueue(block, client, operation, at, room)
    if not waiting:
        OVER.put(state, client.organisation, *key, record=OverRecord(operation.stage))
    return Done()


def expire(block: BlockContext, key: tuple[bytes], _listed: int) -> int:
    """Drop a staged batch that was not committed in time. Returns what that takes of `MAX_SWEPT`."""
    record = STAGED.get(block.state, *key)
    assert record is not None, "what leaves before is no longer listed"
    last = STAGES.get(block.state, *staged.writer_of(record))
    if last is not None and record.stage <= last.stage:
        return 1  # it is numbered when its turn comes, or dropped with what its writer left behind
    return staged.drop(block, *key, record)


def expire_writer(block: BlockContext, key: Writer, _listed: int) -> int:
    """The height has come for which a writer is listed: it is forgotten, or listed again if it committed since."""
    record = STAGES.get(block.state, *key)
    assert record is not None, "a writer goes only here"
    until = record.at[0] + WRITER_KEPT
    if until < block.height and not record.pending:
        STAGES.delete(block.state, *key)
        staged.hold(block.state, WRITERS, key[2], -1)
    else:
        look_again(block.state, max(until, block.height) + 1, STAGES.key(*key))
    return 1


def clear(block: BlockContext, organisation: str, *writer: *Writer) -> bool:
    """Drop what a writer has staged besides what it committed; returns whether all of that is done."""
    state = block.state
    over = OVER.get(state, organisation, *writer)
    assert over is not None, "it is the job"
    for *_, its_stage, digest in STAGING.first_stored(state, max(block.work, 1), *writer):
        if its_stage > over.stage:
            break
        if block.work <= 0:
            return False
        record = STAGED.get(state, digest)
        if record is not None:  # it may have expired in this block
            block.work -= staged.drop(block, digest, record)
    return True


def is_dropped(receipt: BatchReceipt, _place: int | None, store: KeyValue) -> bool:
    """Whether a batch that was staged, and not numbered, is staged no more."""
    return store.get(STAGED.place(receipt.digest)) is None


def _over(stage: int, last: StageRecord) -> StageOver:
    return StageOver(stage=stage, last=last.stage, height=last.at[0])


def _begin(block: BlockContext, client: ClientRecord, key: Writer) -> None:
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
    block: BlockContext, client: ClientRecord, operation: CommitStage, at: Position, room: Room
) -> None:
    chunks = [operation.digests[first : first + CHUNK] for first in range(0, len(operation.digests), CHUNK)]
    writer = (operation.topic, operation.topic_id, operation.writer)
    entries = [CommittedRecord(*writer, at, chunk) for chunk in chunks]
    turns.enqueue(block, client.organisation, client.key, entries)
    PENDING_BATCHES.add(block.state, by=len(operation.digests))
    pending.join(block, operation.topic, block.height, len(operation.digests), room)


def _cost_of_commit(_reader: Reader, _by: Principal, operation: CommitStage) -> int:
    """What deciding it takes. Looking at more batches than the first is charged as that goes on."""
    return _DECIDING + checking.work_of(len(operation.digests))


def module(numbered_bytes: int = MAX_NUMBERED_BYTES) -> Module:
    """`numbered_bytes`: of batches that one block may number; all brokers must have the same, simulations have less."""
    return Module(
        name="staging",
        operations={CommitStage: commit},
        costs={CommitStage: _cost_of_commit},
        jobs={OVER: clear},
        batches=(BatchKind(STAGED_KIND, "stage", stage, sequence=False, late=True),),
        tables=(
            STAGES,
            STAGED,
            CONTENTS,
            STAGING,
            COMMITTING,
            COMMITTED,
            QUEUES,
            TURNS,
            WAITING,
            OVER,
            PENDING,
            PENDING_BATCHES,
        ),
        outcomes=(Staged,),
        refusals=(StageOver, NotStaged),
        texts=TEXTS,
        hooks={CONSTRAINT_OPENING: pending.require_room},
        expire={STAGED: expire, STAGES: expire_writer, COMMITTING: checking.expire},
        begin_block=reserve,
        end_block=partial(number, numbered_bytes=numbered_bytes),
        over={Staged: is_dropped},
    )


MODULE = module()
