"""When the next granule of each log ends: derived from the ages in the state, so that no block has to search them."""

from __future__ import annotations

import heapq

from parley.ledger.application import KeyValue
from parley.model.records import TopicRecord, decode_record, topic_key
from parley.pubsub.records import AGES, AgesRecord
from parley.pubsub.state import ENTRIES

__all__ = ["Deadlines", "Log"]

Log = tuple[str, int]  # topic and partition

_AGES = ENTRIES + AGES
_SLACK = 64  # outdated entries that are not worth clearing away


class Deadlines:
    """As large as the logs with a retention in the state, which the application limits."""

    def __init__(self) -> None:
        self._times: dict[Log, int] = {}
        self._queue: list[tuple[int, Log]] = []  # with entries that the times have left behind

    @classmethod
    def load(cls, store: KeyValue) -> Deadlines:
        deadlines = cls()
        retentions: dict[str, int] = {}
        for key, value in store.scan(_AGES):
            topic, partition = key[len(_AGES) : -5].decode(), int.from_bytes(key[-4:], "big")
            if topic not in retentions:
                record = store.get(ENTRIES + topic_key(topic))
                assert record is not None, "a topic's record stays"
                retentions[topic] = decode_record(TopicRecord, record).policy.retention
            oldest = decode_record(AgesRecord, value).granules[0]
            deadlines.set((topic, partition), oldest[1] + retentions[topic])
        return deadlines

    def set(self, log: Log, time: int) -> None:
        if self._times.get(log) == time:
            return
        self._times[log] = time
        heapq.heappush(self._queue, (time, log))
        if len(self._queue) > 2 * len(self._times) + _SLACK:
            self._queue = [(at, each) for each, at in self._times.items()]
            heapq.heapify(self._queue)

    def remove(self, log: Log) -> None:
        self._times.pop(log, None)

    def first(self, time: int) -> Log | None:
        """The log whose deadline is over the longest at `time`; the caller must set it anew or remove it."""
        while self._queue and self._queue[0][0] <= time:
            at, log = self._queue[0]
            if self._times.get(log) == at:
                return log
            heapq.heappop(self._queue)
        return None
