"""What the transitions of one block share."""

from __future__ import annotations

from dataclasses import dataclass

from parley.model.genesis import Genesis
from parley.pubsub.budget import Budget
from parley.pubsub.deadlines import Deadlines, Log
from parley.pubsub.interests import Interests
from parley.pubsub.orders import Orders
from parley.pubsub.state import State
from parley.registry.registry import Registry

__all__ = ["Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """`height` and `time` are the block's: there is no other time."""

    height: int
    time: int
    genesis: Genesis
    registry: Registry
    state: State
    interests: Interests
    deadlines: Deadlines
    orders: Orders
    budget: Budget
    moved: dict[Log, int]  # where the logs started whose start this block moves
    dropped: list[bytes]  # staged batches that will never be numbered
