"""Who may do what with a topic: one pure function for the state machine, brokers, clients and Spark (P27)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from parley.model.expressions import parse_rule
from parley.model.principals import Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.topics.refusals import UnknownPartition, UnknownTopic

if TYPE_CHECKING:
    from parley.modules.topics.tables import TopicRecord


class Action(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DESCRIBE = "describe"
    ALTER = "alter"
    DELETE = "delete"


# What only administrators may, and the reason with which all others are refused.
ADMINISTRATORS_ACTS = {Action.ALTER: "alter_topic", Action.DELETE: "delete_topic"}


def authorise(
    principal: Principal,
    action: Action,
    name: str,
    topic: TopicRecord | None,
    partition: int = 0,
    *,
    even_deleted: bool = False,
) -> Refused | None:
    """Why the principal may not do this to the topic of that name; None: it may.

    The topic's rules stand in for access control lists (P26). `topic` is its record, None if there is none.
    `even_deleted`: what was published before its end may still be read.
    """
    act = ADMINISTRATORS_ACTS.get(action)
    if act is None and (why := principal.reason_to_refuse()) is not None:
        return why
    if topic is None or (topic.deleted and not even_deleted):
        return UnknownTopic(topic=name[:128])
    if act is not None:
        return principal.reason_not_to_administer(topic.organisation, act, topic=topic.name)
    if partition >= topic.partitions:
        return UnknownPartition(topic=topic.name, last=topic.partitions - 1)
    if action is Action.DESCRIBE:
        return reason_not_to_describe(principal, topic)
    rule = rule_of(topic, action)
    if not allows(rule, principal):
        return PermissionDenied("rule", action=action.value, topic=topic.name, rule=rule)
    return None


def rule_of(topic: TopicRecord, action: Action) -> str:
    """The rule of the topic for this; empty if there is none."""
    match action:
        case Action.PUBLISH:
            return topic.publish
        case Action.SUBSCRIBE:
            return topic.subscribe
        case _:
            return ""


def reason_not_to_describe(principal: Principal, topic: TopicRecord) -> Refused | None:
    """Why the principal may not know of the topic; None: it may.

    Its administrators and those who may publish or subscribe may, even if the topic was deleted.
    """
    if principal.administers == topic.organisation:
        return None
    if any(allows(rule, principal) for rule in (topic.subscribe, topic.publish)):
        return None
    return PermissionDenied("describe")


def allows(rule: str, principal: Principal) -> bool:
    """Whether a rule over attributes allows it; nothing is allowed to keys that are no live client's."""
    attributes = principal.attributes
    return attributes is not None and parse_rule(rule).allows(attributes)
