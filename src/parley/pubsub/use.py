"""How much each client holds of the things that are limited."""

from __future__ import annotations

from parley.pubsub.records import UseRecord, use_key
from parley.pubsub.state import State

__all__ = ["get", "put"]


def get(state: State, client: bytes) -> UseRecord:
    return state.get(UseRecord, use_key(client)) or _NOTHING


def put(state: State, client: bytes, use: UseRecord) -> None:
    """There is no entry for a client that holds nothing."""
    if use == _NOTHING:
        state.delete(use_key(client))
    else:
        state.put(use_key(client), use)


_NOTHING = UseRecord()
