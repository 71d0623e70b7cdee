"""When the next granule of each topic partition ends: derived from the ages in the state, so that no block searches them."""

from __future__ import annotations

import heapq

from parley.application.block import Derived
from parley.modules.retention.tables import AGES
from parley.modules.topics.tables import TOPICS
from parley.store.interface import KeyValue

TopicPartition = tuple[str, int]

_SLACK = 64  # outdated entries that are not worth clearing away


class Deadlines:
    """As large as the topic partitions with a retention in the state, which the application limits."""

    def __init__(self) -> None:
        self._times: dict[TopicPartition, int] = {}
        self._queue: list[tuple[int, TopicPartition]] = []  # with entries that the times have left behind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines) and self._times == other._times

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def load(cls, store: KeyValue) -> Deadlines:
        deadlines = cls()
        retentions: dict[str, int] = {}
        for (topic, partition), record in AGES.scan_stored(store):
            if topic not in retentions:
                known = TOPICS.stored(store, topic)
                assert known is not None, "a topic's record stays"
                retentions[topic] = known.policy.retention
            deadlines.set((topic, partition), record.granules[0][1] + retentions[topic])
        return deadlines

    def set(self, log: TopicPartition, time: int) -> None:
        if self._times.get(log) == time:
            return
        self._times[log] = time
        heapq.heappush(self._queue, (time, log))
        if len(self._queue) > 2 * len(self._times) + _SLACK:
            self._queue = [(at, each) for each, at in self._times.items()]
            heapq.heapify(self._queue)

    def remove(self, log: TopicPartition) -> None:
        self._times.pop(log, None)

    def first(self, time: int) -> TopicPartition | None:
        """The one whose deadline is over the longest at `time`; the caller must set it again or remove it."""
        while self._queue and self._queue[0][0] <= time:
            at, log = self._queue[0]
            if self._times.get(log) == at:
                return log
            heapq.heappop(self._queue)
        return None


DEADLINES = Derived("deadlines of retention", Deadlines.load)
