"""Topics: made, altered and deleted by the administrators of the organisation that they belong to (P26)."""

from __future__ import annotations

from msgspec.structs import replace

from parley.model.errors import Code, Refusal
from parley.model.expressions import parse_rule
from parley.model.names import Position
from parley.model.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.model.records import PartitionRecord, TopicRecord, partition_key, topic_key
from parley.pubsub import endings, retention, subscriptions
from parley.pubsub.access import head_of, require_topic
from parley.pubsub.records import TOPICS
from parley.pubsub.step import Step
from parley.registry import quota
from parley.registry.standing import Standing

__all__ = ["alter", "create", "delete"]


def create(step: Step, by: Standing, operation: CreateTopic, at: Position) -> None:
    organisation = by.require_administrator("create topics of its own")
    name = operation.name
    before = step.state.get(TopicRecord, topic_key(name))
    if before is not None:
        if not before.deleted:
            raise Refusal(Code.TOPIC_EXISTS, f"there is a topic {name} already, of {before.organisation}")
        # Its offsets go on, and old proofs name it: nobody else's data may stand behind the name.
        by.require_administrator_of(before.organisation, f"use the name of its deleted topic {name} again")
        if endings.is_ending(step, name):
            raise Refusal(Code.LIMIT_EXCEEDED, f"topic {name} is still being deleted; try again later")
    _require_supported(operation.policy)
    if before is None:
        quota.take(step.state, step.genesis, organisation, TOPICS, step.genesis.limits.topics)
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
    step.state.put(topic_key(name), topic)
    _begin_partitions(step, name, range(topic.partitions))


def alter(step: Step, by: Standing, operation: AlterTopic) -> None:
    topic = require_topic(step.state, operation.name)
    by.require_administrator_of(topic.organisation, f"alter topic {topic.name}")
    partitions = topic.partitions if operation.partitions is None else operation.partitions
    if partitions < topic.partitions:
        raise Refusal(
            Code.INVALID,
            f"topic {topic.name} has {topic.partitions} partitions, and partitions are never removed",
        )
    subscriptions.require_room(step, topic, partitions)
    policy = topic.policy
    altered = replace(
        topic,
        partitions=partitions,
        policy=policy if operation.retention is None else replace(policy, retention=operation.retention),
        publish=topic.publish if operation.publish is None else parse_rule(operation.publish).text,
        subscribe=topic.subscribe if operation.subscribe is None else parse_rule(operation.subscribe).text,
    )
    step.state.put(topic_key(topic.name), altered)
    added = range(topic.partitions, partitions)
    _begin_partitions(step, topic.name, added)
    retention.alter(step, altered, topic.policy.retention)
    subscriptions.extend(step, topic.name, added)


def delete(step: Step, by: Standing, operation: DeleteTopic) -> None:
    """The name stays its organisation's; whatever was published is behind the start of the log.

    Subscriptions and advertisements end from the next block on.
    """
    topic = require_topic(step.state, operation.name)
    by.require_administrator_of(topic.organisation, f"delete topic {topic.name}")
    endings.begin(step, topic.name)
    for partition in range(topic.partitions):
        end = head_of(step.state, topic.name, partition).next_offset
        retention.start_log(step, topic.name, partition, end)
        retention.forget(step, topic, partition)
    step.state.put(topic_key(topic.name), replace(topic, deleted=True))


def _begin_partitions(step: Step, topic: str, partitions: range) -> None:
    """A head in the state from the start, so that an empty partition can be proved to be empty."""
    for partition in partitions:
        key = partition_key(topic, partition)
        if step.state.get(PartitionRecord, key) is None:
            step.state.put(key, PartitionRecord(0, 0))


def _require_supported(policy: Policy) -> None:
    if policy.matching != "clear":
        raise Refusal(Code.UNSUPPORTED, f"brokers of this version match in the clear, not {policy.matching}")
    if policy.payload != "plain":
        raise Refusal(Code.UNSUPPORTED, f"brokers of this version carry plain payloads, not {policy.payload}")
