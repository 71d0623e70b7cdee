"""Advertising: clients that may publish on a topic may say what they publish."""

from __future__ import annotations

from parley.application.block import BlockContext
from parley.application.module import Module
from parley.application.state import State
from parley.model.names import Position
from parley.model.principals import ClientRecord, Principal
from parley.model.receipts import Done
from parley.model.refusals import LimitExceeded
from parley.modules.advertisements.operations import Advertise
from parley.modules.advertisements.tables import (
    ADVERTISEMENTS,
    ADVERTISERS,
    MAX_ADVERTISED,
    AdvertisementRecord,
    AdvertiserRecord,
)
from parley.modules.advertisements.texts import TEXTS
from parley.modules.registry.rules import CLIENT_LEAVING
from parley.modules.topics.access import Action
from parley.modules.topics.rules import TOPIC_CLEARING, require, require_topic
from parley.modules.topics.tables import TopicRecord


def advertise(block: BlockContext, by: Principal, operation: Advertise, _at: Position) -> Done:
    state, client = block.state, by.require_client()
    if not operation.text:
        if operation.topic in _advertised(state, client.key):
            require_topic(state, operation.topic)
        else:
            require(block, by, Action.DESCRIBE, operation.topic)
        _withdraw(state, operation.topic, client.key)
        return Done()
    topic = require(block, by, Action.PUBLISH, operation.topic)
    topics = _advertised(state, client.key)
    if topic.name not in topics:
        if len(topics) >= MAX_ADVERTISED:
            raise LimitExceeded("advertisements", client=by.title, limit=MAX_ADVERTISED)
        _put(state, client.key, (*topics, topic.name))
    ADVERTISEMENTS.put(state, topic.name, client.key, record=AdvertisementRecord(by.title, operation.text))
    return Done()


def withdraw_of_topic(block: BlockContext, topic: TopicRecord) -> None:
    """Withdraw what was advertised on a deleted topic, as much as the block's work allows."""
    for name, client in ADVERTISEMENTS.first_stored(block.state, max(block.work, 0), topic.name):
        _withdraw(block.state, name, client)
        block.work -= 1


def withdraw_of_client(block: BlockContext, client: ClientRecord) -> None:
    """Withdraw what a revoked client has advertised, as much as the block's work allows."""
    for topic in _advertised(block.state, client.key)[: max(block.work, 0)]:
        _withdraw(block.state, topic, client.key)
        block.work -= 1


def _advertised(state: State, client: bytes) -> tuple[str, ...]:
    record = ADVERTISERS.get(state, client)
    return () if record is None else record.topics


def _withdraw(state: State, topic: str, client: bytes) -> None:
    """Delete an advertisement; without one, nothing changes."""
    topics = _advertised(state, client)
    if topic in topics:
        ADVERTISEMENTS.delete(state, topic, client)
        _put(state, client, tuple(name for name in topics if name != topic))


def _put(state: State, client: bytes, topics: tuple[str, ...]) -> None:
    if topics:
        ADVERTISERS.put(state, client, record=AdvertiserRecord(topics))
    else:
        ADVERTISERS.delete(state, client)


MODULE = Module(
    name="advertisements",
    operations={Advertise: advertise},
    tables=(ADVERTISEMENTS, ADVERTISERS),
    texts=TEXTS,
    hooks={CLIENT_LEAVING: withdraw_of_client, TOPIC_CLEARING: withdraw_of_topic},
)
