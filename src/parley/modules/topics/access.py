"""Who may do what with a topic: one pure function for the state machine, brokers, clients and Spark (P27)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from parley.model.expressions import parse_rule
from parley.model.names import Position
from parley.model.principals import Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.topics.refusals import TopicReplaced, UnknownPartition, UnknownTopic

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
    `even_deleted`: what was published before its end may still be read. A refusal says nothing of the topic, not even
    that it exists, to a principal that may not describe it.
    """
    act = ADMINISTRATORS_ACTS.get(action)
    is_administrator = act is not None and principal.administers is not None
    if not is_administrator and (why := principal.reason_to_refuse()) is not None:
        return why
    if topic is None or (topic.deleted and not even_deleted):
        return unknown(name)
    rule = rule_of(topic, action)
    permitted = rule is not None and allows(rule, principal)
    if not permitted and (why := reason_not_to_describe(principal, name, topic)) is not None:
        return why
    if act is not None:
        return principal.reason_not_to_administer(topic.organisation, act, topic=topic.name)
    if partition >= topic.partitions:
        return UnknownPartition(topic=topic.name, last=topic.partitions - 1)
    if rule is not None and not permitted:
        return PermissionDenied("rule", action=action.value, topic=topic.name, rule=rule)
    return None


def reason_not_this_one(
    principal: Principal, name: str, topic: TopicRecord | None, topic_id: Position
) -> Refused | None:
    """Why what was meant for the topic of this id cannot be done to the one that has the name; None: they are the same.

    A topic that was made later is named only to those who may know of it: for all others there is none.
    """
    if topic is not None and topic_id == topic.created:
        return None
    if (
        topic is None
        or topic_id > topic.created
        or reason_not_to_describe(principal, name, topic) is not None
    ):
        return unknown(name)
    return TopicReplaced(topic=name, topic_id=id_text(topic_id), present=id_text(topic.created))


def id_text(topic_id: Position) -> str:
    """A topic's id as people read it: height and place of its creation."""
    return "{}.{}".format(*topic_id)


def rule_of(topic: TopicRecord, action: Action) -> str | None:
    """The rule of the topic for this, empty if all live clients may; None: no rule decides it."""
    match action:
        case Action.PUBLISH:
            return topic.publish
        case Action.SUBSCRIBE:
            return topic.subscribe
        case _:
            return None


def reason_not_to_describe(principal: Principal, name: str, topic: TopicRecord | None) -> Refused | None:
    """Why the principal may not know of the topic of that name; None: it may.

    Its administrators and those who may publish or subscribe may, even if the topic was deleted. For all others it is as
    if there were none: there is one answer for both.
    """
    if topic is not None and _may_describe(principal, topic):
        return None
    why = None if principal.administers is not None else principal.reason_to_refuse()
    return why or unknown(name)


def unknown(name: str) -> UnknownTopic:
    """The refusal of a topic that does not exist or that the caller may not know of."""
    return UnknownTopic(topic=name[:128])


def _may_describe(principal: Principal, topic: TopicRecord) -> bool:
    return principal.administers == topic.organisation or any(
        allows(rule, principal) for rule in (topic.subscribe, topic.publish)
    )


def allows(rule: str, principal: Principal) -> bool:
    """Whether a rule over attributes allows it; nothing is allowed to keys that are no live client's."""
    attributes = principal.attributes
    return attributes is not None and parse_rule(rule).allows(attributes)
