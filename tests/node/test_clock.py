"""A clock that is off is noticed from what others say and from the headers they certify, and from nothing less."""

from __future__ import annotations

from parley.node.clock import TOLERATED, ClockWatch, advice

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
        watch.heard(peer, NOW + offset, NOW)
    assert watch.offset() == 10
    assert watch.wrong_by() == 0


def test_what_is_tolerated_is_not_wrong() -> None:
    watch = ClockWatch(1, 0)
    watch.heard(1, NOW - TOLERATED, NOW)
    assert (watch.offset(), watch.wrong_by()) == (-TOLERATED, 0)


def test_headers_that_keep_the_pace_tell_the_time() -> None:
    watch = ClockWatch(4, 0)
    for step in range(8):
        watch.saw(step % 4, NOW + step * 1_000 + 30_000, NOW + step * 1_000)
    assert watch.wrong_by() == 30_000


def test_headers_that_come_in_a_rush_while_catching_up_do_not() -> None:
    watch = ClockWatch(4, 0)
    for step in range(10_000):
        watch.saw(step % 4, NOW - 86_400_000 + step * 1_000, NOW + step)
    assert watch.offset() is None


def test_ones_own_headers_are_no_witness() -> None:
    watch = ClockWatch(1, 0)
    for step in range(10):
        watch.saw(0, NOW + step * 1_000 + 30_000, NOW + step * 1_000)
    assert watch.offset() is None


def test_a_clock_that_was_set_is_right_again() -> None:
    watch = ClockWatch(4, 0)
    watch.heard(1, NOW + 60_000, NOW)
    watch.heard(2, NOW + 60_000, NOW)
    set_at = NOW + 60_000
    for step in range(8):
        watch.saw(step % 4, set_at + step * 1_000, set_at + step * 1_000)
    assert watch.wrong_by() == 0


def test_the_advice_says_which_way_and_what_to_do() -> None:
    assert "3.5 s behind" in advice(3_500)
    assert "3.5 s ahead of" in advice(-3_500)
    assert "NTP" in advice(3_500)
