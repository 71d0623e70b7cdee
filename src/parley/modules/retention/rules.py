"""Retention: what was published longer ago than its topic keeps falls behind the start of the log, by block time (P5).

A topic partition remembers the times of granules, not of messages: a new one opens with the first publication after the
last one's end, a sixteenth of the retention after it opened. Nothing goes before its retention is over; it may stay a
granule longer. Bodies behind the start of the log are erased some blocks later (P21).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from parley.application.block import BlockContext, PerBlock
from parley.application.module import Module
from parley.application.state import State
from parley.application.tables import encode_value
from parley.ledger.application import Erasure
from parley.ledger.bodies import GRACE
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.receipts import Published
from parley.modules.publishing.rules import APPENDED
from parley.modules.publishing.tables import OFFSETS, BatchPlace
from parley.modules.retention.deadlines import DEADLINES, TopicPartition
from parley.modules.retention.refusals import Pruned
from parley.modules.retention.tables import AGES, LOGS_TO_ERASE, AgesRecord, LogToErase
from parley.modules.retention.texts import TEXTS
from parley.modules.topics.rules import TOPIC_ALTERED, TOPIC_DELETED, head_of, record_of
from parley.modules.topics.tables import HEADS, TopicRecord
from parley.store.interface import KeyValue

GRANULES = 16  # in a retention
# Of one topic partition. There are 18 while the retention stays; when it grows, older and shorter ones may fill the rest.
MAX_GRANULES = 40
MAX_MOVED = 256  # topic partitions a block

_Granules = tuple[tuple[int, int], ...]


def _nothing_moved(_: BlockContext) -> dict[TopicPartition, int]:
    return {}


# Where the logs started whose start this block moves.
MOVED = PerBlock(_nothing_moved)


def sweep(block: BlockContext) -> None:
    """Move the logs on whose oldest granule is over, the longest due first. It is done before a block's batches.

    Those too many for one block wait for the next: what is kept a little longer does no harm.
    """
    deadlines, least = block[DEADLINES], block.work // 2
    for _ in range(MAX_MOVED):
        log = deadlines.first(block.time)
        if log is None or block.work <= least:
            return
        block.work -= 1
        topic = record_of(block.state, log[0])
        granules = _granules(block.state, *log)
        kept = tuple(one for one in granules if one[1] + topic.policy.retention > block.time)
        start_log(block, *log, kept[0][0] if kept else head_of(block.state, *log).next_offset)
        _put(block, topic, log[1], kept)


def note(block: BlockContext, topic: TopicRecord, partition: int, first_offset: int) -> None:
    """Note when something was published from `first_offset` on."""
    if not topic.policy.retention:
        return
    granules = _granules(block.state, topic.name, partition)
    if granules and block.time < granules[-1][1]:
        return
    end = block.time + -(-topic.policy.retention // GRANULES)
    _put(block, topic, partition, _within_limit((*granules, (first_offset, end))))


def alter(block: BlockContext, before: TopicRecord, after: TopicRecord) -> None:
    """Apply another retention to a topic. What had none until now ages from now on."""
    if after.policy.retention == before.policy.retention:
        return
    for partition in range(after.partitions):
        _put(block, after, partition, _closed(block, after, partition) if after.policy.retention else ())


def delete(block: BlockContext, topic: TopicRecord) -> None:
    """Move the logs of a deleted topic on: all that was published is behind their start."""
    for partition in range(topic.partitions):
        start_log(block, topic.name, partition, head_of(block.state, topic.name, partition).next_offset)
        _put(block, topic, partition, ())


def start_log(block: BlockContext, topic: str, partition: int, offset: int) -> None:
    """Move the start of a log to `offset`: what is before is no longer served, and its bodies are erased in time."""
    head = head_of(block.state, topic, partition)
    if offset > head.log_start_offset:
        block[MOVED].setdefault((topic, partition), head.log_start_offset)
        HEADS.put(block.state, topic, partition, record=replace(head, log_start_offset=offset))


def _granules(state: State, topic: str, partition: int) -> _Granules:
    """Of a topic partition with a retention: none only if it is empty."""
    record = AGES.get(state, topic, partition)
    return () if record is None else record.granules


def _closed(block: BlockContext, topic: TopicRecord, partition: int) -> _Granules:
    """The granules with an end to the last one, since the next one's length is another."""
    head, now = head_of(block.state, topic.name, partition), block.time + 1
    granules = _granules(block.state, topic.name, partition)
    if not granules:
        return ((head.log_start_offset, now),) if head.log_start_offset < head.next_offset else ()
    first, end = granules[-1]
    return (*granules[:-1], (first, min(end, now)))


