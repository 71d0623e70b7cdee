"""Which questions of a client share a turn: those that cost nothing but their own bytes, and never many at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.net.messages import (
    CloseStream,
    Credit,
    Fetch,
    ListKeys,
    OpenStream,
    Prove,
    Question,
    StatusRequest,
    StreamPosition,
    Submit,
    encode,
)
from parley.node.sessions import TURN_BYTES, TURN_FRAMES, _turns

ANSWERED_AT_ONCE: list[Question] = [
    Fetch(1, "t", 0, 0, 10, 0),
    OpenStream(2, "t", bytes(32), (StreamPosition(0, (1, 0), 0),), 1),
    CloseStream(3),
    Prove(4, (b"k",)),
    ListKeys(5, b"topic/", b""),
    StatusRequest(6),
]
frames = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=200).map(lambda body: encode(Submit(7, body))),
        st.integers(1, 3 * TURN_BYTES).map(lambda size: encode(Submit(2**40, bytes(size)))),
        st.integers(1, 2**20).map(lambda credit: encode(Credit(9, credit))),
        st.sampled_from(ANSWERED_AT_ONCE).map(encode),
        st.binary(max_size=20),
    ),
    max_size=60,
)


@settings(derandomize=True, deadline=None)
@given(frames)
def test_every_question_has_its_turn_in_order_and_none_is_larger_than_allowed(found: list[bytes]) -> None:
    groups = list(_turns(found))
    assert [frame for group in groups for frame in group] == found
    for group in groups:
        assert 1 <= len(group) <= TURN_FRAMES
        assert len(group) == 1 or sum(map(len, group)) <= TURN_BYTES


def test_submissions_and_credit_that_come_together_share_a_turn() -> None:
    found = [encode(Submit(number, b"body")) for number in range(TURN_FRAMES - 1)] + [encode(Credit(1, 5))]
    assert list(_turns(found)) == [found]
    assert list(_turns([*found, found[0]])) == [found, found[:1]]


@pytest.mark.parametrize("question", ANSWERED_AT_ONCE, ids=lambda question: type(question).__name__)
def test_a_question_that_is_answered_at_once_has_a_turn_of_its_own(question: Question) -> None:
    """Each answer may be as large as a full block: it is paid for, and read, before the next is made."""
    asked, submitted = encode(question), encode(Submit(8, b"body"))
    assert list(_turns([asked] * 3)) == [[asked]] * 3
    assert list(_turns([submitted, asked, submitted, submitted])) == [
        [submitted],
        [asked],
        [submitted, submitted],
    ]


def test_a_question_larger_than_a_turn_has_one_of_its_own() -> None:
    large, small = encode(Submit(1, bytes(TURN_BYTES))), encode(Submit(2, b"x"))
    assert list(_turns([small, large, small])) == [[small], [large], [small]]


def test_what_is_no_question_has_a_turn_of_its_own() -> None:
    """It is answered at once, too, and counts towards the end of the connection."""
    assert list(_turns([b"", b"\xc1", b"\x93"])) == [[b""], [b"\xc1"], [b"\x93"]]
