"""Topics: made, altered and deleted by the administrators of the organisation that they belong to (P26)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from parley.application.block import BlockContext, Hook
from parley.application.module import Module
from parley.application.operations import Operation
from parley.application.rows import ChangeTable
from parley.application.state import State
from parley.application.tables import Reader
from parley.application.work import of_expression
from parley.model.expressions import parse_rule
from parley.model.names import Position
from parley.model.principals import Principal
from parley.model.receipts import Done
from parley.model.refusals import Busy, Invalid, LimitExceeded, Unsupported
from parley.modules.topics.access import (
    Action,
    authorise,
    reason_not_this_one,
    reason_not_to_describe,
    rule_of,
    unknown,
)
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import TopicExists, TopicReplaced, UnknownPartition, UnknownTopic
from parley.modules.topics.tables import (
    CREATED,
    ENDING,
    GROWING,
    HEADS,
    TOPICS,
    PartitionRecord,
    TopicRecord,
)
from parley.modules.topics.texts import TEXTS

# -- what concerns other modules -------------------------------------------------------------------------------------


def _adding(block: BlockContext, topic: TopicRecord, partitions: int) -> None: ...


def _altered(block: BlockContext, before: TopicRecord, after: TopicRecord) -> None: ...


def _topic(block: BlockContext, topic: TopicRecord) -> None: ...


# May refuse; nothing is written yet.
PARTITIONS_ADDING = Hook("partitions_adding", _adding)
# In this block and later ones, until the handlers leave something of the block's work: get the topic ready to have so many
# partitions. Nobody sees them before, and from then on what begins on the topic begins in all of them.
TOPIC_GROWING = Hook("topic_growing", _adding)
TOPIC_ALTERED = Hook("topic_altered", _altered)
TOPIC_DELETED = Hook("topic_deleted", _topic)
# In later blocks, until the handlers leave something of the block's work: clear away what a deleted topic left.
TOPIC_CLEARING = Hook("topic_clearing", _topic)

Settings = Mapping[str, tuple[str, ...]]  # what the dials of a policy may be set to

GROWN_AT_ONCE = 64  # work that making a topic larger may take in its own block; what takes more is a job


# -- operations ------------------------------------------------------------------------------------------------------


def create(
    settings: Settings, block: BlockContext, by: Principal, operation: CreateTopic, at: Position
) -> Done:
    organisation = by.require_administrator("create_topics")
    name, state = operation.name, block.state
    before = TOPICS.get(state, name)
    if before is not None:
        # Names belong to the whole network, so an administrator has to learn that one is taken. The owner, and whether
        # the topic was deleted, are shown only to those who may describe it.
        if reason_not_to_describe(by, name, before) is not None:
            raise TopicExists("taken", topic=name)
        if not before.deleted:
            raise TopicExists(topic=name, organisation=before.organisation)
        # Its offsets go on, and old proofs name it: no other organisation's data may stand behind the name.
        why = by.reason_not_to_administer(before.organisation, "reuse_name", topic=name)
        if why is not None:
            raise why
        # Orders of the old topic would be taken for orders of a new one.
        if ENDING.has(state, organisation, name):
            raise LimitExceeded("ending", topic=name)
    _require_supported(operation.policy, settings)
    if before is None:
        CREATED.require(block, organisation, block.genesis.limits.topics)
        CREATED.add(state, organisation)
    topic = TopicRecord(
        name,
        organisation,
        operation.partitions,
        operation.policy,
        parse_rule(operation.publish).text,
        parse_rule(operation.subscribe).text,
        at,
        deleted=False,
    )
    TOPICS.put(state, name, record=topic)
    _begin_partitions(state, name, range(topic.partitions))
    return Done()


def alter(block: BlockContext, by: Principal, operation: AlterTopic, _at: Position) -> Done:
    """Alter a topic. It has more partitions when there is all that belongs to them: at once if that is little."""
    topic = require(block, by, Action.ALTER, operation.name)
    partitions = topic.partitions if operation.partitions is None else operation.partitions
    if partitions < topic.partitions:
        raise Invalid("fewer_partitions", topic=topic.name, partitions=topic.partitions)
    if GROWING.has(block.state, topic.organisation, topic.name):
        raise Busy("growing", topic=topic.name)
    if partitions > topic.partitions:
        block.call(PARTITIONS_ADDING, block, topic, partitions)
    policy = topic.policy
    altered = replace(
        topic,
        policy=policy if operation.retention is None else replace(policy, retention=operation.retention),
        publish=topic.publish if operation.publish is None else parse_rule(operation.publish).text,
        subscribe=topic.subscribe if operation.subscribe is None else parse_rule(operation.subscribe).text,
    )
    TOPICS.put(block.state, topic.name, record=altered)
    block.call(TOPIC_ALTERED, block, topic, altered)
    if partitions > topic.partitions:
        GROWING.put(block.state, topic.organisation, topic.name, record=partitions)
        if block.at_most(GROWN_AT_ONCE, grow, block, topic.organisation, topic.name):
            GROWING.delete(block.state, topic.organisation, topic.name)
    return Done()


def grow(block: BlockContext, organisation: str, name: str) -> bool:
    """Go on making a topic larger; returns whether it is. Its number of partitions changes in one block, for everybody."""
    topic, partitions = record_of(block.state, name), GROWING.count(block.state, organisation, name)
    block.call(TOPIC_GROWING, block, topic, partitions)
    if block.work <= 0:
        return False
    TOPICS.put(block.state, name, record=replace(topic, partitions=partitions))
    _begin_partitions(block.state, name, range(topic.partitions, partitions))
    block.work -= partitions - topic.partitions
    return True


def delete(block: BlockContext, by: Principal, operation: DeleteTopic, _at: Position) -> Done:
    """Delete a topic. Its name stays its organisation's; what it leaves is cleared away from the next block on."""
    topic = require(block, by, Action.DELETE, operation.name)
    ENDING.put(block.state, topic.organisation, topic.name, record=b"")
    GROWING.delete(block.state, topic.organisation, topic.name)
    block.call(TOPIC_DELETED, block, topic)
    TOPICS.put(block.state, topic.name, record=replace(topic, deleted=True))
    return Done()


