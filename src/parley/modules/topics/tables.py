"""Topics by name, and the heads of their partitions."""

from __future__ import annotations

from typing import Any

from parley.application.bounds import counted, following
from parley.application.quotas import Quota
from parley.application.tables import NUMBER, TEXT, Reader, Record, Table, Visibility
from parley.model.names import MAX_PARTITIONS, U32, U64, Position
from parley.model.principals import Principal
from parley.model.refusals import Refused
from parley.modules.topics import access
from parley.modules.topics.operations import Policy


class TopicRecord(Record, frozen=True):
    """A topic. A deleted topic's record stays: offsets go on where they ended if the name is used again."""

    name: str
    organisation: str
    partitions: U32
    policy: Policy
    publish: str
    subscribe: str
    created: Position
    deleted: bool


class PartitionRecord(Record, frozen=True):
    """The offsets of a topic partition: from log_start_offset up to, not including, next_offset (P5)."""

    next_offset: U64
    log_start_offset: U64


def _describer(reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    return access.reason_not_to_describe(principal, key[0], reader.read(TOPICS, key[0]))


def _grower(reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    return _describer(reader, principal, key[1:])


# For entries whose key begins with a topic: those who may describe the topic, even if it was deleted.
TO_DESCRIBERS = Visibility(1, _describer, "those who may describe the topic")

CREATED = Quota("topics")

TOPICS: Table[TopicRecord, str] = Table(
    "topic",
    TopicRecord,
    TEXT,
    about="A topic by its name. A deleted topic's record stays.",
    visible=TO_DESCRIBERS,
    listed=0,
    bound=counted(CREATED, "topics"),
)
HEADS: Table[PartitionRecord, str, int] = Table(
    "head",
    PartitionRecord,
    TEXT,
    NUMBER,
    about="The offsets of a topic partition.",
    visible=TO_DESCRIBERS,
    listed=1,
    bound=following(MAX_PARTITIONS, TOPICS),
)
ENDING: Table[bytes, str, str] = Table(
    "ending",
    bytes,
    TEXT,
    TEXT,
    about="A deleted topic, by its organisation, as long as there is something of it to clear away.",
    bound=following(1, TOPICS),
)
GROWING: Table[int, str, str] = Table(
    "growing",
    int,
    TEXT,
    TEXT,
    about="How many partitions a topic is going to have, by its organisation, until all its orders are open there.",
    visible=Visibility(2, _grower, "those who may describe the topic"),
    bound=following(1, TOPICS),
)
