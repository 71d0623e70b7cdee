"""A submitted batch has one answer: its certified receipt when there is one, a refusal at once, or an end to the waiting."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.application.world import World, actor, tagged
from tests.ledger.shard import GENESIS, told
from tests.node.test_submissions import Stage

from parley.application.keeping import ReceiptPlace
from parley.ledger.proofs import Anchor
from parley.model.refusals import Busy, PermissionDenied
from parley.modules.subscriptions.operations import Subscribe
from parley.net.messages import Submit
from parley.node.submissions import RECEIPT_MS


class Desk(Stage):
    """Whose results are certified up to a height that the test chooses."""

    def reach(self, height: int) -> None:
        """The results up to this height are certified."""
        anchor = told().anchor()
        self.feed.certified(Anchor(replace(anchor.header, executed_height=height), anchor.qc))


def placed(height: int, *, final: bool) -> ReceiptPlace:
    return ReceiptPlace(height, 3, final, 0, "Ok")


def test_a_batch_that_has_its_receipt_is_not_ordered_again() -> None:
    desk = Desk()
    desk.reach(5)
    desk.places = [placed(5, final=True)]
    desk.submissions.submit(Submit(1, desk.batch()))
    assert desk.taken == []
    assert desk.submissions.ready() == [(1, (5, 3))]
    assert not desk.submissions.waits


def test_a_receipt_that_is_not_certified_yet_is_waited_for() -> None:
    desk = Desk()
    desk.reach(5)
    desk.places = [placed(6, final=True)]
    desk.submissions.submit(Submit(1, desk.batch()))
    assert (desk.taken, desk.submissions.ready(), len(desk.feed.waiting)) == ([], [], 1)
    desk.reach(6)
    assert desk.submissions.ready() == [(1, (6, 3))]


def test_a_batch_whose_receipt_decided_nothing_is_ordered_again() -> None:
    desk = Desk()
    desk.reach(5)
    desk.places = [placed(5, final=False)]
    body = desk.batch()
    desk.submissions.submit(Submit(1, body))
    assert desk.taken == [body]
    assert desk.submissions.ready() == []


def test_a_broker_without_room_takes_operations_and_no_publications() -> None:
    """Some operations make room."""
    desk = Desk()
    desk.reach(5)
    desk.full = Busy("disk", free="0", path="/data")
    with pytest.raises(Busy):
        desk.submissions.submit(Submit(1, desk.batch()))
    assert desk.taken == []
    body = desk.control(Subscribe("wards", "a = 1"))
    desk.submissions.submit(Submit(2, body))
    assert desk.taken == [body]


def test_a_client_submits_its_own_batches_only() -> None:
    desk = Desk()
    desk.reach(5)
    maker = World()
    maker.chain = GENESIS.chain
    other = actor("bob", "hospital-b")
    with pytest.raises(PermissionDenied):
        desk.submissions.submit(Submit(1, maker.publication(other, "wards", tagged()).body))
    assert desk.taken == []


def test_what_has_waited_too_long_is_given_up_and_nothing_else() -> None:
    desk = Desk()
    desk.reach(5)
    desk.submissions.submit(Submit(1, desk.batch()))
    desk.ticks = 10
    desk.submissions.submit(Submit(2, desk.batch()))
    desk.ticks = RECEIPT_MS - 1
    assert desk.submissions.give_up() == []
    desk.ticks = RECEIPT_MS
    assert desk.submissions.give_up() == [1]
    assert (1 in desk.submissions, 2 in desk.submissions) == (False, True)
    assert len(desk.feed.waiting) == 1
    desk.ticks += 10
    assert desk.submissions.give_up() == [2]
    assert len(desk.feed.waiting) == 0


def test_a_connection_that_ends_leaves_nothing_behind() -> None:
    desk = Desk()
    desk.reach(5)
    for number in range(3):
        desk.submissions.submit(Submit(number, desk.batch()))
    assert len(desk.feed.waiting) == 3
    desk.submissions.close()
    assert (len(desk.feed.waiting), desk.submissions.waits) == (0, False)
