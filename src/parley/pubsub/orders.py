"""The gap-free orders of P6: one for each (topic, partition, constraint), numbered from its first live subscription on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from parley.model.names import Position
from parley.model.receipts import Closed, Match
from parley.model.records import ConstraintRecord, constraint_key
from parley.pubsub.state import State

__all__ = ["Item", "Orders"]

Item = tuple[int, bytes]  # offset and leaf of a message
_Order = tuple[str, int, bytes, Position]  # topic, partition, constraint, incarnation


class Orders:
    """The heads in the state, and what one block adds to them: its `Match` and `Closed` leaves."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._matched: dict[_Order, tuple[int, list[Item]]] = {}
        self._closed: list[Closed] = []

    def head(self, topic: str, partition: int, constraint: bytes) -> ConstraintRecord | None:
        return self._state.get(ConstraintRecord, constraint_key(topic, partition, constraint))

    def heads(self, topic: str, partition: int) -> list[tuple[bytes, ConstraintRecord]]:
        """The live constraints on a partition, by id."""
        prefix = constraint_key(topic, partition, b"")
        return [(key[len(prefix) :], record) for key, record in self._state.scan(ConstraintRecord, prefix)]

    def open(self, topic: str, partition: int, constraint: bytes, head: ConstraintRecord) -> None:
        self._state.put(constraint_key(topic, partition, constraint), head)

    def join(self, topic: str, partitions: int, constraint: bytes, subscribers: int) -> bool:
        """That many subscribers more, or fewer if negative; without any, the order is closed. Whether it lives on."""
        lives = True
        for partition in range(partitions):
            head = self.head(topic, partition, constraint)
            assert head is not None, "every live constraint has a head in every partition"
            key = constraint_key(topic, partition, constraint)
            lives = head.subscribers + subscribers > 0
            if lives:
                self._state.put(key, replace(head, subscribers=head.subscribers + subscribers))
            else:
                self._state.delete(key)
                self._closed.append(Closed(topic, partition, constraint, head.incarnation, head.next_ps))
        return lives

    def number(self, topic: str, partition: int, matches: Mapping[bytes, Sequence[Item]]) -> None:
        """Give each message its place in the order of each constraint that it matches."""
        for constraint, items in matches.items():
            head = self.head(topic, partition, constraint)
            assert head is not None, "only live constraints are matched"
            order = (topic, partition, constraint, head.incarnation)
            self._matched.setdefault(order, (head.next_ps, []))[1].extend(items)
            numbered = replace(head, next_ps=head.next_ps + len(items))
            self._state.put(constraint_key(topic, partition, constraint), numbered)

    def matched(self) -> Iterable[Match]:
        """By topic, partition and constraint; an order that ended and began again in this block has two."""
        for order in sorted(self._matched):
            first_ps, items = self._matched[order]
            yield Match(*order, first_ps, tuple(items))

    def closed(self) -> Iterable[Closed]:
        return sorted(
            self._closed, key=lambda leaf: (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation)
        )
