"""Texts of the refusals of topics."""

from __future__ import annotations

from parley.model.texts import Texts

_ADMINISTRATOR = "only an administrator of {organisation} may"

TEXTS: Texts = {
    "Busy.growing": "topic {topic} is still getting the partitions of an earlier change; this is ordered again",
    "Invalid.fewer_partitions": "topic {topic} has {partitions} partitions, and partitions are never removed",
    "LimitExceeded.ending": "topic {topic} is still being deleted; try again later",
    "LimitExceeded.topics_of_network": "the network has had the {limit} topics that it may have",
    "LimitExceeded.topics_of_organisation": (
        "{organisation} has had the {limit} topics that are its share; revoked and deleted ones count"
    ),
    "PermissionDenied.alter_topic": f"{_ADMINISTRATOR} alter topic {{topic}}",
    "PermissionDenied.create_topics": f"{_ADMINISTRATOR} create topics of its own",
    "PermissionDenied.delete_topic": f"{_ADMINISTRATOR} delete topic {{topic}}",
    "PermissionDenied.reuse_name": f"{_ADMINISTRATOR} use the name of its deleted topic {{topic}} again",
    "PermissionDenied.rule": "rule '{action}' of topic {topic}: {rule}",
    "TopicExists": "there is a topic {topic} already, of {organisation}",
    "TopicExists.taken": "the name {topic} is taken; choose another one",
    "TopicReplaced": (
        "topic {topic} was deleted and made again: this was meant for the topic with id {topic_id}, and the "
        "name belongs to the one with id {present} now"
    ),
    "UnknownPartition": "topic {topic} has partitions 0 to {last} only",
    "UnknownTopic": "there is no topic {topic}, or you may not know of it",
    "Unsupported.matching": "brokers of this version do not have the matching setting {matching}",
    "Unsupported.payload": "brokers of this version do not have the payload setting {payload}",
}
