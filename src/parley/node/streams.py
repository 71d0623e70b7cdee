"""One open stream: what matches a constraint, in `ps` order and within credit, and proof that nothing is missing (P6, P7).

A stream is asked for its next message whenever there is a new certified header, new credit, or room to write. It
says nothing twice and holds nothing back but what credit forbids. What a block adds goes out in one piece, because one
leaf covers it; a large piece is put together over several turns, so that nobody else waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.ledger.proofs import Anchor
from parley.model.names import Position
from parley.model.refusals import Invalid, NotFound, NotReady
from parley.modules.subscriptions.receipts import match_of
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS, OrderHead
from parley.modules.topics.tables import TopicRecord
from parley.net.messages import Head, OpenStream, PreparedBlock, PreparedDelivery
from parley.node.access import Caller, require_readable
from parley.node.answers import (
    KEY_WORK,
    LEAF_WORK,
    MAX_SHOWN_BYTES,
    MAX_SHOWN_MESSAGES,
    MESSAGE_WORK,
    PROOF_WORK,
    Reading,
    require_kept,
)
from parley.node.pieces import SHARED_WORK, Piece, Shelf
from parley.node.view import View

MAX_CREDIT = 2_000_000


@dataclass(slots=True)
class _Order:
    """Where the stream stands in one partition."""

    partition: int
    incarnation: Position
    next_ps: int


class Unfinished:
    """Something is being put together: ask again, after others had their turn."""


UNFINISHED = Unfinished()


@dataclass(frozen=True, slots=True)
class Pushed:
    """What to send, what it took, and how many messages it holds; `more`: there may be more to say at once."""

    answer: PreparedDelivery | Head
    work: int  # in bytes of what its client may use besides the answer's own
    messages: int
    more: bool


class Stream:
    """Made from the question; `next` gives what to send, None for nothing now, and raises `Refused` at its end."""

    def __init__(self, question: OpenStream, caller: Caller, head_interval: int, shelf: Shelf) -> None:
        self.id = question.id
        self._topic = question.topic
        self._constraint = question.constraint
        self._caller = caller
        self._head_interval = head_interval
        self._shelf = shelf
        self._credit = question.credit
        # Whether the reader itself subscribes with the constraint. If not, it is shown a proof of that, and nothing of the
        # order.
        self._is_subscribed = False
        self._orders = [_Order(one.partition, one.incarnation, one.next_ps) for one in question.positions]
        self._judged: Anchor | None = None  # the header under which the reader's right was looked at last
        self._shown: Anchor | None = None  # the header of the last head
        self._head_due = 0
        self._turn = 0
        self._unfinished: Piece | None = None
        self._unpaid = 0  # what putting pieces for everybody together took: whoever needs them first pays

    @property
    def orders(self) -> int:
        return len(self._orders)

    def add_credit(self, messages: int) -> None:
        self._credit = min(self._credit + messages, MAX_CREDIT)

    def open(self, view: View) -> None:
        """Raises `Refused` unless the reader may and the orders are known."""
        reading = self._reading(view)
        partitions = [order.partition for order in self._orders]
        if len(set(partitions)) != len(partitions):
            raise Invalid("partition_twice")
        for order in self._orders:
            require_readable(view, reading.principal, self._topic, order.partition, even_deleted=True)
        self._judge_subscription(view)

    def has_news(self, view: View, ticks: int) -> bool:
        """Whether there is anything to look at: mostly there is not, and this is cheap."""
        if not self._is_subscribed:
            return view.anchor is not self._judged or self._owes_head(view, ticks)
        if self._unfinished is not None or self._owes_head(view, ticks):
            return True
        return any(not self._is_current(view, order) for order in self._orders)

    def next(self, view: View, ticks: int) -> Pushed | Unfinished | None:
        is_new = view.anchor is not self._judged
        reading = self._reading(view)
        if is_new:
            self._judge_subscription(view)
        if not self._is_subscribed:  # what the order does now concerns others only
            key = SUBSCRIPTIONS.key(self._topic, self._constraint, self._caller.key)
            return self._head(view, [key], ticks)
        try:
            delivery = self._delivery(reading, ticks)
        except NotFound:  # what this broker does not hold is no end of the order: others have it
            raise NotReady("not_held") from None
        if delivery is not None:
            return delivery
        keys = [ORDER_HEADS.key(self._topic, order.partition, self._constraint) for order in self._orders]
        return self._head(view, keys, ticks)

    def _head(self, view: View, keys: list[bytes], ticks: int) -> Pushed | None:
        if not self._owes_head(view, ticks):
            return None
        self._shown, self._head_due = view.anchor, ticks + self._head_interval
        return Pushed(
            Head(self.id, view.anchor, tuple(map(view.entry, keys))), KEY_WORK * len(keys), 0, more=False
        )

    def _reading(self, view: View) -> Reading:
        """What the reader may see under this view. What was allowed may have been taken away since (P7)."""
        principal = self._caller.principal(view)
        if view.anchor is not self._judged:
            self._require_this_life(require_readable(view, principal, self._topic, even_deleted=True))
            self._judged = view.anchor
        return Reading(view, principal)

    def _owes_head(self, view: View, ticks: int) -> bool:
        return view.anchor is not self._shown and ticks >= self._head_due

    def _delivery(self, reading: Reading, ticks: int) -> Pushed | Unfinished | None:
        view = reading.view
        if self._unfinished is not None and self._unfinished.height > view.height:
            return None  # this broker shows an earlier state than before
        pieces: list[Piece] = []
        size, work = 0, MAX_SHOWN_MESSAGES
        self._turn = (self._turn + 1) % len(self._orders)  # another partition comes first each time
        for order in self._orders[self._turn :] + self._orders[: self._turn]:
            while size < MAX_SHOWN_BYTES and work > 0 and (piece := self._piece(reading, order)) is not None:
                piece, work = self._looked_at(piece, reading, work)
                if not piece.is_whole:
                    self._unfinished = piece
                    break
                pieces.append(piece)
                size += piece.size
                # Its proof takes as long as so many messages.
                work -= (PROOF_WORK + LEAF_WORK * view.archive.block(piece.height).size) // MESSAGE_WORK
        if not pieces:
            return None if self._unfinished is None else UNFINISHED
        # What was withheld in earlier turns is proved by this view, too.
        reading.withheld = any(piece.reading is not None and piece.reading.withheld for piece in pieces)
        blocks = tuple(
            PreparedBlock(view.proof(piece.height, piece.positions), piece.encoded()) for piece in pieces
        )
        shared, self._unpaid = self._unpaid, 0
        return Pushed(
            PreparedDelivery(self.id, view.encoded_anchor, reading.reader(), blocks),
            sum(piece.work for piece in pieces) + shared,
            sum(piece.count for piece in pieces),
            more=bool(self._unfinished)
            or size >= MAX_SHOWN_BYTES
            or work <= 0
            or self._owes_head(view, ticks),
        )

    def _looked_at(self, piece: Piece, reading: Reading, work: int) -> tuple[Piece, int]:
        """The piece, some more of it put together; the reader's own, once it turns out that it is not for everybody."""
        archive = reading.view.archive
        if not piece.is_whole and not piece.ruled:
            before = len(piece.contents)
            work = piece.look(archive, work)
            if piece.reading is None:
                self._unpaid += SHARED_WORK * (len(piece.contents) - before)
            self._shelf.advanced(piece)
        if piece.ruled:
            piece = Piece(piece.height, piece.position, piece.leaf, reading)
            work = piece.look(archive, work)
        return piece, work

    def _piece(self, reading: Reading, order: _Order) -> Piece | None:
        """What comes next: what was begun, or what one block added to the order from where the stream stands."""
        if (begun := self._resumed(reading)) is not None:
            return begun
        view = reading.view
        head = self._head_of(view, order)
        if head is None:
            # The reader's own subscription may have ended before the order did, while its stream was not looked at. It
            # subscribes now, and reads by offset what lies between.
            raise NotSubscribed("ended")
        if head.next_ps == order.next_ps:
            return None
        place = view.archive.order_at(
            self._topic, order.partition, self._constraint, order.incarnation, order.next_ps
        )
        if place is None or place.height > view.height:
            return None
        found = view.archive.block(place.height).leaf(place.position)
        leaf = match_of(found)
        assert leaf is not None, "an order that goes on has only such leaves"
        end = leaf.first_ps + len(leaf.items)
        # A block's messages go together, so the last ones may overdraw the credit.
        if order.next_ps >= end or self._credit <= 0:
            return None
        require_kept(view, self._topic, order.partition, leaf.items[0][0])
        order.next_ps = end
        self._credit -= len(leaf.items)
        return self._shelf.piece(place.height, place.position, leaf, reading)

    def _resumed(self, reading: Reading) -> Piece | None:
        """The piece that earlier turns have begun; from its beginning, if the reader's record has changed since."""
        piece, self._unfinished = self._unfinished, None
        if piece is not None and piece.reading is not None and piece.reading.principal != reading.principal:
            return Piece(piece.height, piece.position, piece.leaf, reading)
        return piece

    def _give_back(self) -> None:
        """Drop the piece that was begun, and stand before it again."""
        piece, self._unfinished = self._unfinished, None
        if piece is not None:
            order = next(order for order in self._orders if order.partition == piece.leaf.partition)
            order.next_ps = piece.leaf.first_ps
            self.add_credit(piece.count)

    def _is_current(self, view: View, order: _Order) -> bool:
        """Whether the certified head of the order is what the stream has sent: nearly always, and cheaply found."""
        head = self._head_of(view, order)
        return head is not None and head.next_ps == order.next_ps

    def _head_of(self, view: View, order: _Order) -> OrderHead | None:
        """The certified head of the order; None if it has ended, whether or not another one has begun since."""
        head = view.read(ORDER_HEADS, self._topic, order.partition, self._constraint)
        return head if head is not None and head.incarnation == order.incarnation else None

    def _require_this_life(self, topic: TopicRecord) -> None:
        """What was published under a name is not for those who may read what the name is used for now."""
        if not topic.deleted and any(order.incarnation < topic.created for order in self._orders):
            raise NotFound("topic_again", topic=topic.name)

    def _judge_subscription(self, view: View) -> None:
        """Note whether the reader subscribes with the constraint now.

        Raises `Refused` if it begins to and one of the orders is not the present one.
        """
        before = self._is_subscribed
        record = view.read(SUBSCRIPTIONS, self._topic, self._constraint, self._caller.key)
        self._is_subscribed = record is not None
        if not self._is_subscribed:
            self._give_back()
        elif not before:
            for order in self._orders:
                self._require_present(view, order)

    def _require_present(self, view: View, order: _Order) -> None:
        """Raises `Refused` unless the order goes on. One that has ended may have been of others, and is not shown."""
        height, _ = order.incarnation
        if height > view.height:
            raise NotReady("order_ahead", height=view.height, began=height)
        if self._head_of(view, order) is None:
            raise NotFound("order")
