"""Who listens to what until when: derived from the subscriptions in the state, so that no block has to search them."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from parley.ledger.application import KeyValue
from parley.model.expressions import Constraint, parse_constraint
from parley.model.records import SubscriptionRecord, decode_record
from parley.pubsub.matching import Guard, MatchingIndex
from parley.pubsub.records import GuardRecord, guard_key
from parley.pubsub.state import ENTRIES

__all__ = ["Interest", "Interests", "guard_of", "guard_record"]

_SUBSCRIPTIONS = ENTRIES + b"sub/"


class Interest(NamedTuple):
    """One subscription; they sort as their keys in the state do."""

    topic: str
    constraint: bytes
    client: bytes


class Interests:
    """As large as the subscriptions in the state, which the application limits."""

    def __init__(self) -> None:
        self._indexes: dict[str, MatchingIndex] = {}
        self._leases: dict[Interest, int] = {}
        self._of_client: dict[bytes, set[Interest]] = {}
        # Each interest once, with the end of its lease at some time, which renewals have only moved on since.
        self._due: list[tuple[int, Interest]] = []
        self._queued: set[Interest] = set()

    def __len__(self) -> int:
        return len(self._leases)

    @classmethod
    def load(cls, store: KeyValue) -> Interests:
        interests = cls()
        for key, value in store.scan(_SUBSCRIPTIONS):
            record = decode_record(SubscriptionRecord, value)
            topic, constraint, client = key[len(_SUBSCRIPTIONS) : -65], key[-64:-32], key[-32:]
            interest = Interest(topic.decode(), constraint, client)
            index = interests.index(interest.topic)
            if index is None or constraint not in index:
                guard = store.get(ENTRIES + guard_key(interest.topic, constraint))
                assert guard is not None, "every live constraint has a guard entry"
                chosen = guard_of(decode_record(GuardRecord, guard))
                interests.open(interest.topic, parse_constraint(record.constraint), chosen)
            interests.join(interest, record.lease_until)
        return interests

    def index(self, topic: str) -> MatchingIndex | None:
        """The live constraints on a topic, None if there are none."""
        return self._indexes.get(topic)

    def of_client(self, client: bytes) -> list[Interest]:
        return sorted(self._of_client.get(client, ()))

    def open(self, topic: str, constraint: Constraint, guard: Guard | None) -> None:
        """A constraint begins to live; its first subscription follows."""
        self._indexes.setdefault(topic, MatchingIndex()).add(constraint, guard)

    def join(self, interest: Interest, lease_until: int) -> None:
        """A subscription begins or is renewed."""
        self._leases[interest] = lease_until
        self._of_client.setdefault(interest.client, set()).add(interest)
        if interest not in self._queued:
            self._queued.add(interest)
            heapq.heappush(self._due, (lease_until, interest))

    def leave(self, interest: Interest, *, last: bool) -> None:
        """A subscription ends; if it was the last of its constraint, nothing is matched for it any more."""
        del self._leases[interest]
        mine = self._of_client[interest.client]
        mine.remove(interest)
        if not mine:
            del self._of_client[interest.client]
        if last:
            index = self._indexes[interest.topic]
            index.remove(interest.constraint)
            if not len(index):
                del self._indexes[interest.topic]

    def lapsed(self, time: int) -> Interest | None:
        """The subscription whose lease ended first, if it ended before `time`; the caller must end it."""
        while self._due and self._due[0][0] < time:
            until, interest = heapq.heappop(self._due)
            lease_until = self._leases.get(interest)
            if lease_until is not None and lease_until > until:
                heapq.heappush(self._due, (lease_until, interest))
                continue
            self._queued.remove(interest)
            if lease_until is not None:
                return interest
        return None


def guard_record(guard: Guard | None) -> GuardRecord:
    """The one form of a guard in the state."""
    if guard is None:
        return GuardRecord(None)
    ordered = sorted(guard, key=lambda equality: (equality[0], equality[1].__name__, equality[2]))
    return GuardRecord(tuple((name, value) for name, _, value in ordered))


def guard_of(record: GuardRecord) -> Guard | None:
    if record.equalities is None:
        return None
    return frozenset((name, type(value), value) for name, value in record.equalities)
