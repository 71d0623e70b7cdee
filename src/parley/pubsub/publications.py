"""Publishing: offsets for all messages of a batch, and places in the orders of the constraints that they match."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from parley.model.batches import Batch, Message, decode_message_header
from parley.model.errors import Code, Refusal
from parley.model.receipts import Published
from parley.model.records import partition_key
from parley.pubsub.access import head_of, require_allowed, require_topic
from parley.pubsub.matching import MatchingIndex
from parley.pubsub.orders import Item
from parley.pubsub.step import Step
from parley.registry.standing import Standing

__all__ = ["MAX_NUMBERED", "publish"]

MAX_NUMBERED = 262_144  # places that one block may give: messages times the constraints that each matches


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
        room = MAX_NUMBERED - step.orders.numbered
        step.orders.number(
            topic.name, header.partition, _matches(index, batch.messages, head.next_offset, room)
        )
    after = replace(head, next_offset=head.next_offset + header.count)
    step.state.put(partition_key(topic.name, header.partition), after)
    return Published(head.next_offset)


def _matches(
    index: MatchingIndex, messages: Sequence[Message], first: int, room: int
) -> dict[bytes, list[Item]]:
    """The messages that each constraint matches, in order."""
    found: dict[bytes, list[Item]] = {}
    always = None if index.needs_tags else index.match({})
    for offset, message in enumerate(messages, first):
        constraints = _matching(index, message) if always is None else always
        if not constraints:
            continue
        room -= len(constraints)
        if room < 0:
            raise Refusal(
                Code.LIMIT_EXCEEDED,
                f"its messages match so many constraints that the block would give more than {MAX_NUMBERED} "
                f"places; publish again, in smaller batches",
            )
        item = (offset, message.leaf())
        for constraint in constraints:
            found.setdefault(constraint, []).append(item)
    return found


def _matching(index: MatchingIndex, message: Message) -> list[bytes]:
    return index.match(dict(decode_message_header(message.header).tags))
