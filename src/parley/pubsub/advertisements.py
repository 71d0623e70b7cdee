"""What clients say that they publish, for whoever may subscribe (Chios's advertise)."""

from __future__ import annotations

from msgspec.structs import replace

from parley.model.errors import Code, Refusal
from parley.model.operations import Advertise
from parley.model.records import AdvertisementRecord, advertisement_key, advertisement_prefix
from parley.pubsub import use
from parley.pubsub.access import require_allowed, require_topic
from parley.pubsub.state import State
from parley.registry.standing import Standing

__all__ = ["MAX_ADVERTISED", "advertise", "withdraw_of_client", "withdraw_of_topic"]

MAX_ADVERTISED = 64  # topics of one client


def advertise(state: State, by: Standing, operation: Advertise) -> None:
    client = by.require_client()
    topic = require_topic(state, operation.topic)
    if not operation.text:
        _withdraw(state, topic.name, client.key)
        return
    require_allowed(topic, "publish", client)
    held = use.get(state, client.key)
    if topic.name not in held.advertised:
        if len(held.advertised) >= MAX_ADVERTISED:
            raise Refusal(
                Code.LIMIT_EXCEEDED, f"{by.title} advertises on the {MAX_ADVERTISED} topics that it may"
            )
        use.put(state, client.key, replace(held, advertised=(*held.advertised, topic.name)))
    state.put(advertisement_key(topic.name, client.key), AdvertisementRecord(by.title, operation.text))


def withdraw_of_topic(state: State, topic: str, most: int) -> int:
    """What was advertised on a deleted topic; how many there were, up to `most`."""
    prefix = advertisement_prefix(topic)
    keys = state.stored_keys(prefix, most)
    for key in keys:
        _withdraw(state, topic, key[len(prefix) :])
    return len(keys)


def withdraw_of_client(state: State, client: bytes) -> None:
    for topic in use.get(state, client).advertised:
        _withdraw(state, topic, client)


def _withdraw(state: State, topic: str, client: bytes) -> None:
    """Withdrawing what was not advertised changes nothing."""
    held = use.get(state, client)
    if topic in held.advertised:
        advertised = tuple(name for name in held.advertised if name != topic)
        state.delete(advertisement_key(topic, client))
        use.put(state, client, replace(held, advertised=advertised))
