"""One member after the other is asked, and none can hold the others up."""

from __future__ import annotations

from parley.consensus.events import Send
from parley.replica.inquiry import TURN, Inquiry
from parley.replica.records import Gathering, Trusted

HEIGHTS = (3, 2, 1)


def asked(questions: list[Send]) -> int:
    (question,) = questions
    return question.to


def test_a_member_that_answers_rightly_but_slowly_loses_its_turn() -> None:
    inquiry = Inquiry(0, 4)
    assert asked(inquiry.ask(Gathering(Trusted(9, bytes(32)), HEIGHTS), now=0)) == 1
    for now in range(900, TURN, 900):
        inquiry.answered(1)
        assert asked(inquiry.right(now)) == 1
    inquiry.answered(1)
    assert not inquiry.right(TURN)
    assert inquiry.can_ask(TURN)
    assert asked(inquiry.ask(Gathering(Trusted(9, bytes(32)), HEIGHTS), TURN)) == 2


def test_a_member_is_not_passed_over_in_the_middle_of_a_record() -> None:
    inquiry = Inquiry(0, 4)
    inquiry.ask(Gathering(Trusted(9, bytes(32)), HEIGHTS), now=0)
    gathering = inquiry.answered(1)
    assert isinstance(gathering, Gathering)
    gathering._part = b"some receipts"
    assert asked(inquiry.right(2 * TURN)) == 1
