"""Deleted topics: what they leave is cleared away in later blocks, as much in each as a block may take."""

from __future__ import annotations

from parley.pubsub import advertisements, subscriptions
from parley.pubsub.records import ENDING, ending_key
from parley.pubsub.step import Step

__all__ = ["begin", "clear", "is_ending"]


def begin(step: Step, topic: str) -> None:
    step.state.put(ending_key(topic), b"")


def is_ending(step: Step, topic: str) -> bool:
    """Whether the name must wait: orders of the old topic would be taken for orders of a new one."""
    return step.state.get_bytes(ending_key(topic)) is not None


def clear(step: Step, room: int) -> int:
    """At the beginning of a block, when the store is the state. Returns how much of the room is left."""
    for key in step.state.stored_keys(ENDING, room):
        topic = key[len(ENDING) :].decode()
        room -= subscriptions.end_of_topic(step, topic, room)
        if room > 0:
            room -= advertisements.withdraw_of_topic(step.state, topic, room)
        if room <= 0:
            return 0
        step.state.delete(key)
        room -= 1
    return room
