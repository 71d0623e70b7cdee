"""One open stream: what matches a constraint, in `ps` order and within credit, and proof that nothing is missing (P6, P7).

A stream is asked for its next message whenever there is a new certified header, new credit, or room to write. It
says nothing twice and holds nothing back but what credit forbids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parley.ledger.indices import BatchPlace
from parley.ledger.proofs import Anchor
from parley.model.batches import Message, Withheld
from parley.model.errors import Code, Refusal
from parley.model.names import Position
from parley.model.receipts import Closed, Match
from parley.model.records import (
    ConstraintRecord,
    PartitionRecord,
    TopicRecord,
    constraint_key,
    partition_key,
)
from parley.net.messages import DeliveredBlock, Delivery, Head, OpenStream
from parley.node.access import Asker, require_reader, require_reading, require_topic
from parley.node.answers import (
    MAX_SHOWN_BYTES,
    MAX_SHOWN_MESSAGES,
    MESSAGE_COST,
    PROOF_COST,
    RULE_COST,
    Reading,
)
from parley.node.view import View

__all__ = ["Stream"]

MAX_CREDIT = 2_000_000


@dataclass(slots=True)
class _Order:
    """Where the stream stands in one partition."""

    partition: int
    incarnation: Position
    next_ps: int
    closed: bool = False


@dataclass(slots=True)
class _Piece:
    block: DeliveredBlock
    messages: int
    size: int


class Stream:
    """Made from the question; `next` gives what to send, None for nothing now, and raises `Refusal` at its end."""

    def __init__(self, question: OpenStream, asker: Asker, head_interval: int) -> None:
        self.id = question.id
        self._topic = question.topic
        self._constraint = question.constraint
        self._asker = asker
        self._head_interval = head_interval
        self._credit = question.credit
        self._orders = [_Order(one.partition, one.incarnation, one.next_ps) for one in question.positions]
        self._judged: Anchor | None = None  # the header under which the reader's right was looked at last
        self._shown: Anchor | None = None  # the header of the last head
        self._head_due = 0
        self._turn = 0

    def add_credit(self, messages: int) -> None:
        self._credit = min(self._credit + messages, MAX_CREDIT)

    def open(self, view: View) -> None:
        """Raises `Refusal` unless the reader may and the orders are known."""
        self._reading(view)
        topic = require_topic(view, self._topic, even_deleted=True)
        partitions = [order.partition for order in self._orders]
        if len(set(partitions)) != len(partitions):
            raise Refusal(Code.INVALID, "a partition is named twice")
        for order in self._orders:
            if order.partition >= topic.partitions:
                raise Refusal(
                    Code.UNKNOWN_PARTITION, f"topic {topic.name} has partitions 0 to {topic.partitions - 1}"
                )
            self._require_known(view, order)

    def next(self, view: View, ticks: int) -> Delivery | Head | None:
        reading = self._reading(view)
        delivery = self._delivery(reading)
        if delivery is not None:
            return delivery
        if all(order.closed for order in self._orders):
            raise Refusal(
                Code.NOT_SUBSCRIBED, "the last subscription with this constraint has ended; subscribe again"
            )
        if view.anchor is self._shown or ticks < self._head_due:
            return None
        self._shown, self._head_due = view.anchor, ticks + self._head_interval
        keys = [constraint_key(self._topic, order.partition, self._constraint) for order in self._orders]
        return Head(self.id, view.anchor, tuple(map(view.entry, keys)))

    def _reading(self, view: View) -> Reading:
        """The reader's eyes under this view. What was allowed may have been taken away since (P7)."""
        client = require_reader(view, self._asker)
        if view.anchor is not self._judged:
            topic = require_topic(view, self._topic, even_deleted=True)
            require_reading(topic, client)
            self._require_this_life(topic)
            self._judged = view.anchor
        return Reading(view, client)

    def _delivery(self, reading: Reading) -> Delivery | None:
        blocks: list[DeliveredBlock] = []
        size = messages = 0
        self._turn = (self._turn + 1) % len(self._orders)  # another partition comes first each time
        for order in self._orders[self._turn :] + self._orders[: self._turn]:
            while (
                size < MAX_SHOWN_BYTES
                and messages < MAX_SHOWN_MESSAGES
                and (piece := self._piece(reading, order)) is not None
            ):
                blocks.append(piece.block)
                size += piece.size
                messages += piece.messages
                self._credit -= piece.messages
        if not blocks:
            return None
        return Delivery(self.id, reading.view.anchor, reading.reader(), tuple(blocks))

    def _piece(self, reading: Reading, order: _Order) -> _Piece | None:
        """What one block added to the order from where the stream stands, if it is certified and credit allows."""
        view = reading.view
        if order.closed or self._is_current(view, order):
            return None
        place = view.archive.order_at(
            self._topic, order.partition, self._constraint, order.incarnation, order.next_ps
        )
        if place is None or place.height > view.height:
            return None
        leaf = view.archive.block(place.height).leaf(place.position)
        if isinstance(leaf, Closed):
            order.closed = True
            return _Piece(DeliveredBlock(view.leaves(place.height, [place.position]), ()), 0, PROOF_COST)
        assert isinstance(leaf, Match), "an order's index names its own leaves"
        end = leaf.first_ps + len(leaf.items)
        # A block's messages go together, so the last ones may overdraw the credit.
        if order.next_ps >= end or self._credit <= 0:
            return None
        self._require_kept(view, order.partition, leaf.items[0][0])
        order.next_ps = end
        return self._matched(reading, leaf, place.height, place.position)

    def _matched(self, reading: Reading, leaf: Match, height: int, position: int) -> _Piece:
        view = reading.view
        contents: list[Message | Withheld] = []
        receipts: list[int] = []
        size, known = PROOF_COST, len(reading.verdicts)
        for offsets, place in _runs(view, leaf):
            batch = view.archive.batch(place.digest)
            receipts.append(place.position)
            for offset in offsets:
                message = batch.messages[offset]
                size += MESSAGE_COST + len(message.header) + len(message.rule) + len(message.payload)
                contents.append(reading.show(message))
        size += RULE_COST * (len(reading.verdicts) - known)
        proof = view.leaves(height, [*receipts, position])
        return _Piece(DeliveredBlock(proof, tuple(contents)), len(leaf.items), size)

    def _is_current(self, view: View, order: _Order) -> bool:
        """Whether the certified head of the order is what the stream has sent: nearly always, and cheaply found."""
        head = view.get(ConstraintRecord, constraint_key(self._topic, order.partition, self._constraint))
        return head is not None and (head.incarnation, head.next_ps) == (order.incarnation, order.next_ps)

    def _require_this_life(self, topic: TopicRecord) -> None:
        """What was published under a name is not for those who may read what the name is used for now."""
        if not topic.deleted and any(order.incarnation < topic.created for order in self._orders):
            raise Refusal(
                Code.NOT_FOUND, f"topic {topic.name} was deleted and made anew since; subscribe again"
            )

    def _require_kept(self, view: View, partition: int, offset: int) -> None:
        head = view.get(PartitionRecord, partition_key(self._topic, partition))
        if head is not None and offset < head.log_start_offset:
            raise Refusal(Code.PRUNED, f"the log of this partition starts at offset {head.log_start_offset}")

    def _require_known(self, view: View, order: _Order) -> None:
        height, _ = order.incarnation
        if height > view.height:
            raise Refusal(
                Code.NOT_READY,
                f"this broker is at height {view.height}; the order began at {height}, ask again later",
            )
        head = view.get(ConstraintRecord, constraint_key(self._topic, order.partition, self._constraint))
        if head is not None and head.incarnation == order.incarnation:
            return
        last = 2**64 - 1
        if (
            view.archive.order_at(self._topic, order.partition, self._constraint, order.incarnation, last)
            is None
        ):
            raise Refusal(
                Code.NOT_FOUND, "no order of this constraint began there; subscribe to learn where it begins"
            )


def _runs(view: View, leaf: Match) -> Iterator[tuple[list[int], BatchPlace]]:
    """The items of a match batch by batch: which messages of the batch, and where the batch stands."""
    offsets = [offset for offset, _ in leaf.items]
    at = 0
    for first, place in view.archive.batches_from(leaf.topic, leaf.partition, offsets[0]):
        end = first + view.archive.batch(place.digest).header.count
        inside: list[int] = []
        while at < len(offsets) and offsets[at] < end:
            inside.append(offsets[at] - first)
            at += 1
        if inside:
            yield inside, place
        if at == len(offsets):
            return
