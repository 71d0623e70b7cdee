"""A clock that is off is noticed from what others say when they are asked, and never from what was only late."""

from __future__ import annotations

from parley.node.clock import PROMPT, TOLERATED, ClockWatch, advice

NOW = 1_700_000_000_000


def test_one_broker_alone_proves_nothing() -> None:
    watch = ClockWatch(4, 0)
    watch.heard(1, NOW + 60_000, NOW)
    assert watch.offset() is None
    assert watch.wrong_by() == 0


def test_two_brokers_that_agree_are_believed() -> None:
    watch = ClockWatch(4, 0)
    watch.heard(1, NOW + 60_000, NOW)
    watch.heard(2, NOW + 61_000, NOW)
    assert watch.wrong_by() == 60_000


def test_a_liar_among_three_moves_nothing() -> None:
    watch = ClockWatch(4, 0)
    for peer, offset in ((1, 10), (2, 3_600_000), (3, -20)):
        watch.answered(peer, NOW + offset, NOW, 0)
    assert watch.offset() == 10
    assert watch.wrong_by() == 0


def test_what_is_tolerated_is_not_wrong() -> None:
    watch = ClockWatch(1, 0)
    watch.answered(1, NOW - TOLERATED, NOW, 0)
    assert (watch.offset(), watch.wrong_by()) == (-TOLERATED, 0)


def test_what_was_said_long_before_it_is_heard_raises_no_alarm() -> None:
    watch = ClockWatch(4, 0)
    for peer in (1, 2, 3):
        watch.heard(peer, NOW - 60_000, NOW)
    assert watch.wrong_by() == 0


def test_an_answer_tells_the_time_as_it_was_halfway_between_question_and_answer() -> None:
    watch = ClockWatch(1, 0)
    watch.answered(1, NOW - 5_000, NOW + 400, 800)
    assert watch.wrong_by() == -5_000


def test_an_answer_that_took_long_says_nothing() -> None:
    watch = ClockWatch(1, 0)
    watch.answered(1, NOW - 60_000, NOW, PROMPT + 1)
    assert watch.offset() is None


def test_a_broker_that_has_gone_is_no_witness() -> None:
    watch = ClockWatch(1, 0)
    watch.answered(1, NOW - 60_000, NOW, 0)
    watch.forget(1)
    watch.forget(1)
    assert watch.offset() is None


def test_ones_own_word_is_no_witness() -> None:
    watch = ClockWatch(1, 0)
    watch.heard(0, NOW + 60_000, NOW)
    watch.answered(0, NOW + 60_000, NOW, 0)
    assert watch.offset() is None


def test_a_clock_that_was_set_is_right_again() -> None:
    watch = ClockWatch(4, 0)
    watch.heard(1, NOW + 60_000, NOW)
    watch.heard(2, NOW + 60_000, NOW)
    for peer in (1, 2):
        watch.answered(peer, NOW + 61_000, NOW + 61_000, 2)
    assert watch.wrong_by() == 0


def test_the_advice_says_which_way_and_what_to_do() -> None:
    assert "3.5 s behind" in advice(3_500)
    assert "3.5 s ahead of" in advice(-3_500)
    assert "NTP" in advice(3_500)
