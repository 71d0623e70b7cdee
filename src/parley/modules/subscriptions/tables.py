"""Subscriptions, the heads of their orders, and where the leaves of an order are found."""

from __future__ import annotations

from typing import Any

from parley.application.bounds import following, ledger
from parley.application.tables import (
    HASH,
    KEY,
    LARGE,
    NUMBER,
    POSITION,
    TEXT,
    Reader,
    Record,
    Table,
    Visibility,
)
from parley.model.names import MAX_PARTITIONS, U32, U64, Position, Value
from parley.model.principals import Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.access import Action, authorise
from parley.modules.topics.tables import TO_DESCRIBERS, TOPICS


class OrderHead(Record, frozen=True):
    """The head of one order (P6). Gone when the order is closed."""

    constraint: str
    incarnation: Position
    next_ps: U64


class SubscriptionRecord(Record, frozen=True):
    """A subscription, and the end of its lease."""

    constraint: str
    lease_until: U64  # ms of block time


class LiveConstraint(Record, frozen=True):
    """A constraint with subscribers, and the equalities that it waits under; None: it is evaluated for every message."""

    constraint: str
    incarnation: Position
    subscribers: U32
    equalities: tuple[tuple[str, Value], ...] | None


class LeafPlace(Record, frozen=True):
    """The `Match` that begins at a ps, or the `Closed` that ends there."""

    height: U64
    position: U32


def _own(reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    """A client sees its own subscriptions."""
    if key[2] != principal.key:
        return PermissionDenied("hidden")
    return TO_DESCRIBERS.check(reader, principal, key)


def _held(reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    """Why the principal may not see the head of an order; None: it subscribes with the constraint, and may still do so.

    To others a head would tell that there are subscribers with this constraint.
    """
    topic, partition, constraint = key
    if reader.read(SUBSCRIPTIONS, topic, constraint, principal.key) is None:
        return PermissionDenied("hidden")
    record = reader.read(TOPICS, topic)
    return authorise(principal, Action.SUBSCRIBE, topic, record, partition, even_deleted=True)


SUBSCRIPTIONS: Table[SubscriptionRecord, str, bytes, bytes] = Table(
    "sub",
    SubscriptionRecord,
    TEXT,
    HASH,
    KEY,
    about="A client's subscription to a topic with a constraint.",
    visible=Visibility(3, _own, "the subscriber, while it may describe the topic"),
    bound=following("subscriptions_per_client", CLIENTS),
)
ORDER_HEADS: Table[OrderHead, str, int, bytes] = Table(
    "ps",
    OrderHead,
    TEXT,
    NUMBER,
    HASH,
    about="The head of the order of a constraint in a topic partition.",
    visible=Visibility(3, _held, "those who subscribe with the constraint now, while they may"),
    bound=following(MAX_PARTITIONS, SUBSCRIPTIONS),
)
CONSTRAINTS: Table[LiveConstraint, str, int, bytes] = Table(
    "constraint",
    LiveConstraint,
    TEXT,
    NUMBER,
    HASH,
    about="A live constraint on a topic, by the number of partitions in which its orders are open.",
    bound=following(1, SUBSCRIPTIONS),
)
ORDER_LEAVES: Table[LeafPlace, str, int, bytes, Position, int] = Table(
    "order",
    LeafPlace,
    TEXT,
    NUMBER,
    HASH,
    POSITION,
    LARGE,
    about="The leaf that begins at a number of an order, or ends there.",
    index=True,
    bound=ledger("leaf of an order"),
)
