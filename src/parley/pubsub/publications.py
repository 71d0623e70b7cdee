"""Publishing: offsets for all messages of a batch, and places in the orders of the constraints that they match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from parley.model.batches import Batch, BatchHeader, Message, decode_message_header
from parley.model.errors import Code, Refusal
from parley.model.names import Pairs, Value
from parley.model.receipts import Published
from parley.model.records import ClientRecord, TopicRecord, partition_key
from parley.pubsub import retention
from parley.pubsub.access import head_of, require_allowed, require_topic
from parley.pubsub.deadlines import Log
from parley.pubsub.matching import MatchingIndex
from parley.pubsub.orders import Item
from parley.pubsub.state import State
from parley.pubsub.step import Step
from parley.registry.standing import Standing

__all__ = ["append", "costs", "give_places", "publish", "require_partition", "require_publishing"]

_Tags = Mapping[str, Value]


def publish(step: Step, by: Standing, batch: Batch) -> Published:
    header, messages = batch.header, batch.messages
    _, topic = require_publishing(step.state, by, header)
    index = step.interests.index(topic.name)
    if index is not None:
        tags = [_tags(message) if index.needs_tags else _NO_TAGS for message in messages]
        step.budget.spend(sum(map(index.cost, tags)))
        give_places(step, (topic.name, header.partition), index, tags, lambda at: messages[at].leaf())
    return Published(append(step, topic, header.partition, header.count))


def require_publishing(state: State, by: Standing, header: BatchHeader) -> tuple[ClientRecord, TopicRecord]:
    """Who publishes where, if it may."""
    client = by.require_client()
    topic = require_topic(state, header.topic)
    require_partition(topic, header.partition)
    require_allowed(topic, "publish", client)
    return client, topic


def require_partition(topic: TopicRecord, partition: int) -> None:
    if partition >= topic.partitions:
        raise Refusal(
            Code.UNKNOWN_PARTITION, f"topic {topic.name} has partitions 0 to {topic.partitions - 1} only"
        )


def costs(index: MatchingIndex, tags: Iterable[tuple[int, Pairs]]) -> int:
    """The comparisons that messages take, so many with the same tags each."""
    return sum(count * index.cost(dict(pairs)) for count, pairs in tags)


def give_places(
    step: Step, log: Log, index: MatchingIndex, tags: Sequence[_Tags], leaf_at: Callable[[int], bytes]
) -> None:
    """In the orders of the constraints that they match; `leaf_at` gives the leaf of a message by its place in the batch."""
    first = head_of(step.state, *log).next_offset
    step.orders.number(*log, _matches(index, tags, first, leaf_at))


def append(step: Step, topic: TopicRecord, partition: int, count: int) -> int:
    """The first of so many offsets."""
    head = head_of(step.state, topic.name, partition)
    after = replace(head, next_offset=head.next_offset + count)
    step.state.put(partition_key(topic.name, partition), after)
    retention.note(step, topic, partition, head.next_offset)
    return head.next_offset


def _matches(
    index: MatchingIndex, tags: Sequence[_Tags], first: int, leaf_at: Callable[[int], bytes]
) -> dict[bytes, list[Item]]:
    """The messages that each constraint matches, in order."""
    found: dict[bytes, list[Item]] = {}
    always = None if index.needs_tags else index.match(_NO_TAGS)
    for at, its in enumerate(tags):
        constraints = index.match(its) if always is None else always
        if constraints:
            item = (first + at, leaf_at(at))
            for constraint in constraints:
                found.setdefault(constraint, []).append(item)
    return found


def _tags(message: Message) -> _Tags:
    return dict(decode_message_header(message.header).tags)


_NO_TAGS: _Tags = {}
