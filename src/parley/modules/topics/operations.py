"""What administrators may ask about the topics of their own organisation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from parley.application.operations import Operation, check_rules
from parley.model.names import MAX_PARTITIONS, RuleText, TopicName

Partitions = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
Milliseconds = Annotated[int, Meta(ge=0, lt=2**62)]
Setting = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,31}\Z")]


class Policy(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic's three dials. Settings that the application does not have are refused when a topic is created."""

    matching: Setting = "clear"
    payload: Setting = "plain"
    retention: Milliseconds = 0  # ms of block time that messages stay; 0: for ever


class CreateTopic(Operation, frozen=True):
    """Create a topic of the administrator's own organisation."""

    name: TopicName
    partitions: Partitions
    policy: Policy
    publish: RuleText  # who may publish; empty: any live client (P26)
    subscribe: RuleText

    def check(self) -> None:
        check_rules(self.publish, self.subscribe)

    def expressions(self) -> tuple[str, ...]:
        return (self.publish or "", self.subscribe or "")


class AlterTopic(Operation, frozen=True):
    """Alter a topic; None leaves a setting as it is.

    Partitions only grow: a key's messages would change partitions silently otherwise.
    """

    name: TopicName
    partitions: Partitions | None
    retention: Milliseconds | None
    publish: RuleText | None
    subscribe: RuleText | None

    def check(self) -> None:
        check_rules(self.publish, self.subscribe)

    def expressions(self) -> tuple[str, ...]:
        return (self.publish or "", self.subscribe or "")


class DeleteTopic(Operation, frozen=True):
    """Delete a topic; its name stays with its organisation."""

    name: TopicName


def created(operation: Operation) -> CreateTopic | None:
    """The operation, if it creates a topic."""
    return operation if isinstance(operation, CreateTopic) else None


def deleted(operation: Operation) -> DeleteTopic | None:
    """The operation, if it deletes a topic."""
    return operation if isinstance(operation, DeleteTopic) else None
