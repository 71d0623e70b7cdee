"""The gap-free orders of P6: one for each (topic, partition, constraint), numbered from its first live subscription on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from parley.application.block import PerBlock
from parley.application.state import State
from parley.model.names import Position
from parley.modules.subscriptions.receipts import Closed, Match
from parley.modules.subscriptions.tables import ORDER_HEADS, OrderHead

Item = tuple[int, bytes]  # offset and leaf of a message
_Order = tuple[str, int, bytes, Position]  # topic, partition, constraint, incarnation


class Orders:
    """The heads in the state, and what one block adds to them: its `Match` and `Closed` leaves."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._matched: dict[_Order, tuple[int, list[Item]]] = {}
        self._closed: list[Closed] = []
        self.numbered = 0  # numbers that were given

    def head(self, topic: str, partition: int, constraint: bytes) -> OrderHead | None:
        return ORDER_HEADS.get(self._state, topic, partition, constraint)

    def open(self, topic: str, partitions: Iterable[int], constraint: bytes, text: str, at: Position) -> None:
        """Begin orders that were given no number yet; `at` is their incarnation."""
        for partition in partitions:
            ORDER_HEADS.put(self._state, topic, partition, constraint, record=OrderHead(text, at, next_ps=0))

    def close(self, topic: str, partitions: int, constraint: bytes) -> None:
        """End the orders of a constraint, as far as they have been opened."""
        for partition in range(partitions):
            head = self.head(topic, partition, constraint)
            if head is not None:
                ORDER_HEADS.delete(self._state, topic, partition, constraint)
                self._closed.append(Closed(topic, partition, constraint, head.incarnation, head.next_ps))

    def number(self, topic: str, partition: int, matches: Mapping[bytes, Sequence[Item]]) -> None:
        """Give each message its number in the order of each constraint that it matches."""
        for constraint, items in matches.items():
            head = self.head(topic, partition, constraint)
            assert head is not None, "only live constraints are matched"
            order = (topic, partition, constraint, head.incarnation)
            self._matched.setdefault(order, (head.next_ps, []))[1].extend(items)
            numbered = replace(head, next_ps=head.next_ps + len(items))
            ORDER_HEADS.put(self._state, topic, partition, constraint, record=numbered)
            self.numbered += len(items)

    def leaves(self) -> Iterable[Match | Closed]:
        """The leaves by topic, partition and constraint; an order that ended and began again in this block has two matches."""
        for order in sorted(self._matched):
            first_ps, items = self._matched[order]
            yield Match(*order, first_ps, tuple(items))
        yield from sorted(
            self._closed, key=lambda leaf: (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation)
        )


ORDERS = PerBlock(lambda block: Orders(block.state))
