"""Batches of keys that nobody registered: refused for good, without giving strangers a place to fill (decision 9)."""

from __future__ import annotations

from parley.model.names import Position
from parley.pubsub.records import REMEMBERED_STRANGERS, StrangerRecord, expiry_key, stranger_key
from parley.pubsub.state import State

__all__ = ["MAX_STRANGERS", "forget", "original", "remember"]

MAX_STRANGERS = 4_096  # refused batches that are remembered until they expire


def original(state: State, name: bytes) -> Position | None:
    """Where the batch was refused while its key was unknown, if it was."""
    if not state.count(REMEMBERED_STRANGERS):  # nearly always, and then it costs one read a block
        return None
    record = state.get(StrangerRecord, stranger_key(name))
    return None if record is None else record.original


def remember(state: State, name: bytes, not_after: int, at: Position) -> bool:
    """Whether there was room. If not, the refusal is not final: once the key is registered, it may be ordered again."""
    if state.count(REMEMBERED_STRANGERS) >= MAX_STRANGERS:
        return False
    state.put(stranger_key(name), StrangerRecord(at))
    state.put(expiry_key(not_after + 1, stranger_key(name)), b"")
    state.add(REMEMBERED_STRANGERS, 1)
    return True


def forget(state: State, key: bytes) -> None:
    state.delete(key)
    state.add(REMEMBERED_STRANGERS, -1)
