"""Subscriptions under a lease. The first of a constraint begins its orders, the last one ends them (P6)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from parley.application.block import BlockContext, Hook
from parley.application.module import IndexEntries, Module
from parley.application.quotas import HELD
from parley.application.tables import Reader, encode_value
from parley.application.work import OPERATION
from parley.model.expressions import Constraint, parse_constraint
from parley.model.names import Position
from parley.model.principals import ClientRecord, Principal
from parley.model.receipts import Done, Leaf
from parley.model.refusals import LimitExceeded
from parley.modules.registry.rules import CLIENT_LEAVING
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX, Subscription, equalities_of
from parley.modules.subscriptions.matching import MAX_UNGUARDED, MAX_WAITING, Burden, Guard, MatchingIndex
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
    CONSTRAINTS,
    ORDER_HEADS,
    ORDER_LEAVES,
    SUBSCRIPTIONS,
    LeafPlace,
    LiveConstraint,
    SubscriptionRecord,
)
from parley.modules.subscriptions.texts import TEXTS
from parley.modules.topics.access import Action, authorise
from parley.modules.topics.rules import (
    PARTITIONS_ADDING,
    TOPIC_CLEARING,
    TOPIC_GROWING,
    head_of,
    partitions_to_be,
    require,
    require_topic,
)
from parley.modules.topics.tables import TOPICS, TopicRecord

MAX_ORDERS = 65_536  # of one topic: distinct constraints times partitions
READS = 4  # entries that are read in the time in which one is written
_SUBSCRIPTIONS = "subscriptions"  # what a client holds


def _opening(block: BlockContext, topic: str, burden: Burden) -> None: ...


# A new constraint makes the batches of the topic cost up to `burden` more. May refuse; nothing is written yet.
CONSTRAINT_OPENING = Hook("constraint_opening", _opening)


def subscribe(block: BlockContext, by: Principal, operation: Subscribe, at: Position) -> Subscribed:
    topic = require(block, by, Action.SUBSCRIBE, operation.topic, topic_id=operation.topic_id)
    constraint = parse_constraint(operation.constraint)
    subscription = Subscription(topic.name, constraint.id, by.key)
    if not SUBSCRIPTIONS.has(block.state, *subscription.key):
        _begin(block, by, topic, constraint, at)
    lease_until = block.time + block.genesis.timeouts.lease
    SUBSCRIPTIONS.put(block.state, *subscription.key, record=SubscriptionRecord(constraint.text, lease_until))
    block[SUBSCRIPTION_INDEX].join(subscription, lease_until)
    starts = tuple(
        _start(block, topic.name, partition, constraint.id) for partition in range(topic.partitions)
    )
    return Subscribed(constraint.id, starts, lease_until)


def unsubscribe(block: BlockContext, by: Principal, operation: Unsubscribe, _at: Position) -> Done:
    client = by.require_client()
    constraint = parse_constraint(operation.constraint)
    subscription = Subscription(operation.topic, constraint.id, client.key)
    topic, topic_id = TOPICS.get(block.state, operation.topic), operation.topic_id
    is_there = topic is not None and topic.created == topic_id
    if not is_there or not SUBSCRIPTIONS.has(block.state, *subscription.key):
        topic = require(block, by, Action.DESCRIBE, operation.topic, topic_id=topic_id)
        raise NotSubscribed("constraint", client=by.title, topic=topic.name, constraint=constraint.text)
    require_topic(block.state, operation.topic)
    _end(block, subscription)
    return Done()


def expire(block: BlockContext) -> None:
    """End the subscriptions whose lease is over, the oldest first; those too many for one block wait for the next.

    After a standstill all leases are over at once: jobs are left half of the block's housekeeping.
    """
    index, least = block[SUBSCRIPTION_INDEX], block.work // 2
    while block.work > least and (subscription := index.lapsed(block.time)) is not None:
        block.work -= _end(block, subscription)


def end_of_client(block: BlockContext, client: ClientRecord) -> None:
    """End subscriptions of a revoked client, as many as the block's work allows. Until then their orders go on."""
    for subscription in block[SUBSCRIPTION_INDEX].of_client(client.key):
        if block.work <= 0:
            return
        block.work -= _end(block, subscription)


