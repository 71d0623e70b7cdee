"""How long a member waits follows how long views take, within limits, and grows when views fail (P29, T13)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.consensus.view_times import FEWEST, MARGIN, RECENT, ViewTimes, Waits

FLOOR, VIEW_TIMEOUT, LONGEST, HEARTBEAT = 400, 2_000, 20_000, 1_000


def view_times(*took: int, tolerated: int = 1) -> ViewTimes:
    """After views that took this long, with work to do."""
    times = ViewTimes(Waits(FLOOR, VIEW_TIMEOUT, LONGEST, HEARTBEAT, tolerated))
    for one in took:
        times.certified(one, has_work=True)
    return times


def wait(times: ViewTimes, *, has_work: bool = True, reachable: bool = True) -> int:
    return times.duration(has_work=has_work, reachable=reachable)


def test_as_long_as_nothing_is_known_the_wait_is_that_of_the_genesis_file() -> None:
    assert wait(view_times(*[10] * (FEWEST - 1))) == VIEW_TIMEOUT


@pytest.mark.parametrize(
    ("typical", "expected"), [(10, FLOOR), (100, 100 * MARGIN), (150, 150 * MARGIN), (5_000, VIEW_TIMEOUT)]
)
def test_the_wait_follows_a_typical_view_between_the_floor_and_the_genesis_value(
    typical: int, expected: int
) -> None:
    assert wait(view_times(*[typical] * RECENT)) == expected


def test_liars_that_slow_down_two_of_three_views_do_not_lengthen_the_wait() -> None:
    assert wait(view_times(*[50, 5_000, 5_000] * 5, 50)) == FLOOR


def test_only_the_last_views_count() -> None:
    assert wait(view_times(*[5_000] * 100, *[50] * RECENT)) == FLOOR


def test_without_work_a_heartbeat_is_waited_for_besides() -> None:
    assert wait(view_times(*[10] * RECENT), has_work=False) == HEARTBEAT + FLOOR


def test_the_heartbeat_of_an_idle_view_is_no_part_of_what_it_took() -> None:
    idle = view_times()
    for _ in range(RECENT):
        idle.certified(HEARTBEAT + 100, has_work=False)
    assert wait(idle) == wait(view_times(*[100] * RECENT))


def test_a_view_without_known_work_that_took_less_than_a_heartbeat_says_nothing() -> None:
    """Its leader had work that this member does not know of: to count it as instant would shorten all waits."""
    slow = view_times(*[100] * RECENT)
    for _ in range(RECENT):
        slow.certified(20, has_work=False)
    assert wait(slow) == wait(view_times(*[100] * RECENT))


def test_t13_failures_that_crashed_leaders_can_cause_do_not_lengthen_the_wait() -> None:
    times = view_times(*[10] * RECENT, tolerated=3)
    for _ in range(3):
        times.failed()
        assert wait(times) == FLOOR


def test_t13_then_the_wait_doubles_up_to_the_cap_and_comes_down_with_success() -> None:
    times, waits = view_times(*[10] * RECENT, tolerated=1), []
    for _ in range(20):
        times.failed()
        waits.append(wait(times))
    assert waits[:8] == [400, 800, 1_600, 3_200, 6_400, 12_800, LONGEST, LONGEST]
    assert set(waits[8:]) == {LONGEST}
    for expected in (12_800, 6_400, 3_200, 1_600, 800, 400, 400):
        times.certified(10, has_work=True)
        assert wait(times) == expected


def test_t13_success_before_any_failure_earns_no_credit() -> None:
    times = view_times(*[10] * 100, tolerated=1)
    times.failed()
    times.failed()
    assert wait(times) == 2 * FLOOR


def test_without_a_connection_to_the_leader_the_wait_is_the_floor_whatever_failed() -> None:
    times = view_times(*[10] * RECENT)
    for _ in range(50):
        times.failed()
    assert wait(times, reachable=False) == FLOOR
    assert wait(times, reachable=False, has_work=False) == HEARTBEAT + FLOOR
    assert wait(view_times(), reachable=False) == FLOOR


def test_without_a_connection_it_is_still_not_shorter_than_a_view_takes() -> None:
    assert wait(view_times(*[700] * RECENT), reachable=False) == 700


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(-1_000, 100_000)), max_size=60), st.booleans(), st.booleans()
)
def test_t13_no_wait_is_shorter_than_the_floor_or_longer_than_the_cap(
    views: list[int | None], has_work: bool, reachable: bool
) -> None:
    times = view_times()
    for took in views:
        if took is None:
            times.failed()
        else:
            times.certified(took, has_work=has_work)
    assert FLOOR <= wait(times, reachable=reachable) <= LONGEST


def test_t11_a_timeout_is_said_again_ever_more_slowly_but_at_least_twice_in_the_genesis_value() -> None:
    times = view_times(*[10] * RECENT)
    repeats = [times.repeat(times_) for times_ in range(20)]
    assert repeats[:3] == [200, 400, 800]
    assert set(repeats[3:]) == {VIEW_TIMEOUT // 2}