def clear(block: BlockContext, _organisation: str, name: str) -> bool:
    """Clear away what a deleted topic leaves; returns whether all is."""
    block.call(TOPIC_CLEARING, block, record_of(block.state, name))
    return block.work > 0


# -- what operations touch -------------------------------------------------------------------------------------------


def _cost_of_topic(reader: Reader, by: Principal, operation: AlterTopic | DeleteTopic) -> int:
    """Heads and ages of all partitions; and what a topic grows by at once.

    Others than its administrators are refused, and what fits in a block must not tell them of the topic.
    """
    topic = reader.read(TOPICS, operation.name)
    if topic is None or topic.deleted or by.administers != topic.organisation:
        return 0
    before = topic.partitions
    after = before if isinstance(operation, DeleteTopic) else operation.partitions or before
    return 2 * before + (0 if after <= before else GROWN_AT_ONCE + after - before)


# -- for other modules -----------------------------------------------------------------------------------------------


def require(
    block: BlockContext,
    by: Principal,
    action: Action,
    name: str,
    partition: int = 0,
    *,
    topic_id: Position | None = None,
) -> TopicRecord:
    """The topic, if the principal may do this to it, and it is the one of this id. Raises `Refused`."""
    topic = TOPICS.get(block.state, name)
    if topic_id is not None and (late := replaced(block, by, name, topic_id)) is not None:
        raise late
    if topic is not None and (rule := rule_of(topic, action)):
        block.spend(of_expression(rule), done=True)
    if (why := authorise(by, action, name, topic, partition)) is not None:
        if topic is not None:  # whether the other rule lets it know of the topic was looked at, too
            block.spend(of_expression(topic.publish) + of_expression(topic.subscribe), done=True)
        raise why
    assert topic is not None
    if topic_id not in (None, topic.created):
        raise unknown(name)
    return topic


