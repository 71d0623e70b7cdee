"""What many are sent is put together once, as the same bytes, and only for those who may see the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.client.ledger import Ledger, note

from parley.model.batches import Batch, Message
from parley.model.principals import Principal
from parley.modules.publishing.tables import BatchPlace
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.receipts import Match
from parley.net.messages import (
    MAX_RECEIPTS,
    DeliveredBlock,
    Delivery,
    PreparedBlock,
    PreparedDelivery,
    decode_answer,
    encode,
)
from parley.node.answers import Reading
from parley.node.archive import Archive
from parley.node.cache import Cache
from parley.node.pieces import MAX_BEGUN, Piece, Shelf
from parley.node.services.submitting import by_block
from parley.node.view import View

RULE = 'role == "doctor"'


class Shown:
    """A block with batches of some messages each, as an archive would show it; it counts how often it is asked."""

    def __init__(self, *batches: list[Message]) -> None:
        self.ledger = Ledger()
        self.who = self.ledger.client("alice", role="nurse")
        self.ledger.topic("notes")
        (self.start,) = self.ledger.subscribe(self.who, "notes")
        signed = [self.ledger.publication(self.who, "notes", *batch) for batch in batches]
        self.ledger.order(*signed)
        self.names = [one.digest for one in signed]
        self.height = self.ledger.height
        self.position = len(signed)
        leaf = self.ledger.leaves(self.height)[self.position]
        assert isinstance(leaf, Match)
        self.leaf = leaf
        self.decoded = 0

    @property
    def archive(self) -> Archive:
        return cast("Archive", self)

    @property
    def reading(self) -> Reading:
        record = self.ledger.record(CLIENTS, self.who.key)
        assert record is not None
        return Reading(cast("View", None), Principal(self.who.key, None, record))

    def batches_from(self, topic: str, partition: int, offset: int) -> Iterator[tuple[int, BatchPlace]]:
        assert (topic, partition) == ("notes", 0)
        first = 0
        for position, name in enumerate(self.names):
            count = self.ledger.body(name).header.count
            if first + count > offset:
                yield first, BatchPlace(self.height, position, name, count)
            first += count

    def batch(self, name: bytes) -> Batch:
        self.decoded += 1
        return self.ledger.body(name)

    def piece(self, shelf: Shelf) -> Piece:
        return shelf.piece(self.height, self.position, self.leaf, self.reading)


def plain(*texts: str) -> list[Message]:
    return [note(text) for text in texts]


def test_a_block_that_everybody_may_see_is_put_together_once() -> None:
    shown, shelf = Shown(plain("one", "two"), plain("three")), Shelf()
    first = shown.piece(shelf)
    first.look(shown.archive, 100)
    shelf.advanced(first)
    assert first.is_whole
    assert first.positions == (0, 1, 2)
    assert first.work == 0
    second = shown.piece(shelf)
    assert second is first
    assert second.encoded() is first.encoded()
    assert shown.decoded == 2


def test_a_piece_that_one_reader_has_begun_is_gone_on_with_by_another() -> None:
    shown, shelf = Shown(plain("one", "two"), plain("three", "four", "five")), Shelf()
    piece = shown.piece(shelf)
    for work in (1, 2, 2):
        assert not piece.is_whole
        assert shown.piece(shelf) is piece
        piece.look(shown.archive, work)
        shelf.advanced(piece)
    assert piece.is_whole
    assert piece.positions == (0, 1, 2)
    assert bytes(piece.encoded()) == encode(plain("one", "two", "three", "four", "five"))


def test_a_block_with_a_rule_is_put_together_for_each_reader() -> None:
    shown, shelf = Shown([note("one"), note("hidden", RULE)]), Shelf()
    piece = shown.piece(shelf)
    piece.look(shown.archive, 100)
    shelf.advanced(piece)
    assert piece.ruled
    assert not piece.is_whole
    own, other = shown.piece(shelf), shown.piece(shelf)
    assert own is not other
    own.look(shown.archive, 100)
    assert own.is_whole
    assert own.reading is not None
    assert own.reading.withheld
    assert own.work > 0
    expected = [note("one"), note("hidden", RULE).withheld()]
    assert bytes(own.encoded()) == encode(expected)


def test_what_was_prepared_reads_like_what_was_not() -> None:
    shown, shelf = Shown(plain("one", "two")), Shelf()
    piece = shown.piece(shelf)
    piece.look(shown.archive, 100)
    ledger = shown.ledger
    proof, anchor, reader = ledger.proof(shown.height, piece.positions), ledger.anchor(), ledger.entry(b"x")
    delivery = Delivery(7, anchor, reader, (DeliveredBlock(proof, tuple(plain("one", "two"))),))
    block = PreparedBlock(Raw(encode(proof)), piece.encoded())
    prepared = PreparedDelivery(7, Raw(encode(anchor)), reader, (block,))
    assert encode(prepared) == encode(delivery)
    assert decode_answer(encode(prepared)) == delivery


def test_few_pieces_are_being_put_together_at_a_time() -> None:
    shown, shelf = Shown(plain("one")), Shelf()
    pieces = [shelf.piece(height, 0, shown.leaf, shown.reading) for height in range(MAX_BEGUN + 1)]
    assert shelf.piece(MAX_BEGUN, 0, shown.leaf, shown.reading) is pieces[-1]
    assert shelf.piece(0, 0, shown.leaf, shown.reading) is not pieces[0]


def test_a_piece_above_the_budget_is_not_kept() -> None:
    shown, shelf = Shown(plain("one")), Shelf(budget=10)
    piece = shown.piece(shelf)
    piece.look(shown.archive, 100)
    shelf.advanced(piece)
    assert piece.is_whole
    assert shown.piece(shelf) is not piece


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2 * MAX_RECEIPTS))))
def test_receipts_that_are_ready_go_together_by_block(places: list[tuple[int, int]]) -> None:
    ready = list(enumerate(places))
    groups = list(by_block(ready))
    assert sorted(one for group in groups for one in group) == ready
    for group in groups:
        found = [place for _, place in group]
        assert len(group) <= MAX_RECEIPTS
        assert len({height for height, _ in found}) == 1
        assert found == sorted(set(found))


def test_receipts_of_one_block_are_not_split_without_need() -> None:
    ready = [(id_, (5, id_)) for id_ in range(MAX_RECEIPTS + 1)]
    assert [len(group) for group in by_block(ready)] == [MAX_RECEIPTS, 1]
    assert [len(group) for group in by_block([*ready[:2], (9, (5, 0)), (8, (6, 0))])] == [1, 2, 1]


def test_a_cached_value_that_is_put_again_counts_once() -> None:
    cache: Cache[str, int] = Cache(10)
    for value, cost in ((1, 4), (2, 6)):
        cache.put("a", value, cost)
    assert (cache.find("a"), cache.cost, len(cache)) == (2, 6, 1)
    cache.put("b", 3, 6)
    assert (cache.find("a"), cache.find("b"), cache.cost) == (None, 3, 6)
    cache.put("c", 4, 11)
    assert cache.find("c") is None
