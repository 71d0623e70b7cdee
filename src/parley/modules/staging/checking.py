"""Checks of the batches that a commit names: as many as a block allows. The commit goes on there when it is ordered again.

A staged batch goes only when it expires or when its stage is over. So of those that were looked at, only the one that
expires first has to be remembered, and what matching them may cost more: a constraint that would make one too costly waits
until the commit is decided, as if they were committed (`pending`). Those who subscribe meanwhile cannot make it begin anew.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.application.block import BlockContext
from parley.application.expiry import cancel, look_again
from parley.crypto.hashing import DIGEST_SIZE
from parley.model.refusals import Busy, Invalid
from parley.modules.publishing import budget
from parley.modules.staging import pending, staged
from parley.modules.staging.operations import CommitStage, digests_hash
from parley.modules.staging.refusals import NotStaged
from parley.modules.staging.tables import COMMITTING, STAGED, CommittingRecord, Room, StagedRecord
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.subscriptions.matching import MatchingIndex
from parley.modules.topics.tables import TopicRecord

# Heights for which room is reserved for a commit that goes no further. Pools propose it sooner, but there may be no room
# for it while its organisation pays for a batch that took more than its share.
RESERVED = 64
# Heights after which a client whose commit was not ordered again in that time may reserve room once more: or somebody
# could keep all new constraints off a topic with a commit that never ends.
LAPSED = 512
READS = 4  # batches that are looked at in the time of one unit of work
# Batches that a commit looks at in one piece, or it waits: a full block would let it look at a few.
LOOKED_AT = 384
HASHED = 256  # digests that are hashed and written in that time
_NEVER = 2**64 - 1


def work_of(digests: int) -> int:
    """What looking at the first batches of a commit takes, and hashing what it names. It is paid before either is done."""
    return -(-min(digests, LOOKED_AT) // READS) + digests // HASHED


def check(block: BlockContext, publisher: bytes, topic: TopicRecord, operation: CommitStage) -> Room:
    """What matching may cost more, when all batches of a commit have been looked at.

    Raises `Refused` if one of them cannot be committed, and `Busy` if there is more to look at than this block may.
    """
    if len(set(operation.digests)) < len(operation.digests):
        raise Invalid("named_twice", digest=_twice(operation.digests))
    known = COMMITTING.get(block.state, publisher)
    mine = known is not None and known.reserves and _is_of(known, operation)
    found = known if mine else None
    if found is None:
        found = _beginning(operation, block.height)
    elif found.until < block.height:
        raise NotStaged("gone", digest=found.expiring)
    found = _go_on(block, publisher, topic, operation, found)
    if found.checked == len(operation.digests):
        return found.room
    if known is None or mine:
        _remember(block, publisher, known, found)
    elif known.reserves:
        raise Busy("committing_another")
    raise Busy("committing", checked=found.checked, batches=len(operation.digests))


def end(block: BlockContext, publisher: bytes, operation: CommitStage) -> None:
    """Forget how far a commit had been looked at, if it was: it is decided."""
    known = COMMITTING.get(block.state, publisher)
    if known is not None and known.reserves and _is_of(known, operation):
        cancel(block.state, known.listed, COMMITTING.key(publisher))
        _forget(block, publisher, known)


def expire(block: BlockContext, key: tuple[bytes], _listed: int) -> int:
    """Forget a commit that was not ordered again, and later that it was not. Returns what that takes of `MAX_SWEPT`."""
    known = COMMITTING.get(block.state, *key)
    assert known is not None, "what is decided before is no longer listed"
    _forget(block, *key, known)
    if known.reserves:
        listed = block.height + LAPSED
        look_again(block.state, listed, COMMITTING.key(*key))
        COMMITTING.put(block.state, *key, record=replace(known, listed=listed, reserves=False))
    return 3


def _beginning(operation: CommitStage, height: int) -> CommittingRecord:
    return CommittingRecord(
        topic=operation.topic,
        topic_id=operation.topic_id,
        writer=operation.writer,
        stage=operation.stage,
        digests=digests_hash(operation.digests),
        listed=0,
        reserves=True,
        checked=0,
        until=_NEVER,
        expiring=bytes(DIGEST_SIZE),
        room=Room(budget.MAX_COMPARED, budget.MAX_COMPARED, height),
    )


def _is_of(known: CommittingRecord, operation: CommitStage) -> bool:
    which = (known.topic, known.topic_id, known.writer, known.stage)
    if which != (operation.topic, operation.topic_id, operation.writer, operation.stage):
        return False
    return known.digests == digests_hash(operation.digests)


def _go_on(
    block: BlockContext, publisher: bytes, topic: TopicRecord, operation: CommitStage, found: CommittingRecord
) -> CommittingRecord:
    """Look at the next batches, whose price is paid, and at as many more as there is room for."""
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    checked, first, room = found.checked, (found.until, found.expiring), found.room
    waiting = operation.digests[found.checked :]
    for place, digest in enumerate(waiting):
        record = _require_staged(block, publisher, topic, operation, digest)
        compared = _at_most(record, index)
        counted = compared > budget.MAX_COMPARED
        work = (place >= LOOKED_AT and place % READS == 0) + (_work_of_counting(record) if counted else 0)
        if work:
            if place and work > block.shares.room:
                break
            block.spend(work)
        if counted and index is not None:
            compared = index.cost(staged.runs(block.state, digest, record))
            budget.require_affordable(compared)
        checked, first = checked + 1, min(first, (record.until, digest))
        room = room.meet(_room(record, compared, room.since))
    return replace(found, checked=checked, until=first[0], expiring=first[1], room=room)


def _at_most(record: StagedRecord, index: MatchingIndex | None) -> int:
    """What matching a batch costs now, without looking at its messages: not more than this.

    Constraints that were opened since it was staged, and live, have added their burden at most.
    """
    if index is None:
        return 0
    return record.compared + index.opened_since(record.at[0]).times(record.count)


def _work_of_counting(record: StagedRecord) -> int:
    return record.parts + record.count // budget.MESSAGES


def _room(record: StagedRecord, compared: int, since: int) -> Room:
    """Half of what is left of the limit is for what each message costs more, half for what the batch does once."""
    half = (budget.MAX_COMPARED - compared) // 2
    return Room(half // record.count, half, since)


def _require_staged(
    block: BlockContext, publisher: bytes, topic: TopicRecord, operation: CommitStage, digest: bytes
) -> StagedRecord:
    """A batch that the commit names. Raises `Refused` if it cannot be committed."""
    record = STAGED.get(block.state, digest)
    if record is None or record.until < block.height:
        raise NotStaged("gone", digest=digest)
    mine = (operation.topic, operation.topic_id, publisher, operation.writer, operation.stage)
    if (*staged.writer_of(record), record.stage) != mine:
        raise NotStaged("other", digest=digest, stage=operation.stage, topic=operation.topic)
    assert record.partition < topic.partitions, "partitions of a topic are never removed"
    return record


def _remember(
    block: BlockContext, publisher: bytes, known: CommittingRecord | None, found: CommittingRecord
) -> None:
    """Keep how far the commit has been looked at; what was found must stay true until it is decided."""
    key = COMMITTING.key(publisher)
    if known is not None:
        cancel(block.state, known.listed, key)
        _forget(block, publisher, known)
    listed = block.height + RESERVED
    look_again(block.state, listed, key)
    COMMITTING.put(block.state, publisher, record=replace(found, listed=listed))
    pending.join(block, found.topic, found.room.since, 1, found.room)


def _forget(block: BlockContext, publisher: bytes, known: CommittingRecord) -> None:
    COMMITTING.delete(block.state, publisher)
    if known.reserves:
        pending.leave(block, known.topic, known.room.since, 1)


def _twice(digests: tuple[bytes, ...]) -> bytes:
    """The first digest that is named a second time."""
    seen: set[bytes] = set()
    for digest in digests:
        if digest in seen:
            return digest
        seen.add(digest)
    raise AssertionError("one of them is")
