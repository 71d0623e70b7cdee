"""Which subscriptions there are, until when: derived from the state, so that no block has to search it."""

from __future__ import annotations

import heapq

from msgspec import Struct

from parley.application.block import Derived
from parley.model.expressions import Constraint, parse_constraint
from parley.model.names import Value
from parley.modules.subscriptions.matching import Guard, MatchingIndex
from parley.modules.subscriptions.tables import CONSTRAINTS, SUBSCRIPTIONS, LiveConstraint
from parley.store.interface import KeyValue


class Subscription(Struct, frozen=True, order=True, gc=False):
    """One subscription, by the tuple of its key in the state."""

    topic: str
    constraint: bytes
    client: bytes

    @property
    def key(self) -> tuple[str, bytes, bytes]:
        return self.topic, self.constraint, self.client


class SubscriptionIndex:
    """The live subscriptions and their constraints; as large as these are in the state, where they are limited."""

    def __init__(self) -> None:
        self._indexes: dict[str, MatchingIndex] = {}
        self._widths: dict[tuple[str, bytes], int] = {}
        self._leases: dict[Subscription, int] = {}
        # As keys: the collector looks at every set again and again, but not at such dictionaries.
        self._of_client: dict[bytes, dict[Subscription, None]] = {}
        # Each subscription once, with the end of its lease at some time, which renewals have only moved on since.
        self._due: list[tuple[int, Subscription]] = []
        self._queued: set[Subscription] = set()

    def __len__(self) -> int:
        return len(self._leases)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubscriptionIndex):
            return NotImplemented
        return self._all() == other._all()

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def load(cls, store: KeyValue) -> SubscriptionIndex:
        found = cls()
        for (topic, partitions, _), live in CONSTRAINTS.scan_stored(store):
            constraint, height = parse_constraint(live.constraint), live.incarnation[0]
            found.open(topic, constraint, guard_of(live), partitions, height)
        for key, record in SUBSCRIPTIONS.scan_stored(store):
            found.join(Subscription(*key), record.lease_until)
        return found

    def _all(self) -> tuple[object, ...]:
        """What equal indexes have in common; of the queue, the subscriptions whose end will be noticed in time."""
        timely = {one for until, one in self._due if until <= self._leases.get(one, -1)}
        return self._indexes, self._widths, self._leases, self._of_client, timely

    def of_topic(self, topic: str) -> MatchingIndex | None:
        """The live constraints on a topic, None if there are none."""
        return self._indexes.get(topic)

    def of_client(self, client: bytes) -> list[Subscription]:
        return sorted(self._of_client.get(client, ()))

    def partitions(self, topic: str, constraint: bytes) -> int:
        """In how many partitions the orders of a constraint are open; none: it is not live."""
        return self._widths.get((topic, constraint), 0)

    def open(
        self, topic: str, constraint: Constraint, guard: Guard | None, partitions: int, height: int
    ) -> None:
        """Add a constraint that is opened at this height; its first subscription follows."""
        self._indexes.setdefault(topic, MatchingIndex()).add(constraint, guard, height)
        self._widths[topic, constraint.id] = partitions

    def widen(self, topic: str, constraint: bytes, partitions: int) -> None:
        self._widths[topic, constraint] = partitions

    def join(self, subscription: Subscription, lease_until: int) -> None:
        """Add or renew a subscription."""
        self._leases[subscription] = lease_until
        self._of_client.setdefault(subscription.client, {})[subscription] = None
        if subscription not in self._queued:
            self._queued.add(subscription)
            heapq.heappush(self._due, (lease_until, subscription))

    def leave(self, subscription: Subscription, *, last: bool) -> None:
        """Remove a subscription; if it was the last of its constraint, the constraint as well."""
        del self._leases[subscription]
        mine = self._of_client[subscription.client]
        del mine[subscription]
        if not mine:
            del self._of_client[subscription.client]
        if last:
            index = self._indexes[subscription.topic]
            index.remove(subscription.constraint)
            del self._widths[subscription.topic, subscription.constraint]
            if not len(index):
                del self._indexes[subscription.topic]

    def lapsed(self, time: int) -> Subscription | None:
        """The subscription whose lease ended first, if it ended before `time`; the caller must end it."""
        while self._due and self._due[0][0] < time:
            until, subscription = heapq.heappop(self._due)
            lease_until = self._leases.get(subscription)
            if lease_until is not None and lease_until > until:
                heapq.heappush(self._due, (lease_until, subscription))
                continue
            self._queued.remove(subscription)
            if lease_until is not None:
                return subscription
        return None


def equalities_of(guard: Guard | None) -> tuple[tuple[str, Value], ...] | None:
    """The one form of a guard in the state."""
    if guard is None:
        return None
    return tuple((name, value) for name, _, value in guard)


def guard_of(live: LiveConstraint) -> Guard | None:
    if live.equalities is None:
        return None
    return tuple((name, type(value), value) for name, value in live.equalities)


SUBSCRIPTION_INDEX = Derived("subscriptions", SubscriptionIndex.load)