def end_of_topic(block: BlockContext, topic: TopicRecord) -> None:
    """End subscriptions to a deleted topic, as many as the block's work allows."""
    for key in SUBSCRIPTIONS.first_stored(block.state, max(block.work, 0), topic.name):
        if block.work <= 0:
            return
        # Its lease may have ended in this block. What was listed counts all the same: the topic is cleared when there is
        # work left, and then nothing may be.
        is_there = SUBSCRIPTIONS.has(block.state, *key)
        block.work -= _end(block, Subscription(*key)) if is_there else 1


def widen(block: BlockContext, topic: TopicRecord, partitions: int) -> None:
    """Open the orders of live constraints in new partitions, of the same incarnation as in the old ones.

    As many as the block's work allows, each constraint's within one block.
    """
    state, added = block.state, range(topic.partitions, partitions)
    for key in CONSTRAINTS.first(state, max(block.work, 0), topic.name, topic.partitions):
        if block.work <= 0:
            return
        live = CONSTRAINTS.get(state, *key)
        assert live is not None, "it was just found"
        block[ORDERS].open(topic.name, added, key[2], live.constraint, live.incarnation)
        CONSTRAINTS.delete(state, *key)
        CONSTRAINTS.put(state, topic.name, partitions, key[2], record=live)
        block[SUBSCRIPTION_INDEX].widen(topic.name, key[2], partitions)
        block.work -= len(added) + 2


def require_room(block: BlockContext, topic: TopicRecord, partitions: int, more: int = 0) -> None:
    """Raises `LimitExceeded` unless a topic with so many partitions may have its constraints and some more."""
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    constraints = more + (0 if index is None else len(index))
    if constraints * partitions > MAX_ORDERS:
        raise LimitExceeded("orders", topic=topic.name, partitions=partitions, limit=MAX_ORDERS)


def _begin(
    block: BlockContext, by: Principal, topic: TopicRecord, constraint: Constraint, at: Position
) -> None:
    limit = block.genesis.limits.subscriptions_per_client
    if HELD.count(block.state, _SUBSCRIPTIONS, by.key) >= limit:
        raise LimitExceeded("subscriptions", client=by.title, limit=limit)
    partitions = block[SUBSCRIPTION_INDEX].partitions(topic.name, constraint.id)
    if partitions:
        key = (topic.name, partitions, constraint.id)
        live = _live(block, key)
        CONSTRAINTS.put(block.state, *key, record=replace(live, subscribers=live.subscribers + 1))
    else:
        _open(block, topic, constraint, at)
    HELD.add(block.state, _SUBSCRIPTIONS, by.key, by=1)


def _open(block: BlockContext, topic: TopicRecord, constraint: Constraint, at: Position) -> None:
    """Begin the orders of a constraint, in all partitions that the topic has or is going to have."""
    partitions = partitions_to_be(block.state, topic)
    require_room(block, topic, partitions, more=1)
    guard = _guard(block, topic, constraint)
    block.call(CONSTRAINT_OPENING, block, topic.name, Burden.of(constraint, guard))
    block[SUBSCRIPTION_INDEX].open(topic.name, constraint, guard, partitions, at[0])
    live = LiveConstraint(constraint.text, at, 1, equalities_of(guard))
    CONSTRAINTS.put(block.state, topic.name, partitions, constraint.id, record=live)
    block[ORDERS].open(topic.name, range(partitions), constraint.id, constraint.text, at)


