"""Topics: made, altered and deleted by the administrators of the organisation that they belong to (P26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from parley.application.block import BlockContext, Hook
from parley.application.module import Module
from parley.application.operations import Operation
from parley.application.quotas import Quota
from parley.application.rows import ChangeTable
from parley.application.state import State
from parley.model.expressions import parse_rule
from parley.model.names import Position
from parley.model.principals import Principal
from parley.model.receipts import Done
from parley.model.refusals import Invalid, LimitExceeded, Unsupported
from parley.modules.topics.access import Action, authorise
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import TopicExists, UnknownPartition, UnknownTopic
from parley.modules.topics.tables import ENDING, HEADS, TOPICS, PartitionRecord, TopicRecord
from parley.modules.topics.texts import TEXTS

CREATED = Quota("topics")


# -- what concerns other modules -------------------------------------------------------------------------------------


def _adding(block: BlockContext, topic: TopicRecord, partitions: int) -> None: ...


def _altered(block: BlockContext, before: TopicRecord, after: TopicRecord) -> None: ...


def _topic(block: BlockContext, topic: TopicRecord) -> None: ...


# May refuse; nothing is written yet.
PARTITIONS_ADDING = Hook("partitions_adding", _adding)
TOPIC_ALTERED = Hook("topic_altered", _altered)
TOPIC_DELETED = Hook("topic_deleted", _topic)
# At the beginning of later blocks, until a handler leaves something of the block's work: clear away what a deleted topic
# left, and take from `work` what that touched.
TOPIC_CLEARING = Hook("topic_clearing", _topic)


# -- operations ------------------------------------------------------------------------------------------------------


def create(block: BlockContext, by: Principal, operation: CreateTopic, at: Position) -> Done:
    organisation = by.require_administrator("create_topics")
    name, state = operation.name, block.state
    before = TOPICS.get(state, name)
    if before is not None:
        if not before.deleted:
            raise TopicExists(topic=name, organisation=before.organisation)
        # Its offsets go on, and old proofs name it: no other organisation's data may stand behind the name.
        why = by.reason_not_to_administer(before.organisation, "reuse_name", topic=name)
        if why is not None:
            raise why
        if ENDING.has(state, name):  # orders of the old topic would be taken for orders of a new one
            raise LimitExceeded("ending", topic=name)
    _require_supported(operation.policy)
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
    topic = require(block.state, by, Action.ALTER, operation.name)
    partitions = topic.partitions if operation.partitions is None else operation.partitions
    if partitions < topic.partitions:
        raise Invalid("fewer_partitions", topic=topic.name, partitions=topic.partitions)
    block.call(PARTITIONS_ADDING, block, topic, partitions)
    policy = topic.policy
    altered = replace(
        topic,
        partitions=partitions,
        policy=policy if operation.retention is None else replace(policy, retention=operation.retention),
        publish=topic.publish if operation.publish is None else parse_rule(operation.publish).text,
        subscribe=topic.subscribe if operation.subscribe is None else parse_rule(operation.subscribe).text,
    )
    TOPICS.put(block.state, topic.name, record=altered)
    _begin_partitions(block.state, topic.name, range(topic.partitions, partitions))
    block.call(TOPIC_ALTERED, block, topic, altered)
    return Done()


def delete(block: BlockContext, by: Principal, operation: DeleteTopic, _at: Position) -> Done:
    """Delete a topic. Its name stays its organisation's; what it leaves is cleared away from the next block on."""
    topic = require(block.state, by, Action.DELETE, operation.name)
    ENDING.put(block.state, topic.name, record=b"")
    block.call(TOPIC_DELETED, block, topic)
    TOPICS.put(block.state, topic.name, record=replace(topic, deleted=True))
    return Done()


# -- for other modules -----------------------------------------------------------------------------------------------


def require(state: State, by: Principal, action: Action, name: str, partition: int = 0) -> TopicRecord:
    """The topic, if the principal may do this to it. Raises `Refused`."""
    topic = TOPICS.get(state, name)
    if (why := authorise(by, action, name, topic, partition)) is not None:
        raise why
    assert topic is not None
    return topic


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


def clear(block: BlockContext) -> None:
    """Clear away what deleted topics leave, as much as the block's work allows."""
    for (name,) in ENDING.first_stored(block.state, block.work):
        block.call(TOPIC_CLEARING, block, record_of(block.state, name))
        if block.work <= 0:
            return
        ENDING.delete(block.state, name)
        block.work -= 1


def _begin_partitions(state: State, topic: str, partitions: range) -> None:
    """Write the heads of new partitions, so that an empty partition can be proved to be empty."""
    for partition in partitions:
        if not HEADS.has(state, topic, partition):
            HEADS.put(state, topic, partition, record=PartitionRecord(0, 0))


def _require_supported(policy: Policy) -> None:
    if policy.matching != "clear":
        raise Unsupported("matching", matching=policy.matching)
    if policy.payload != "plain":
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


MODULE = Module(
    name="topics",
    operations={CreateTopic: create, AlterTopic: alter, DeleteTopic: delete},
    tables=(TOPICS, HEADS, ENDING),
    refusals=(UnknownTopic, TopicExists, UnknownPartition),
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
    begin_block=clear,
)
