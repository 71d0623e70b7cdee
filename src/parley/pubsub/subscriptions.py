"""Subscriptions: interests under a lease. The first of a constraint begins its orders, the last one ends them (P6)."""

from __future__ import annotations

from msgspec.structs import replace

from parley.model.errors import Code, Refusal
from parley.model.expressions import Constraint, parse_constraint
from parley.model.names import Position
from parley.model.operations import Subscribe, Unsubscribe
from parley.model.receipts import PartitionStart, Subscribed
from parley.model.records import (
    ConstraintRecord,
    SubscriptionRecord,
    TopicRecord,
    subscription_key,
    subscription_prefix,
    topic_key,
)
from parley.pubsub import use
from parley.pubsub.access import head_of, require_allowed, require_topic
from parley.pubsub.interests import Interest, guard_record
from parley.pubsub.matching import MAX_UNGUARDED, MAX_WAITING, Guard, MatchingIndex, burden
from parley.pubsub.records import PendingRecord, guard_key, pending_key, weight_key
from parley.pubsub.step import Step
from parley.registry.standing import Standing

__all__ = [
    "MAX_ENDED",
    "MAX_ORDERS",
    "end_of_client",
    "end_of_topic",
    "expire",
    "extend",
    "require_room",
    "subscribe",
    "unsubscribe",
]

MAX_ORDERS = 65_536  # of one topic: distinct constraints times partitions
# Orders that lapsing leases may touch in a block: after a standstill all leases are over at once.
MAX_ENDED = 4_096


def subscribe(step: Step, by: Standing, operation: Subscribe, at: Position) -> Subscribed:
    client = by.require_client()
    topic = require_topic(step.state, operation.topic)
    require_allowed(topic, "subscribe", client)
    constraint = parse_constraint(operation.constraint)
    interest = Interest(topic.name, constraint.id, client.key)
    key = subscription_key(*interest)
    if step.state.get(SubscriptionRecord, key) is None:
        _begin(step, by, topic, constraint, at)
    lease_until = step.time + step.genesis.timeouts.lease
    step.state.put(key, SubscriptionRecord(constraint.text, lease_until))
    step.interests.join(interest, lease_until)
    starts = tuple(
        _start(step, topic.name, partition, constraint.id) for partition in range(topic.partitions)
    )
    return Subscribed(constraint.id, starts, lease_until)


def unsubscribe(step: Step, by: Standing, operation: Unsubscribe) -> None:
    client = by.require_client()
    topic = require_topic(step.state, operation.topic)
    constraint = parse_constraint(operation.constraint)
    interest = Interest(topic.name, constraint.id, client.key)
    if step.state.get(SubscriptionRecord, subscription_key(*interest)) is None:
        raise Refusal(
            Code.NOT_SUBSCRIBED, f"{by.title} has no subscription to {topic.name} with {constraint.text}"
        )
    _end(step, interest, topic.partitions)


def expire(step: Step, room: int) -> None:
    """End the subscriptions whose lease is over, the oldest first; those too many for one block wait for the next.

    `room` counts the orders that it may touch.
    """
    while room > 0 and (interest := step.interests.lapsed(step.time)) is not None:
        partitions = _partitions(step, interest.topic)
        _end(step, interest, partitions)
        room -= partitions


def end_of_client(step: Step, client: bytes) -> None:
    for interest in step.interests.of_client(client):
        _end(step, interest, _partitions(step, interest.topic))


