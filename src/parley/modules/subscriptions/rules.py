"""Subscriptions under a lease. The first of a constraint begins its orders, the last one ends them (P6)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from parley.application.block import BlockContext, Hook
from parley.application.module import IndexEntries, Module
from parley.application.quotas import HELD
from parley.application.tables import encode_value
from parley.model.expressions import Constraint, parse_constraint
from parley.model.names import Position
from parley.model.principals import ClientRecord, Principal
from parley.model.receipts import Done, Leaf
from parley.model.refusals import LimitExceeded
from parley.modules.registry.rules import CLIENT_REVOKED
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX, Subscription, guard_record
from parley.modules.subscriptions.matching import MAX_UNGUARDED, MAX_WAITING, Guard, MatchingIndex, burden
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.orders import ORDERS
from parley.modules.subscriptions.receipts import (
    Closed,
    Match,
    PartitionStart,
    Subscribed,
)
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.subscriptions.tables import (
    GUARDS,
    ORDER_HEADS,
    ORDER_LEAVES,
    SUBSCRIPTIONS,
    ConstraintRecord,
    LeafPlace,
    SubscriptionRecord,
)
from parley.modules.subscriptions.texts import TEXTS
from parley.modules.topics.access import Action
from parley.modules.topics.rules import (
    PARTITIONS_ADDING,
    TOPIC_ALTERED,
    TOPIC_CLEARING,
    head_of,
    record_of,
    require,
    require_topic,
)
from parley.modules.topics.tables import TopicRecord

MAX_ORDERS = 65_536  # of one topic: distinct constraints times partitions
_SUBSCRIPTIONS = "subscriptions"  # what a client holds


def _opening(block: BlockContext, topic: str, weight: int) -> None: ...


# A new constraint makes every message of the topic cost up to `weight` comparisons more. The first hook may refuse, so
# its handlers write nothing; the second comes when all have agreed.
CONSTRAINT_OPENING = Hook("constraint_opening", _opening)
CONSTRAINT_OPENED = Hook("constraint_opened", _opening)


def subscribe(block: BlockContext, by: Principal, operation: Subscribe, at: Position) -> Subscribed:
    topic = require(block.state, by, Action.SUBSCRIBE, operation.topic)
    constraint = parse_constraint(operation.constraint)
    subscription = Subscription(topic.name, constraint.id, by.key)
    if not SUBSCRIPTIONS.has(block.state, *subscription):
        _begin(block, by, topic, constraint, at)
    lease_until = block.time + block.genesis.timeouts.lease
    SUBSCRIPTIONS.put(block.state, *subscription, record=SubscriptionRecord(constraint.text, lease_until))
    block[SUBSCRIPTION_INDEX].join(subscription, lease_until)
    starts = tuple(
        _start(block, topic.name, partition, constraint.id) for partition in range(topic.partitions)
    )
    return Subscribed(constraint.id, starts, lease_until)


def unsubscribe(block: BlockContext, by: Principal, operation: Unsubscribe, _at: Position) -> Done:
    client = by.require_client()
    topic = require_topic(block.state, operation.topic)
    constraint = parse_constraint(operation.constraint)
    subscription = Subscription(topic.name, constraint.id, client.key)
    if not SUBSCRIPTIONS.has(block.state, *subscription):
        raise NotSubscribed("constraint", client=by.title, topic=topic.name, constraint=constraint.text)
    _end(block, subscription, topic.partitions)
    return Done()


def expire(block: BlockContext) -> None:
    """End the subscriptions whose lease is over, the oldest first; those too many for one block wait for the next.

    After a standstill all leases are over at once: what this touches is taken from the block's work.
    """
    index = block[SUBSCRIPTION_INDEX]
    while block.work > 0 and (subscription := index.lapsed(block.time)) is not None:
        partitions = record_of(block.state, subscription.topic).partitions
        _end(block, subscription, partitions)
        block.work -= partitions


def end_of_client(block: BlockContext, client: ClientRecord) -> None:
    for subscription in block[SUBSCRIPTION_INDEX].of_client(client.key):
        _end(block, subscription, record_of(block.state, subscription.topic).partitions)


def end_of_topic(block: BlockContext, topic: TopicRecord) -> None:
    """End subscriptions to a deleted topic, as many as the block's work allows."""
    most = -(-block.work // topic.partitions)
    for key in SUBSCRIPTIONS.first_stored(block.state, most, topic.name):
        _end(block, Subscription(*key), topic.partitions)
        block.work -= topic.partitions


def extend(block: BlockContext, before: TopicRecord, after: TopicRecord) -> None:
    """Open an order for every live constraint in new partitions, of the same incarnation as in the old ones."""
    added = range(before.partitions, after.partitions)
    if not added:
        return
    orders = block[ORDERS]
    for constraint, head in orders.heads(after.name, 0):
        for partition in added:
            orders.open(after.name, partition, constraint, replace(head, next_ps=0))


def require_room(block: BlockContext, topic: TopicRecord, partitions: int, more: int = 0) -> None:
    """Raises `LimitExceeded` unless a topic with so many partitions may have its constraints and some more."""
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    constraints = more + (0 if index is None else len(index))
    if constraints * partitions > MAX_ORDERS:
        raise LimitExceeded(
            "orders", topic=topic.name, constraints=constraints, partitions=partitions, limit=MAX_ORDERS
        )


def _begin(
    block: BlockContext, by: Principal, topic: TopicRecord, constraint: Constraint, at: Position
) -> None:
    limit = block.genesis.limits.subscriptions_per_client
    if HELD.count(block.state, _SUBSCRIPTIONS, by.key) >= limit:
        raise LimitExceeded("subscriptions", client=by.title, limit=limit)
    orders = block[ORDERS]
    if orders.head(topic.name, 0, constraint.id) is None:
        require_room(block, topic, topic.partitions, more=1)
        guard = _guard(block, topic, constraint)
        weight = burden(constraint, guard)
        block.call(CONSTRAINT_OPENING, block, topic.name, weight)
        block.call(CONSTRAINT_OPENED, block, topic.name, weight)
        block[SUBSCRIPTION_INDEX].open(topic.name, constraint, guard)
        GUARDS.put(block.state, topic.name, constraint.id, record=guard_record(guard))
        for partition in range(topic.partitions):
            head = ConstraintRecord(constraint.text, at, next_ps=0, subscribers=1)
            orders.open(topic.name, partition, constraint.id, head)
    else:
        orders.join(topic.name, topic.partitions, constraint.id, 1)
    HELD.add(block.state, _SUBSCRIPTIONS, by.key, by=1)


def _guard(block: BlockContext, topic: TopicRecord, constraint: Constraint) -> Guard | None:
    """Where the constraint is to wait in the matching index. Raises `LimitExceeded`."""
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name) or MatchingIndex()
    guard = index.choose(constraint)
    if index.has_room(guard):
        return guard
    if guard is None:
        raise LimitExceeded("unguarded", topic=topic.name, limit=MAX_UNGUARDED)
    raise LimitExceeded("waiting", topic=topic.name, limit=MAX_WAITING)


