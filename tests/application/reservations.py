"""A module of one's own, as somebody would write it who uses Parley: slots of topics that clients reserve for a while.

Nothing in `src` knows it. Brokers, clients and Spark find the application by PARLEY_APPLICATION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from parley.application.application import OWN_VERSIONS, Application
from parley.application.block import BlockContext
from parley.application.bounds import counted
from parley.application.expiry import cancel, look_again
from parley.application.module import Module
from parley.application.operations import Operation, check_rules
from parley.application.quotas import Quota
from parley.application.rows import ChangeTable
from parley.application.tables import TEXT, Record, Table
from parley.applications import MODULES
from parley.model.names import U64, Name, Position, RuleText, TopicName
from parley.model.principals import Principal
from parley.model.receipts import Outcome
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.topics.access import Action, allows
from parley.modules.topics.rules import TOPIC_DELETED, require
from parley.modules.topics.tables import TO_DESCRIBERS, TopicRecord

LIMIT = 16  # reservations in the network

# -- what a client may ask, and what it gets -------------------------------------------------------------------------


class Reserve(Operation, frozen=True):
    """Reserve a slot of a topic, if the condition holds for the client that asks."""

    topic: TopicName
    slot: Name
    condition: RuleText
    heights: Annotated[int, Meta(ge=1, le=10_000)]

    def check(self) -> None:
        check_rules(self.condition)


class Reserved(Outcome, frozen=True):
    until: U64


class SlotTaken(Refused, retry="later", status=409):
    """Another client has reserved the slot."""


TEXTS = {
    "LimitExceeded.reservations_of_network": "the network has the {limit} reservations that it may have",
    "LimitExceeded.reservations_of_organisation": "{organisation} has the {limit} reservations that it may have",
    "SlotTaken": "slot {slot} of topic {topic} is reserved for {client} up to height {until}",
}

# -- what is kept ----------------------------------------------------------------------------------------------------


class ReservationRecord(Record, frozen=True):
    organisation: str
    client: str
    until: U64


QUOTA = Quota("reservations")
RESERVATIONS: Table[ReservationRecord, str, str] = Table(
    "reservation",
    ReservationRecord,
    TEXT,
    TEXT,
    about="Who has reserved a slot of a topic.",
    visible=TO_DESCRIBERS,
    listed=1,
    expires=True,
    bound=counted(QUOTA, LIMIT),
)

# -- what happens ----------------------------------------------------------------------------------------------------


def reserve(block: BlockContext, by: Principal, operation: Reserve, _at: Position) -> Reserved:
    topic = require(block, by, Action.PUBLISH, operation.topic)
    if not allows(operation.condition, by):
        raise PermissionDenied("rule", action="reserve", topic=topic.name, rule=operation.condition)
    taken = RESERVATIONS.get(block.state, topic.name, operation.slot)
    if taken is not None:
        raise SlotTaken(slot=operation.slot, topic=topic.name, client=taken.client, until=taken.until)
    organisation = by.require_client().organisation
    QUOTA.require(block, organisation, LIMIT)
    QUOTA.add(block.state, organisation)
    record = ReservationRecord(organisation, by.title, block.height + operation.heights)
    RESERVATIONS.put(block.state, topic.name, operation.slot, record=record)
    look_again(block.state, record.until + 1, RESERVATIONS.key(topic.name, operation.slot))
    return Reserved(record.until)


def expire(block: BlockContext, key: tuple[str, str], _listed: int) -> int:
    _release(block, key)
    return 1


def topic_deleted(block: BlockContext, topic: TopicRecord) -> None:
    for key, record in RESERVATIONS.scan(block.state, topic.name):
        cancel(block.state, record.until + 1, RESERVATIONS.key(*key))
        _release(block, key)


def _release(block: BlockContext, key: tuple[str, str]) -> None:
    record = RESERVATIONS.get(block.state, *key)
    assert record is not None, "what is listed is there"
    RESERVATIONS.delete(block.state, *key)
    QUOTA.add(block.state, record.organisation, -1)


def _row(operation: Operation) -> Mapping[str, Any] | None:
    if not isinstance(operation, Reserve):
        return None
    return {"topic": operation.topic, "slot": operation.slot, "heights": operation.heights}


MODULE = Module(
    name="reservations",
    operations={Reserve: reserve},
    tables=(RESERVATIONS,),
    outcomes=(Reserved,),
    refusals=(SlotTaken,),
    texts=TEXTS,
    changes=(ChangeTable("reservations", {"topic": "text", "slot": "text", "heights": "long"}, _row),),
    hooks={TOPIC_DELETED: topic_deleted},
    expire={RESERVATIONS: expire},
)

APPLICATION = Application("data shard with reservations", OWN_VERSIONS, (*MODULES, MODULE))
