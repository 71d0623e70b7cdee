"""What subscriptions give: where an order begins, what a block adds to it, and where it ends (P6)."""

from __future__ import annotations

from msgspec import Struct

from parley.model.names import U32, U64, Hash, Position
from parley.model.receipts import Leaf, Outcome


class PartitionStart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a subscriber's order begins in one partition (P6)."""

    partition: U32
    incarnation: Position
    next_ps: U64
    next_offset: U64


class Subscribed(Outcome, frozen=True):
    """A subscription, new or renewed, and its lease in block time."""

    constraint: Hash
    partitions: tuple[PartitionStart, ...]
    lease_until: U64


class Match(Leaf, frozen=True):
    """What one block added to the order of one constraint in one partition: (offset, leaf) from `first_ps` on."""

    topic: str
    partition: U32
    constraint: Hash
    incarnation: Position
    first_ps: U64
    items: tuple[tuple[U64, Hash], ...]

    def row(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "count": len(self.items),
            "constraint": self.constraint,
            "ps": self.first_ps,
            "offsets": [offset for offset, _ in self.items],
        }


class Closed(Leaf, frozen=True):
    """The last subscription of a constraint ended, or its topic did: no number from `final_ps` on will be given."""

    topic: str
    partition: U32
    constraint: Hash
    incarnation: Position
    final_ps: U64

    def row(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "count": 0,
            "constraint": self.constraint,
            "ps": self.final_ps,
        }


def match_of(leaf: Leaf) -> Match | None:
    """The leaf, if it adds to an order."""
    return leaf if isinstance(leaf, Match) else None


def closed_of(leaf: Leaf) -> Closed | None:
    """The leaf, if it ends an order."""
    return leaf if isinstance(leaf, Closed) else None


def order_leaf(leaf: Leaf) -> Match | Closed | None:
    """The leaf, if it is one of an order."""
    return leaf if isinstance(leaf, Match | Closed) else None
