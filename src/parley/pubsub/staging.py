"""Staging: batches that are ordered and stored but not numbered until their writer commits the stage, whole and once (P23).

A staged batch has no sequence line and its refusals are not remembered: that somebody orders it again, after a grant or a
repair, does no harm, because only a commit that its publisher signs makes it count, and that names it.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.crypto.hashing import DIGEST_SIZE
from parley.model.batches import BatchHeader
from parley.model.errors import Code, Refusal
from parley.model.names import Position
from parley.model.operations import CommitStage
from parley.model.receipts import Done, Duplicate, Outcome, Staged
from parley.model.records import ClientRecord, StageRecord, TopicRecord, client_key, digests_hash, stage_key
from parley.pubsub import budget, shares, staged, use
from parley.pubsub.access import require_allowed, require_topic
from parley.pubsub.admission import Opened
from parley.pubsub.publications import costs, require_partition, require_publishing
from parley.pubsub.records import (
    OVER,
    PENDING,
    WRITERS,
    CommittedRecord,
    PendingRecord,
    StagedRecord,
    committed_key,
    expiry_key,
    over_key,
    pending_key,
    staged_key,
    staging_prefix,
    weight_key,
)
from parley.pubsub.state import State
from parley.pubsub.step import Step
from parley.registry.standing import Standing

__all__ = ["clear", "commit", "expire", "expire_writer", "require_open", "stage"]

MAX_WRITERS = 131_072  # that the network remembers
MAX_WRITERS_PER_CLIENT = 16_384
WRITER_KEPT = 10_000_000  # heights after its last commit for which a writer is remembered
MAX_COUNTED = budget.MAX_COUNTED_PER_BLOCK  # messages of one commit whose cost is looked at anew
MAX_DROPPED = 256  # a block
CHUNK = 512  # batches of a commit in one entry
_WRITER = slice(-16, None)
_PUBLISHER = slice(-48, -16)


def require_open(state: State, header: BatchHeader) -> None:
    """That the writer has not committed the stage of this batch, or a later one."""
    last = state.get(StageRecord, stage_key(header.publisher, header.topic, header.session))
    if last is not None and header.sequence <= last.stage:
        raise _over(header.sequence, last)


def stage(step: Step, by: Standing, opened: Opened, at: Position) -> Outcome:
    state, header, messages = step.state, opened.batch.header, opened.batch.messages
    require_open(state, header)
    known = state.get(StagedRecord, staged_key(opened.digest))
    if known is not None:
        return Duplicate(known.at)
    client, topic = require_publishing(state, by, header)
    staged.require_room(step, client, topic.name, staged.charge(opened.size, header.count))
    parts = staged.parts_of(messages)
    index = step.interests.index(topic.name)
    compared = 0 if index is None else costs(index, (tags for part in parts for tags in part.tags))
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
        state.count(weight_key(topic.name)),
    )
    staged.put(state, opened.digest, record, parts)
    return Staged(header.not_after)


def commit(step: Step, by: Standing, operation: CommitStage, at: Position) -> Outcome:
    """Decides about all of them at once; `numbering` gives them their offsets when there is room."""
    client = by.require_client()
    state, key = step.state, stage_key(client.key, operation.topic, operation.writer)
    last, named = state.get(StageRecord, key), digests_hash(operation.digests)
    if last is not None and operation.stage <= last.stage:
        if (operation.stage, named) == (last.stage, last.digests):
            return Duplicate(last.at)
        raise _over(operation.stage, last)
    topic = require_topic(state, operation.topic)
    require_allowed(topic, "publish", client)
    step.budget.commit(len(operation.digests))
    batches = _batches(step, client, topic, operation)
    room = _room(step, topic, batches)
    if last is None:
        _begin(step, client, key)
    pending = (0 if last is None else last.pending) + len(batches)
    state.put(key, StageRecord(operation.stage, at, named, pending))
    state.put(over_key(topic.name, client.key, operation.writer), b"")
    if batches:
        _line_up(state, operation, at, batches, room)
    return Done()


def expire(step: Step, key: bytes) -> int:
    """Of a staged batch that was not committed in time. Returns the bytes that it counted for."""
    record = step.state.get(StagedRecord, key)
    assert record is not None, "what leaves before is no longer listed"
    return staged.drop(step, key[-DIGEST_SIZE:], record)


def expire_writer(state: State, key: bytes, height: int) -> None:
    """The height has come for which a writer is listed: it is forgotten, or listed anew if it committed since."""
    record = state.get(StageRecord, key)
    assert record is not None, "a writer goes only here"
    until = record.at[0] + WRITER_KEPT
    if until < height and not record.pending:
        state.delete(key)
        _count_writers(state, key[_PUBLISHER], -1)
    else:
        state.put(expiry_key(max(until, height) + 1, key), b"")


def clear(step: Step) -> None:
    """Drop what writers have staged besides what they committed, as much as a block may; at the beginning of a block."""
    state, room = step.state, MAX_DROPPED
    for key in state.stored_keys(OVER, MAX_DROPPED):
        listed = key[len(OVER) :]
        topic = listed[: _PUBLISHER.start - 1].decode()
        last = state.get(StageRecord, stage_key(listed[_PUBLISHER], topic, listed[_WRITER]))
        limit = -1 if last is None else last.stage
        prefix = staging_prefix(topic) + listed[_PUBLISHER.start :]
        found = [one for one in state.stored_keys(prefix, room) if _stage_of(one, prefix) <= limit]
        for one in found:
            room -= _drop(step, one[-DIGEST_SIZE:])
            if room <= 0:
                return
        room -= 1
        if room <= 0:
            return
        state.delete(key)


def _drop(step: Step, name: bytes) -> int:
    """What it takes of the room for `MAX_DROPPED`."""
    record = step.state.get(StagedRecord, staged_key(name))
    if record is None:  # it has expired in this block
        return 1
    return 1 + staged.drop(step, name, record) * MAX_DROPPED // staged.DROPPED_BYTES


def _stage_of(key: bytes, prefix: bytes) -> int:
    return int.from_bytes(key[len(prefix) : -DIGEST_SIZE], "big")


def _over(stage: int, last: StageRecord) -> Refusal:
    return Refusal(
        Code.STAGE_OVER,
        f"stage {stage} is over: this writer has committed stage {last.stage} at height {last.at[0]}",
    )


def _batches(
    step: Step, client: ClientRecord, topic: TopicRecord, operation: CommitStage
) -> dict[bytes, StagedRecord]:
    """Those that the commit names, in its order."""
    batches: dict[bytes, StagedRecord] = {}
    mine = (client.key, operation.topic, operation.writer, operation.stage)
    for name in operation.digests:
        if name in batches:
            raise Refusal(Code.INVALID, f"batch {name.hex()} is named twice")
        record = step.state.get(StagedRecord, staged_key(name))
        if record is None or record.until < step.height:
            raise Refusal(
                Code.NOT_STAGED,
                f"batch {name.hex()} is not staged: it never was, it has expired, or it was dropped; stage it again",
            )
        if (record.publisher, record.topic, record.writer, record.stage) != mine:
            raise Refusal(
                Code.NOT_STAGED,
                f"batch {name.hex()} is not staged for stage {operation.stage} of this writer of {operation.topic}",
            )
        require_partition(topic, record.partition)  # the topic may have been made anew, with fewer
        batches[name] = record
    return batches


def _room(step: Step, topic: TopicRecord, batches: dict[bytes, StagedRecord]) -> int:
    """What each message may cost more until all are numbered. Raises `Refusal` if one costs too much already.

    What was asked since a batch was staged can have added no more than its weight to each of the messages; only where
    that is too much they are looked at anew.
    """
    limit, index = budget.MAX_COMPARED_PER_BATCH, step.interests.index(topic.name)
    weight, counted, room = step.state.count(weight_key(topic.name)), 0, limit
    for name, record in batches.items():
        compared = record.compared + record.count * (weight - record.weight)
        if index is None:
            compared = 0
        elif compared > limit:
            counted += record.count
            if counted > MAX_COUNTED:
                raise Refusal(
                    Code.LIMIT_EXCEEDED,
                    "too much was subscribed to since these batches were staged; stage them again",
                )
            step.budget.count(record.count)
            compared = costs(index, ((1, tags) for _, tags in staged.contents(step.state, name, record)))
            budget.require_affordable(compared)
        room = min(room, (limit - compared) // record.count)
    return room


def _begin(step: Step, client: ClientRecord, key: bytes) -> None:
    """A writer that commits for the first time."""
    held = use.get(step.state, client.key)
    if held.writers >= MAX_WRITERS_PER_CLIENT:
        raise Refusal(
            Code.LIMIT_EXCEEDED,
            f"{client.organisation}/{client.name} has the {MAX_WRITERS_PER_CLIENT} writers that it may have; each is "
            f"remembered for {WRITER_KEPT} heights after its last commit, so {_fewer()}",
        )
    shares.require(step, client.organisation, (WRITERS, MAX_WRITERS), 1, _fewer)
    _count_writers(step.state, client.key, 1)
    step.state.put(expiry_key(step.height + WRITER_KEPT + 1, key), b"")


def _fewer() -> str:
    return "commit under fewer names of queries and jobs"


def _count_writers(state: State, publisher: bytes, by: int) -> None:
    client = state.get(ClientRecord, client_key(publisher))
    assert client is not None, "a client's record stays"
    held = use.get(state, publisher)
    use.put(state, publisher, replace(held, writers=held.writers + by))
    shares.add(state, client.organisation, WRITERS, by)


def _line_up(
    state: State, operation: CommitStage, at: Position, batches: dict[bytes, StagedRecord], room: int
) -> None:
    for name, record in batches.items():
        staged.unlist(state, name, record)
    for ordinal, first in enumerate(range(0, len(batches), CHUNK)):
        names = operation.digests[first : first + CHUNK]
        publisher = batches[names[0]].publisher
        waiting = CommittedRecord(publisher, operation.topic, operation.writer, names)
        state.put(committed_key(at, ordinal), waiting)
    state.add(PENDING, len(batches))
    before = state.get(PendingRecord, pending_key(operation.topic)) or PendingRecord(0, room)
    after = PendingRecord(before.batches + len(batches), min(before.room, room))
    state.put(pending_key(operation.topic), after)