def _within_limit(granules: _Granules) -> _Granules:
    """With the two neighbours joined that together are the shortest, if there are too many.

    All of them lie within 17 granules of the present length, so two of the 40 are shorter than one of it.
    """
    if len(granules) <= MAX_GRANULES:
        return granules
    at = min(range(1, len(granules) - 1), key=lambda i: granules[i + 1][1] - granules[i - 1][1])
    return (*granules[:at], (granules[at][0], granules[at + 1][1]), *granules[at + 2 :])


def _put(block: BlockContext, topic: TopicRecord, partition: int, granules: _Granules) -> None:
    if granules:
        AGES.put(block.state, topic.name, partition, record=AgesRecord(granules))
        block[DEADLINES].set((topic.name, partition), granules[0][1] + topic.policy.retention)
    elif AGES.has(block.state, topic.name, partition):
        AGES.delete(block.state, topic.name, partition)
        block[DEADLINES].remove((topic.name, partition))


# -- erasing bodies --------------------------------------------------------------------------------------------------


def is_behind(receipt: BatchReceipt, first_offset: int | None, store: KeyValue) -> bool:
    """Whether all of a published batch lies behind the start of its log."""
    if first_offset is None:
        return False
    return first_offset + receipt.count <= _start(store, receipt.topic, receipt.partition)


def logs_to_erase(block: BlockContext, store: KeyValue) -> Iterator[tuple[bytes, bytes]]:
    """List the logs whose start this block moves. One that is listed already is looked at again when it is done."""
    for (topic, partition), start in block[MOVED].items():
        if store.get(LOGS_TO_ERASE.place(topic, partition)) is None:
            end = head_of(block.state, topic, partition).log_start_offset
            listed = LogToErase(start, end, block.height)
            yield LOGS_TO_ERASE.place(topic, partition), encode_value(listed)


def erase(store: KeyValue, height: int, limit: int) -> Erasure:
    """Up to `limit` batches behind the starts of their logs, and the lists without them."""
    batches: list[bytes] = []
    writes: list[tuple[bytes, bytes | None]] = []
    for topic, partition in LOGS_TO_ERASE.keys_stored(store):
        if len(batches) >= limit:
            break
        readable = LOGS_TO_ERASE.stored(store, topic, partition)
        if readable is not None and readable.height + GRACE > height:
            continue
        start = _start(store, topic, partition)
        listed = readable or LogToErase(0, start, 0)
        reached = listed.start
        end = min(listed.end, start)  # what the log still has stays, even if the list is damaged
        for place in islice(_batches(store, topic, partition, listed.start, end), limit - len(batches)):
            batches.append(place.digest)
            reached += place.count
        left = _left(listed, reached, start, height)
        if left != listed:
            value = None if left is None else encode_value(left)
            writes.append((LOGS_TO_ERASE.place(topic, partition), value))
    return Erasure(tuple(batches), tuple(writes))


def _batches(store: KeyValue, topic: str, partition: int, offset: int, end: int) -> Iterator[BatchPlace]:
    """The listed batches as far as the index has them: a broker that had to get old blocks may still fill it in."""
    while offset < end:
        place = OFFSETS.stored(store, topic, partition, offset)
        if place is None or offset + place.count > end:
            return
        yield place
        offset += place.count


def _left(listed: LogToErase, reached: int, log_start: int, height: int) -> LogToErase | None:
    if reached < listed.end:
        return LogToErase(reached, listed.end, listed.height)
    # The log has moved on since it was listed; what this adds waits in its turn.
    return LogToErase(reached, log_start, height) if reached < log_start else None


def _start(store: KeyValue, topic: str, partition: int) -> int:
    head = HEADS.stored(store, topic, partition)
    return 0 if head is None else head.log_start_offset


MODULE = Module(
    name="retention",
    tables=(AGES, LOGS_TO_ERASE),
    refusals=(Pruned,),
    texts=TEXTS,
    derived=(DEADLINES,),
    hooks={APPENDED: note, TOPIC_ALTERED: alter, TOPIC_DELETED: delete},
    begin_block=sweep,
    derive=logs_to_erase,
    over={Published: is_behind},
    erase=erase,
)