def end_of_topic(step: Step, topic: str, room: int) -> int:
    """End subscriptions to a deleted topic; how many orders this touched: fewer than `room` if none is left."""
    partitions, prefix = _partitions(step, topic), subscription_prefix(topic)
    keys = step.state.stored_keys(prefix, -(-room // partitions))
    for key in keys:
        _end(step, Interest(topic, key[len(prefix) : -32], key[-32:]), partitions)
    return len(keys) * partitions


def extend(step: Step, topic: str, added: range) -> None:
    """New partitions have an order for every live constraint, of the same incarnation as in the old ones."""
    if not added:
        return
    for constraint, head in step.orders.heads(topic, 0):
        for partition in added:
            step.orders.open(topic, partition, constraint, replace(head, next_ps=0))


def require_room(step: Step, topic: TopicRecord, partitions: int, more: int = 0) -> None:
    """That a topic with so many partitions may have its constraints and some more."""
    index = step.interests.index(topic.name)
    constraints = more + (0 if index is None else len(index))
    if constraints * partitions > MAX_ORDERS:
        raise Refusal(
            Code.LIMIT_EXCEEDED,
            f"topic {topic.name} would have {constraints} constraints in {partitions} partitions; "
            f"{MAX_ORDERS} orders are allowed",
        )


def _begin(step: Step, by: Standing, topic: TopicRecord, constraint: Constraint, at: Position) -> None:
    held = use.get(step.state, by.key)
    limit = step.genesis.limits.subscriptions_per_client
    if held.subscriptions >= limit:
        raise Refusal(Code.LIMIT_EXCEEDED, f"{by.title} has the {limit} subscriptions that it may have")
    if step.orders.head(topic.name, 0, constraint.id) is None:
        require_room(step, topic, topic.partitions, more=1)
        guard = _guard(step, topic, constraint)
        _weigh(step, topic.name, burden(constraint, guard))
        step.interests.open(topic.name, constraint, guard)
        step.state.put(guard_key(topic.name, constraint.id), guard_record(guard))
        for partition in range(topic.partitions):
            head = ConstraintRecord(constraint.text, at, next_ps=0, subscribers=1)
            step.orders.open(topic.name, partition, constraint.id, head)
    else:
        step.orders.join(topic.name, topic.partitions, constraint.id, 1)
    use.put(step.state, by.key, replace(held, subscriptions=held.subscriptions + 1))


def _guard(step: Step, topic: TopicRecord, constraint: Constraint) -> Guard | None:
    """Where the constraint is to wait in the matching index."""
    index = step.interests.index(topic.name) or MatchingIndex()
    guard = index.choose(constraint)
    if index.has_room(guard):
        return guard
    if guard is None:
        raise Refusal(
            Code.LIMIT_EXCEEDED,
            f"topic {topic.name} has the {MAX_UNGUARDED} constraints without an equality that it may have; "
            f"name a tag that the messages must have, as in kind == 1",
        )
    raise Refusal(
        Code.LIMIT_EXCEEDED,
        f"{MAX_WAITING} constraints on topic {topic.name} name the same tag with the same value, which is the most "
        f"that may; name another tag, too, that the messages must have",
    )


def _weigh(step: Step, topic: str, weight: int) -> None:
    """Count what the messages of the topic may cost more. Committed batches cannot be refused any more for what they cost."""
    pending = step.state.get(PendingRecord, pending_key(topic))
    if pending is not None:
        if weight > pending.room:
            raise Refusal(
                Code.BUSY,
                f"{pending.batches} committed batches of topic {topic} wait to be numbered, and with this constraint "
                f"matching them would cost too much; it is ordered again",
            )
        step.state.put(pending_key(topic), replace(pending, room=pending.room - weight))
    step.state.add(weight_key(topic), weight)


def _partitions(step: Step, topic: str) -> int:
    """Of a topic that has subscriptions, be it deleted: its name is not used again before they have ended."""
    record = step.state.get(TopicRecord, topic_key(topic))
    assert record is not None, "a topic's record stays"
    return record.partitions


def _end(step: Step, interest: Interest, partitions: int) -> None:
    step.state.delete(subscription_key(*interest))
    held = use.get(step.state, interest.client)
    use.put(step.state, interest.client, replace(held, subscriptions=held.subscriptions - 1))
    lives = step.orders.join(interest.topic, partitions, interest.constraint, -1)
    if not lives:
        step.state.delete(guard_key(interest.topic, interest.constraint))
    step.interests.leave(interest, last=not lives)


def _start(step: Step, topic: str, partition: int, constraint: bytes) -> PartitionStart:
    order = step.orders.head(topic, partition, constraint)
    assert order is not None, "a live constraint has a head in every partition"
    next_offset = head_of(step.state, topic, partition).next_offset
    return PartitionStart(partition, order.incarnation, order.next_ps, next_offset)
