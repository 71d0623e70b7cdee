"""Subscriptions, the heads of their orders, and where the leaves of an order are found."""

from __future__ import annotations

from typing import Any

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
from parley.model.names import U32, U64, Position, Value
from parley.model.principals import Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.topics.tables import TO_DESCRIBERS


class ConstraintRecord(Record, frozen=True):
    """The head of one order (P6). Gone when the order is closed."""

    constraint: str
    incarnation: Position
    next_ps: U64
    subscribers: U32


class SubscriptionRecord(Record, frozen=True):
    """A subscription, and the end of its lease."""

    constraint: str
    lease_until: U64  # ms of block time


class GuardRecord(Record, frozen=True):
    """The equalities that a live constraint waits under; None: it is evaluated for every message."""

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


SUBSCRIPTIONS: Table[SubscriptionRecord, str, bytes, bytes] = Table(
    "sub",
    SubscriptionRecord,
    TEXT,
    HASH,
    KEY,
    about="A client's subscription to a topic with a constraint.",
    visible=Visibility(3, _own, "the subscriber, while it may describe the topic"),
)
ORDER_HEADS: Table[ConstraintRecord, str, int, bytes] = Table(
    "ps",
    ConstraintRecord,
    TEXT,
    NUMBER,
    HASH,
    about="The head of the order of a constraint in a topic partition.",
    visible=TO_DESCRIBERS,
    listed=1,
)
GUARDS: Table[GuardRecord, str, bytes] = Table(
    "guard", GuardRecord, TEXT, HASH, about="Where a live constraint waits in the matching index."
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
)
