"""What one block adds to an order, as it is sent: put together and encoded once for all who read it alike.

Messages without a rule look the same to everybody who may read the topic. A block that holds any other is put together
for each reader by itself.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Raw

from parley.model.batches import Message, Withheld
from parley.model.bounded import put
from parley.model.refusals import NotReady
from parley.modules.subscriptions.receipts import Match
from parley.net.messages import encode
from parley.node.answers import MESSAGE_COST, MESSAGE_WORK, PROOF_COST, RULE_COST, RULE_WORK, Reading
from parley.node.archive import Archive
from parley.node.cache import Cache

SHELF_BUDGET = 4 * 1024 * 1024  # bytes: what the newest blocks have added, which nearly all streams ask for
SHARED_WORK = 512  # bytes that take as long as a message that is put together for everybody
ITEM_COST = 192  # bytes of an offset and a leaf that matched
MAX_BEGUN = 4  # shared pieces that are being put together; another one is begun by each that needs it
BATCH_SHARE = 4  # messages of a batch that take as long to decode as one to show


class Piece:
    """The messages of one leaf as `reading` shows them; without one, for all readers, as long as no message has a rule."""

    def __init__(self, height: int, position: int, leaf: Match, reading: Reading | None) -> None:
        self.height = height
        self.position = position
        self.leaf = leaf
        self.reading = reading
        self.contents: list[Message | Withheld] = []
        self.receipts: list[int] = []
        self.ruled = False  # not everybody may see all of it
        self.size = PROOF_COST
        self._encoded: Raw | None = None

    @property
    def count(self) -> int:
        return len(self.leaf.items)

    @property
    def is_whole(self) -> bool:
        return self._encoded is not None or len(self.contents) == self.count

    @property
    def work(self) -> int:
        """What it took for its reader alone, in bytes."""
        if self.reading is None:
            return 0
        return MESSAGE_WORK * self.count + RULE_WORK * len(self.reading.verdicts)

    @property
    def positions(self) -> tuple[int, ...]:
        """The leaves that prove it."""
        return (*self.receipts, self.position)

    def encoded(self) -> Raw:
        """The contents as they are sent, once it is whole; the messages themselves are not kept any longer."""
        if self._encoded is None:
            self._encoded = Raw(encode(self.contents))
            self.contents = []
        return self._encoded

    def look(self, archive: Archive, work: int) -> int:
        """At some more messages, about as many as `work` says; how many is left of it."""
        items, at = self.leaf.items, len(self.contents)
        known = 0 if self.reading is None else len(self.reading.verdicts)
        for first, place in archive.batches_from(self.leaf.topic, self.leaf.partition, items[at][0]):
            batch = archive.batch(place.digest)
            stop = first + batch.header.count
            begun = at
            while work > 0 and at < len(items) and items[at][0] < stop:
                if not self._show(batch.messages[items[at][0] - first]):
                    return work
                at += 1
                work -= 1
            if at > begun and self.receipts[-1:] != [place.position]:
                self.receipts.append(place.position)
            work -= batch.header.count // BATCH_SHARE  # after it: every turn shows at least one
            if work <= 0 or at == len(items):
                if self.reading is not None:
                    self.size += RULE_COST * (len(self.reading.verdicts) - known)
                return work
        raise NotReady("offset", offset=items[at][0])

    def _show(self, message: Message) -> bool:
        """False: this is not for everybody."""
        if self.reading is not None:
            self.contents.append(self.reading.show(message))
        elif message.rule:
            self.ruled = True
            return False
        else:
            self.contents.append(message)
        self.size += MESSAGE_COST + len(message.header) + len(message.rule) + len(message.payload)
        return True


class Shelf:
    """Pieces for everybody, by the places of their leaves: whole ones within a budget, and a few that were begun."""

    def __init__(self, budget: int = SHELF_BUDGET) -> None:
        self._whole: Cache[tuple[int, int], Piece] = Cache(budget)
        self._begun: OrderedDict[tuple[int, int], Piece] = OrderedDict()

    def piece(self, height: int, position: int, leaf: Match, reading: Reading) -> Piece:
        """The one that is kept, or a new one; the reader's own if it is not for everybody."""
        place = (height, position)
        found = self._whole.find(place) or self._begun.get(place)
        if found is None:
            found = Piece(height, position, leaf, None)
            put(self._begun, place, found, MAX_BEGUN)
        return Piece(height, position, leaf, reading) if found.ruled else found

    def advanced(self, piece: Piece) -> None:
        """Keep a shared piece that has become whole, or the knowledge that there can be none."""
        place = (piece.height, piece.position)
        if piece.reading is None and (piece.is_whole or piece.ruled):
            self._begun.pop(place, None)
            if piece.ruled:
                piece.contents = []
                self._whole.put(place, piece, PROOF_COST)
            else:
                self._whole.put(place, piece, PROOF_COST + ITEM_COST * piece.count + len(piece.encoded()))