def _end(block: BlockContext, subscription: Subscription, partitions: int) -> None:
    SUBSCRIPTIONS.delete(block.state, *subscription)
    HELD.add(block.state, _SUBSCRIPTIONS, subscription.client, by=-1)
    lives = block[ORDERS].join(subscription.topic, partitions, subscription.constraint, -1)
    if not lives:
        GUARDS.delete(block.state, subscription.topic, subscription.constraint)
    block[SUBSCRIPTION_INDEX].leave(subscription, last=not lives)


def _start(block: BlockContext, topic: str, partition: int, constraint: bytes) -> PartitionStart:
    order = block[ORDERS].head(topic, partition, constraint)
    assert order is not None, "a live constraint has a head in every partition"
    next_offset = head_of(block.state, topic, partition).next_offset
    return PartitionStart(partition, order.incarnation, order.next_ps, next_offset)


def _certify(block: BlockContext) -> Iterable[Leaf]:
    orders = block[ORDERS]
    block.executed.add("matches", orders.numbered)
    return orders.leaves()


def _index_match(height: int, position: int, leaf: Match) -> IndexEntries:
    order = (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation)
    yield ORDER_LEAVES.place(*order, leaf.first_ps), encode_value(LeafPlace(height, position))


def _index_closed(height: int, position: int, leaf: Closed) -> IndexEntries:
    order = (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation)
    yield ORDER_LEAVES.place(*order, leaf.final_ps), encode_value(LeafPlace(height, position))


MODULE = Module(
    name="subscriptions",
    operations={Subscribe: subscribe, Unsubscribe: unsubscribe},
    tables=(SUBSCRIPTIONS, ORDER_HEADS, GUARDS, ORDER_LEAVES),
    outcomes=(Subscribed,),
    leaves=(Match, Closed),
    refusals=(NotSubscribed,),
    texts=TEXTS,
    derived=(SUBSCRIPTION_INDEX,),
    hooks={
        CLIENT_REVOKED: end_of_client,
        PARTITIONS_ADDING: require_room,
        TOPIC_ALTERED: extend,
        TOPIC_CLEARING: end_of_topic,
    },
    begin_block=expire,
    certify=_certify,
    index={Match: _index_match, Closed: _index_closed},
)