def replaced(block: BlockContext, by: Principal, name: str, topic_id: Position) -> TopicReplaced | None:
    """The refusal of what was meant for an earlier topic of this name; None: it was not, or the principal may not know.

    What is refused with it can never be applied: the earlier topic has gone for good.
    """
    topic = TOPICS.get(block.state, name)
    if topic is None or topic_id >= topic.created:
        return None
    block.spend(of_expression(topic.publish) + of_expression(topic.subscribe), done=True)
    why = reason_not_this_one(by, name, topic, topic_id)
    return why if isinstance(why, TopicReplaced) else None


def require_topic(state: State, name: str) -> TopicRecord:
    """The topic, if it exists. Raises `UnknownTopic`."""
    topic = TOPICS.get(state, name)
    if topic is None or topic.deleted:
        raise UnknownTopic(topic=name)
    return topic


def record_of(state: State, name: str) -> TopicRecord:
    """The record of a topic that exists or existed."""
    topic = TOPICS.get(state, name)
    assert topic is not None, "a topic's record stays"
    return topic


def head_of(state: State, topic: str, partition: int) -> PartitionRecord:
    head = HEADS.get(state, topic, partition)
    assert head is not None, "every partition of a topic has a head"
    return head


def partitions_to_be(reader: Reader, topic: TopicRecord) -> int:
    """How many partitions the topic has, or is going to have: what begins on it begins in all of them."""
    return reader.read(GROWING, topic.organisation, topic.name) or topic.partitions


def _begin_partitions(state: State, topic: str, partitions: range) -> None:
    """Write the heads of new partitions, so that an empty partition can be proved to be empty."""
    for partition in partitions:
        if not HEADS.has(state, topic, partition):
            HEADS.put(state, topic, partition, record=PartitionRecord(0, 0))


def _require_supported(policy: Policy, settings: Settings) -> None:
    if policy.matching not in settings["matching"]:
        raise Unsupported("matching", matching=policy.matching)
    if policy.payload not in settings["payload"]:
        raise Unsupported("payload", payload=policy.payload)


def _row(operation: Operation) -> Mapping[str, Any] | None:
    match operation:
        case CreateTopic():
            policy = operation.policy
            return {
                **_settings(operation),
                "retention": policy.retention,
                "matching": policy.matching,
                "payload": policy.payload,
            }
        case AlterTopic():
            return {**_settings(operation), "retention": operation.retention}
        case DeleteTopic():
            return {"topic": operation.name}
        case _:
            return None


def _settings(operation: CreateTopic | AlterTopic) -> dict[str, Any]:
    return {
        "topic": operation.name,
        "partitions": operation.partitions,
        "publish": operation.publish,
        "subscribe": operation.subscribe,
    }


def module(*, matching: tuple[str, ...], payload: tuple[str, ...]) -> Module:
    """Topics whose policies may have these settings."""
    settings = {"matching": matching, "payload": payload}
    return Module(
        name="topics",
        operations={CreateTopic: partial(create, settings), AlterTopic: alter, DeleteTopic: delete},
        settings=settings,
        costs={
            CreateTopic: lambda _reader, _by, operation: operation.partitions,
            AlterTopic: _cost_of_topic,
            DeleteTopic: _cost_of_topic,
        },
        jobs={ENDING: clear, GROWING: grow},
        tables=(TOPICS, HEADS, ENDING, GROWING),
        refusals=(UnknownTopic, TopicExists, TopicReplaced, UnknownPartition),
        texts=TEXTS,
        changes=(
            ChangeTable(
                "topics",
                {
                    "topic": "text",
                    "partitions": "int",
                    "publish": "text",
                    "subscribe": "text",
                    "retention": "long",
                    "matching": "text",
                    "payload": "text",
                },
                _row,
            ),
        ),
    )
