"""What a client may ask about its subscriptions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from parley.application.operations import Operation, check_constraint
from parley.model.batches import NO_TOPIC
from parley.model.names import Position, TopicName

ConstraintText = Annotated[str, Meta(max_length=4096)]


class Subscribe(Operation, frozen=True):
    """Begin a subscription, or renew its lease. It covers every partition of the topic that has this id."""

    topic: TopicName
    constraint: ConstraintText
    topic_id: Position = NO_TOPIC  # for which it is refused

    def check(self) -> None:
        check_constraint(self.constraint)

    def expressions(self) -> tuple[str, ...]:
        return (self.constraint,)


class Unsubscribe(Operation, frozen=True):
    """End a subscription in every partition of the topic that has this id."""

    topic: TopicName
    constraint: ConstraintText
    topic_id: Position = NO_TOPIC

    def check(self) -> None:
        check_constraint(self.constraint)

    def expressions(self) -> tuple[str, ...]:
        return (self.constraint,)
