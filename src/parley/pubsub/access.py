"""Topics as clients meet them: they exist or not, and their rules allow or not."""

from __future__ import annotations

from typing import Literal

from parley.model.errors import Code, Refusal
from parley.model.expressions import parse_rule
from parley.model.records import ClientRecord, PartitionRecord, TopicRecord, partition_key, topic_key
from parley.pubsub.state import State

__all__ = ["head_of", "require_allowed", "require_topic"]


def require_topic(state: State, name: str) -> TopicRecord:
    topic = state.get(TopicRecord, topic_key(name))
    if topic is None or topic.deleted:
        raise Refusal(Code.UNKNOWN_TOPIC, f"there is no topic {name}")
    return topic


def require_allowed(topic: TopicRecord, right: Literal["publish", "subscribe"], client: ClientRecord) -> None:
    """The rules of a topic stand in for access control lists (P26)."""
    rule = topic.publish if right == "publish" else topic.subscribe
    if not parse_rule(rule).allows(client.readable()):
        raise Refusal(Code.PERMISSION_DENIED, f"rule '{right}' of topic {topic.name}: {rule}")


def head_of(state: State, topic: str, partition: int) -> PartitionRecord:
    head = state.get(PartitionRecord, partition_key(topic, partition))
    assert head is not None, "every partition of a topic has a head"
    return head
