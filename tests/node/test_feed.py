"""Whoever waits for a receipt hears of it once, when it is certified, and not after it has gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.consensus.types import QC, Instance, genesis_block
from parley.crypto.qc import Aggregate
from parley.ledger.application import Receipt
from parley.ledger.proofs import Anchor
from parley.model.names import Position
from parley.node.feed import Feed, Ticket, Waiting

A, B = b"a" * 32, b"b" * 32


def receipts(*names: bytes) -> list[Receipt]:
    return [Receipt(name, "Ok", position) for position, name in enumerate(names)]


def anchor(executed: int) -> Anchor:
    header = replace(
        genesis_block(Instance(bytes(32), 0, 0, 1, 1), bytes(32), 0).header, executed_height=executed
    )
    return Anchor(header, QC(0, 0, bytes(32), Aggregate(b"\0", b"")))


def test_a_receipt_is_told_when_its_height_is_certified() -> None:
    waiting, heard = Waiting(), list[Position]()
    waiting.wait(Ticket(A, heard.append))
    waiting.applied(5, receipts(B, A))
    waiting.certified(4)
    assert heard == []
    waiting.certified(7)
    assert heard == [(5, 1)]
    assert len(waiting) == 0


def test_everybody_who_waits_for_a_batch_is_told() -> None:
    waiting, heard = Waiting(), list[tuple[str, Position]]()
    waiting.wait(Ticket(A, lambda place: heard.append(("first", place))))
    waiting.wait(Ticket(A, lambda place: heard.append(("second", place))))
    waiting.applied(1, receipts(A))
    waiting.certified(1)
    assert sorted(heard) == [("first", (1, 0)), ("second", (1, 0))]


def test_a_ticket_that_was_forgotten_is_not_called() -> None:
    waiting, heard = Waiting(), list[Position]()
    ticket, other = Ticket(A, heard.append), Ticket(A, lambda place: heard.append((-place[0], 0)))
    waiting.wait(ticket)
    waiting.wait(other)
    waiting.forget(ticket)
    waiting.applied(1, receipts(A))
    waiting.certified(1)
    assert heard == [(-1, 0)]
    waiting.forget(other)
    assert len(waiting) == 0


def test_a_place_that_is_known_is_told_when_it_is_certified() -> None:
    waiting, heard = Waiting(), list[Position]()
    waiting.wait(Ticket(A, heard.append), (3, 9))
    waiting.certified(3)
    assert heard == [(3, 9)]


@given(st.lists(st.integers(0, 20), max_size=30))
def test_what_was_shown_stays_shown(heights: list[int]) -> None:
    feed, woken = Feed(), list[int]()
    feed.watch("me", lambda: woken.append(feed.height))
    for height in heights:
        feed.certified(anchor(height))
    assert woken == sorted(woken)
    assert feed.height == max(heights, default=0)


def test_a_replica_that_halted_shows_nothing_and_wakes_nobody_who_left() -> None:
    feed, woken = Feed(), list[int]()
    feed.watch("me", lambda: woken.append(1))
    feed.unwatch("me")
    feed.certified(anchor(3))
    assert (feed.height, woken) == (3, [])
    feed.silence()
    assert (feed.anchor, feed.height) == (None, 0)


def test_who_has_gone_leaves_nothing_behind_even_if_nothing_is_certified() -> None:
    waiting = Waiting()
    ticket = Ticket(A, lambda _place: None)
    waiting.wait(ticket, (3, 9))
    waiting.forget(ticket)
    assert not waiting._placed
