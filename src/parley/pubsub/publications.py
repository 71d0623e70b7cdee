"""Publishing: offsets for all messages of a batch, and places in the orders of the constraints that they match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from parley.model.batches import Batch, Message, decode_message_header
from parley.model.errors import Code, Refusal
from parley.model.names import Value
from parley.model.receipts import Published
from parley.model.records import partition_key
from parley.pubsub import retention
from parley.pubsub.access import head_of, require_allowed, require_topic
from parley.pubsub.matching import MatchingIndex
from parley.pubsub.orders import Item
from parley.pubsub.step import Step
from parley.registry.standing import Standing

__all__ = ["publish"]

_Tags = Mapping[str, Value]


def publish(step: Step, by: Standing, batch: Batch) -> Published:
    header = batch.header
    client = by.require_client()
    topic = require_topic(step.state, header.topic)
    if header.partition >= topic.partitions:
        raise Refusal(
            Code.UNKNOWN_PARTITION, f"topic {topic.name} has partitions 0 to {topic.partitions - 1} only"
        )
    require_allowed(topic, "publish", client)
    head = head_of(step.state, topic.name, header.partition)
    index = step.interests.index(topic.name)
    if index is not None:
        tags = [_tags(message) if index.needs_tags else _NO_TAGS for message in batch.messages]
        step.budget.spend(sum(map(index.cost, tags)))
        matches = _matches(index, batch.messages, tags, head.next_offset)
        step.orders.number(topic.name, header.partition, matches)
    after = replace(head, next_offset=head.next_offset + header.count)
    step.state.put(partition_key(topic.name, header.partition), after)
    retention.note(step, topic, header.partition, head.next_offset)
    return Published(head.next_offset)


def _matches(
    index: MatchingIndex, messages: Sequence[Message], tags: Sequence[_Tags], first: int
) -> dict[bytes, list[Item]]:
    """The messages that each constraint matches, in order."""
    found: dict[bytes, list[Item]] = {}
    always = None if index.needs_tags else index.match(_NO_TAGS)
    for offset, (message, its) in enumerate(zip(messages, tags, strict=True), first):
        constraints = index.match(its) if always is None else always
        if constraints:
            item = (offset, message.leaf())
            for constraint in constraints:
                found.setdefault(constraint, []).append(item)
    return found


def _tags(message: Message) -> _Tags:
    return dict(decode_message_header(message.header).tags)


_NO_TAGS: _Tags = {}
