"""Where a subscriber stands in every partition: what is still read by offset, where its order goes on, what waits. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parley.client.errors import Invalid
from parley.client.messages import Message
from parley.client.position import PartitionPosition
from parley.client.verification import Place
from parley.model.names import Position
from parley.modules.subscriptions.receipts import PartitionStart

NO_ORDER: Position = (0, 0)  # an incarnation that no order has: blocks are counted from 1

_Receipt = tuple[int, tuple[PartitionStart, ...]]  # of a subscription, with its height


@dataclass
class Bridge:
    """What is read by offset before the order goes on."""

    partition: int
    offset: int
    stop: int


@dataclass(eq=False, repr=False)
class ReadingState:
    """`waiting` are the messages that are here and were not handed out yet; what comes next is read only after them."""

    places: dict[int, Place] = field(default_factory=dict)
    bridges: deque[Bridge] = field(default_factory=deque)
    waiting: deque[Message] = field(default_factory=deque)
    _newest: _Receipt = (0, ())

    def newest(self, height: int, starts: tuple[PartitionStart, ...]) -> tuple[PartitionStart, ...]:
        """What the newest receipt says, this one or one that came before it: receipts may come late."""
        self._newest = max(self._newest, (height, starts), key=_recency)
        return self._newest[1]

    def begin(self, starts: Iterable[PartitionStart], offsets: Mapping[int, int]) -> None:
        """Begin at the present ends of the orders. What lies between them and these offsets comes first."""
        self.places |= {start.partition: _place(start) for start in starts}
        for partition, offset in offsets.items():
            self._bridge(partition, offset, self.places[partition].next_offset)

    def resume(self, positions: Iterable[PartitionPosition], starts: tuple[PartitionStart, ...]) -> None:
        """At an earlier position. Raises `Invalid` if it lies ahead of where the orders have come to."""
        now = {start.partition: start for start in starts}
        for one in positions:
            start, order = now.get(one.partition), one.incarnation or NO_ORDER
            if start is None:  # partitions of a topic only come
                raise Invalid("position_ahead", partition=one.partition, end=0)
            if one.offset > start.next_offset or (order, one.ps or 0) > (start.incarnation, start.next_ps):
                raise Invalid("position_ahead", partition=one.partition, end=start.next_offset)
            self.places[one.partition] = Place(one.partition, order, one.ps or 0, one.offset)
        self.adopt(starts)

    def changes(self, starts: Iterable[PartitionStart]) -> bool:
        """Whether these are later orders than the ones that are followed, or more of them."""
        known = {partition: place.incarnation for partition, place in self.places.items()}
        return any(known.get(start.partition, NO_ORDER) < start.incarnation for start in starts)

    def adopt(self, starts: tuple[PartitionStart, ...]) -> None:
        """Go on in these orders; what lies between the old and the new one of a partition is read by offset."""
        incarnations = {place.incarnation for place in self.places.values()}
        for start in starts:
            partition, incarnation = start.partition, start.incarnation
            old = self.places.get(partition)
            if old is None and incarnation in incarnations:
                # A partition that was added while this order lived has it from the start.
                self.places[partition] = Place(partition, incarnation, 0, 0)
            elif old is None or old.incarnation < incarnation:
                self._bridge(partition, 0 if old is None else old.next_offset, start.next_offset)
                self.places[partition] = _place(start)

    def prune(self, log_starts: Mapping[int, int]) -> list[int]:
        """Leave the orders whose next messages are gone; the partitions in which some are."""
        lost = [partition for partition, at in log_starts.items() if at > self.places[partition].next_offset]
        # If none is lost, one's own messages stand in a block whose first ones are gone: it is not shown any more.
        for partition in lost or [partition for partition, at in log_starts.items() if at]:
            offset = max(log_starts[partition], self.places[partition].next_offset)
            self.places[partition] = Place(partition, NO_ORDER, 0, offset)
        return lost

    def crossed(self) -> None:
        """Forget the bridges that lie behind."""
        while self.bridges and self.bridges[0].offset >= self.bridges[0].stop:
            self.bridges.popleft()

    def positions(self) -> tuple[PartitionPosition, ...]:
        """What was not handed out begins here."""
        first: dict[int, Message] = {}
        for message in self.waiting:
            first.setdefault(message.partition, message)
        crossing: dict[int, int] = {}
        for bridge in self.bridges:
            crossing.setdefault(bridge.partition, bridge.offset)
        found = {
            partition: self._position(place, first.get(partition), crossing.get(partition))
            for partition, place in self.places.items()
        }
        return tuple(position for _, position in sorted(found.items()))

    def _position(self, place: Place, first: Message | None, crossing: int | None) -> PartitionPosition:
        partition, incarnation = place.partition, place.incarnation
        if first is not None and first.ps is not None:
            return PartitionPosition(partition, first.offset, incarnation, first.ps)
        if first is not None:
            return PartitionPosition(partition, first.offset)
        if crossing is not None:
            return PartitionPosition(partition, crossing)
        if incarnation == NO_ORDER:
            return PartitionPosition(partition, place.next_offset)
        return PartitionPosition(partition, place.next_offset, incarnation, place.next_ps)

    def _bridge(self, partition: int, offset: int, stop: int) -> None:
        if offset < stop:
            self.bridges.append(Bridge(partition, offset, stop))


def _place(start: PartitionStart) -> Place:
    return Place(start.partition, start.incarnation, start.next_ps, start.next_offset)


def _recency(receipt: _Receipt) -> tuple[object, ...]:
    """A sort key: the newest receipt has the highest, also among those of one block."""
    height, starts = receipt
    return height, [(start.incarnation, start.next_ps, start.next_offset) for start in starts]
