"""Retention: what was published longer ago than its topic keeps falls behind the start of the log, by block time (P5).

A log remembers the times of granules, not of messages: a new one opens with the first publication after the last one's
end, a sixteenth of the retention after it opened. Nothing goes before its retention is over; it may stay a granule longer.
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.model.records import TopicRecord, partition_key, topic_key
from parley.pubsub.access import head_of
from parley.pubsub.records import AgesRecord, ages_key
from parley.pubsub.state import State
from parley.pubsub.step import Step

__all__ = ["MAX_GRANULES", "MAX_MOVED", "alter", "forget", "note", "start_log", "sweep"]

GRANULES = 16  # in a retention
# Of one log. There are 18 while the retention stays; when it grows, older and shorter ones may fill the rest.
MAX_GRANULES = 40
MAX_MOVED = 1_024  # logs a block

_Granules = tuple[tuple[int, int], ...]


def sweep(step: Step) -> None:
    """Move the logs on whose oldest granule is over, the longest due first. It is done before a block's batches.

    Those too many for one block wait for the next: what is kept a little longer does no harm.
    """
    for _ in range(MAX_MOVED):
        log = step.deadlines.first(step.time)
        if log is None:
            return
        topic = step.state.get(TopicRecord, topic_key(log[0]))
        assert topic is not None, "a topic's record stays"
        granules = _granules(step.state, *log)
        kept = tuple(one for one in granules if one[1] + topic.policy.retention > step.time)
        start_log(step, *log, kept[0][0] if kept else head_of(step.state, *log).next_offset)
        _put(step, topic, log[1], kept)


def note(step: Step, topic: TopicRecord, partition: int, first_offset: int) -> None:
    """Something was published from `first_offset` on."""
    if not topic.policy.retention:
        return
    granules = _granules(step.state, topic.name, partition)
    if granules and step.time < granules[-1][1]:
        return
    end = step.time + -(-topic.policy.retention // GRANULES)
    _put(step, topic, partition, _within_limit((*granules, (first_offset, end))))


def alter(step: Step, topic: TopicRecord, before: int) -> None:
    """`topic` has another retention than `before`. What had none until now ages from now on."""
    if topic.policy.retention == before:
        return
    for partition in range(topic.partitions):
        _put(step, topic, partition, _closed(step, topic, partition) if topic.policy.retention else ())


def forget(step: Step, topic: TopicRecord, partition: int) -> None:
    """The ages of a log that nothing is left of."""
    _put(step, topic, partition, ())


def start_log(step: Step, topic: str, partition: int, offset: int) -> None:
    """What is before `offset` is no longer served, and its bodies are erased in time."""
    head = head_of(step.state, topic, partition)
    if offset > head.log_start_offset:
        step.moved.setdefault((topic, partition), head.log_start_offset)
        step.state.put(partition_key(topic, partition), replace(head, log_start_offset=offset))


def _granules(state: State, topic: str, partition: int) -> _Granules:
    """Of a log with a retention: none only if it is empty."""
    record = state.get(AgesRecord, ages_key(topic, partition))
    return () if record is None else record.granules


def _closed(step: Step, topic: TopicRecord, partition: int) -> _Granules:
    """The granules with an end to the last one, since the next one's length is another."""
    head, now = head_of(step.state, topic.name, partition), step.time + 1
    granules = _granules(step.state, topic.name, partition)
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


def _put(step: Step, topic: TopicRecord, partition: int, granules: _Granules) -> None:
    key, log = ages_key(topic.name, partition), (topic.name, partition)
    if granules:
        step.state.put(key, AgesRecord(granules))
        step.deadlines.set(log, granules[0][1] + topic.policy.retention)
    elif step.state.get(AgesRecord, key) is not None:
        step.state.delete(key)
        step.deadlines.remove(log)
