"""Publishing: offsets for all messages of a batch, and numbers in the orders of the constraints that they match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from parley.application.admission import OpenedBatch
from parley.application.block import BlockContext, Hook
from parley.application.module import BatchKind, IndexEntries, Module
from parley.application.tables import encode_value
from parley.model.batches import PUBLISH, BatchHeader, Message, decode_message_header
from parley.model.names import Position, Value
from parley.model.principals import Principal
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.budget import MESSAGES, require_affordable, work_of
from parley.modules.publishing.receipts import Published
from parley.modules.publishing.tables import OFFSETS, BatchPlace
from parley.modules.publishing.texts import TEXTS
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.subscriptions.matching import MatchingIndex
from parley.modules.subscriptions.orders import ORDERS, Item
from parley.modules.topics.access import Action
from parley.modules.topics.refusals import TopicReplaced
from parley.modules.topics.rules import head_of, replaced, require
from parley.modules.topics.tables import HEADS, TopicRecord

_Tags = Mapping[str, Value]


def _appended(block: BlockContext, topic: TopicRecord, partition: int, first_offset: int) -> None: ...


APPENDED = Hook("appended", _appended)


def publish(block: BlockContext, by: Principal, opened: OpenedBatch, _at: Position) -> Published:
    header, messages = opened.batch.header, opened.batch.messages
    topic = require_publishing(block, by, header)
    index = block[SUBSCRIPTION_INDEX].of_topic(topic.name)
    if index is not None:
        tags = _read_tags(block, messages) if index.needs_tags else [_NO_TAGS] * len(messages)
        compared = index.cost([(1, its) for its in tags] if index.needs_tags else [(len(tags), _NO_TAGS)])
        require_affordable(compared)
        block.spend(work_of(compared))
        block.executed.add("comparisons", compared)
        number(block, (topic.name, header.partition), index, tags, lambda at: messages[at].leaf())
    first_offset = append(block, topic, header.partition, header.count)
    count_published(block, topic.name, header.count, opened.size)
    return Published(first_offset)


def require_publishing(block: BlockContext, by: Principal, header: BatchHeader) -> TopicRecord:
    """The topic to which a batch is to be published. Raises `Refused` if its publisher may not."""
    return require(block, by, Action.PUBLISH, header.topic, header.partition, topic_id=header.topic_id)


def too_late(block: BlockContext, by: Principal, header: BatchHeader) -> TopicReplaced | None:
    """Why a batch for a topic that is no more can never be published: another one has its name."""
    return replaced(block, by, header.topic, header.topic_id)


def number(
    block: BlockContext,
    log: tuple[str, int],
    index: MatchingIndex,
    tags: Sequence[_Tags],
    leaf_at: Callable[[int], bytes],
) -> None:
    """Number messages in the orders of the constraints that they match.

    `leaf_at` gives the leaf of a message by its place in the batch.
    """
    first = head_of(block.state, *log).next_offset
    block[ORDERS].number(*log, _matches(index, tags, first, leaf_at))


def append(block: BlockContext, topic: TopicRecord, partition: int, count: int) -> int:
    """Give messages the next offsets of a topic partition; returns the first one."""
    head = head_of(block.state, topic.name, partition)
    after = replace(head, next_offset=head.next_offset + count)
    HEADS.put(block.state, topic.name, partition, record=after)
    block.call(APPENDED, block, topic, partition, head.next_offset)
    return head.next_offset


def count_published(block: BlockContext, topic: str, count: int, size: int) -> None:
    """Count what was published, for metrics."""
    block.executed.add("publications", count)
    block.executed.add("publication_bytes", size)
    block.executed.add_labelled("publications", topic, count)


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


def _read_tags(block: BlockContext, messages: Sequence[Message]) -> list[_Tags]:
    block.spend(len(messages) // MESSAGES, done=True)
    return [dict(decode_message_header(message.header).tags) for message in messages]


def _index(height: int, position: int, receipt: BatchReceipt[Published]) -> IndexEntries:
    place = BatchPlace(height, position, receipt.digest, receipt.count)
    key = OFFSETS.place(receipt.topic, receipt.partition, receipt.outcome.first_offset)
    yield key, encode_value(place)


_NO_TAGS: _Tags = {}

MODULE = Module(
    name="publishing",
    batches=(BatchKind(PUBLISH, "publish", publish, too_late=too_late),),
    tables=(OFFSETS,),
    outcomes=(Published,),
    texts=TEXTS,
    index={Published: _index},
)