def _guard(block: BlockContext, topic: TopicRecord, constraint: Constraint) -> Guard | None:
    """Where the constraint is to wait in the matching index. Raises `LimitExceeded`."""
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name) or MatchingIndex()
    guard = index.choose(constraint)
    if index.has_room(guard):
        return guard
    if guard is None:
        raise LimitExceeded("unguarded", topic=topic.name, limit=MAX_UNGUARDED)
    raise LimitExceeded("waiting", topic=topic.name, limit=MAX_WAITING)


def _end(block: BlockContext, subscription: Subscription) -> int:
    """End a subscription, and with the last one of a constraint all its orders. Returns what that touches."""
    index = block[SUBSCRIPTION_INDEX]
    partitions = index.partitions(subscription.topic, subscription.constraint)
    key = (subscription.topic, partitions, subscription.constraint)
    live = _live(block, key)
    SUBSCRIPTIONS.delete(block.state, *subscription.key)
    HELD.add(block.state, _SUBSCRIPTIONS, subscription.client, by=-1)
    index.leave(subscription, last=live.subscribers == 1)
    if live.subscribers > 1:
        CONSTRAINTS.put(block.state, *key, record=replace(live, subscribers=live.subscribers - 1))
        return OPERATION
    CONSTRAINTS.delete(block.state, *key)
    block[ORDERS].close(*key)
    return OPERATION + partitions


def _live(block: BlockContext, key: tuple[str, int, bytes]) -> LiveConstraint:
    live = CONSTRAINTS.get(block.state, *key)
    assert live is not None, "every subscription's constraint is live"
    return live


def _start(block: BlockContext, topic: str, partition: int, constraint: bytes) -> PartitionStart:
    order = block[ORDERS].head(topic, partition, constraint)
    assert order is not None, "a live constraint has a head in every partition"
    next_offset = head_of(block.state, topic, partition).next_offset
    return PartitionStart(partition, order.incarnation, order.next_ps, next_offset)


def _cost_of_subscribe(reader: Reader, by: Principal, operation: Subscribe) -> int:
    """The receipt reads the heads of all partitions; a new constraint writes them.

    A refused operation costs nothing more. Otherwise a client could see from what fits in a block whether the topic exists,
    or which constraints others have.
    """
    topic = reader.read(TOPICS, operation.topic)
    if topic is None or authorise(by, Action.SUBSCRIBE, operation.topic, topic) is not None:
        return 0
    if topic.created != operation.topic_id:
        return 0
    partitions, constraint = partitions_to_be(reader, topic), parse_constraint(operation.constraint).id
    known = reader.read(SUBSCRIPTIONS, topic.name, constraint, by.key) is not None
    if known or reader.read(CONSTRAINTS, topic.name, partitions, constraint) is not None:
        return -(-topic.partitions // READS)
    return partitions


def _cost_of_unsubscribe(reader: Reader, by: Principal, operation: Unsubscribe) -> int:
    """Ending the last subscription of a constraint closes its orders.

    Without a subscription it costs nothing, so that the cost tells nothing of others.
    """
    topic, constraint = reader.read(TOPICS, operation.topic), parse_constraint(operation.constraint).id
    if topic is None or topic.created != operation.topic_id:
        return 0
    if reader.read(SUBSCRIPTIONS, topic.name, constraint, by.key) is None:
        return 0
    return partitions_to_be(reader, topic)


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
    costs={Subscribe: _cost_of_subscribe, Unsubscribe: _cost_of_unsubscribe},
    tables=(SUBSCRIPTIONS, ORDER_HEADS, CONSTRAINTS, ORDER_LEAVES),
    outcomes=(Subscribed,),
    leaves=(Match, Closed),
    refusals=(NotSubscribed,),
    texts=TEXTS,
    derived=(SUBSCRIPTION_INDEX,),
    hooks={
        CLIENT_LEAVING: end_of_client,
        PARTITIONS_ADDING: require_room,
        TOPIC_GROWING: widen,
        TOPIC_CLEARING: end_of_topic,
    },
    begin_block=expire,
    certify=_certify,
    index={Match: _index_match, Closed: _index_closed},
)
