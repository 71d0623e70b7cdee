from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.net.limits import Entry, Quota, Strikes, TokenBucket, source_of

RATES = st.integers(1, 5_000)
BURSTS = st.integers(1, 500)
STEPS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 600)), max_size=60)  # (time passed, tokens)
SOURCES = st.sampled_from("abcdefgh")


@given(RATES, BURSTS, STEPS)
def test_no_span_of_time_yields_more_than_the_burst_and_the_rate(
    rate: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now = TokenBucket(rate, burst), 0
    taken: list[tuple[int, int]] = []
    for passed, tokens in steps:
        now += passed
        if bucket.take(tokens, now):
            taken.append((now, tokens))
    for index, (start, _) in enumerate(taken):
        total = 0
        for end, tokens in taken[index:]:
            total += tokens
            assert total <= burst + rate * (end - start) / 1_000


@given(RATES, BURSTS, STEPS, st.integers(0, 600))
def test_the_announced_wait_is_long_enough_and_not_a_millisecond_more(
    rate: int, burst: int, steps: list[tuple[int, int]], tokens: int
) -> None:
    def used() -> tuple[TokenBucket, int]:
        bucket, now = TokenBucket(rate, burst), 0
        for passed, amount in steps:
            now += passed
            bucket.take(amount, now)
        return bucket, now

    bucket, now = used()
    wait = bucket.wait_ms(tokens, now)
    if wait is None:
        assert tokens > burst
        assert not bucket.take(tokens, now + 10**9)
        return
    assert bucket.take(tokens, now + wait)
    if wait > 0:
        bucket, now = used()
        assert not bucket.take(tokens, now + wait - 1)


@given(RATES, BURSTS, STEPS)
def test_a_steady_user_within_the_rate_is_never_refused(
    rate: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now, allowed = TokenBucket(rate, burst), 0, burst * 1_000
    for passed, tokens in steps:
        now += passed
        allowed = min(burst * 1_000, allowed + passed * rate)
        fits = tokens * 1_000 <= allowed
        assert bucket.take(tokens, now) is fits
        allowed -= tokens * 1_000 * fits


def test_a_clock_that_jumps_back_neither_yields_nor_costs_tokens() -> None:
    bucket = TokenBucket(1, 2)
    assert bucket.take(1, 10_000)
    assert bucket.take(1, 0)
    assert not bucket.take(1, 0)
    assert not bucket.take(1, 10_999)
    assert bucket.take(1, 11_000)


def test_a_bucket_takes_no_negative_tokens_and_needs_a_rate_and_a_burst() -> None:
    with pytest.raises(ValueError, match="cannot take -1"):
        TokenBucket(1, 1).take(-1, 0)
    for rate, burst in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            TokenBucket(rate, burst)


@given(
    st.integers(1, 4),
    st.integers(4, 12),
    st.lists(st.tuples(SOURCES, st.booleans()), max_size=80),
)
def test_a_quota_counts_as_a_plain_list_of_connections_would(
    per_source: int, total: int, steps: list[tuple[str, bool]]
) -> None:
    quota = Quota(per_source, total)
    connections: list[str] = []
    for source, arrives in steps:
        if not arrives:
            if source in connections:
                quota.leave(source)
                connections.remove(source)
        elif len(connections) >= total:
            assert quota.enter(source) is Entry.FULL
        elif connections.count(source) >= per_source:
            assert quota.enter(source) is Entry.SOURCE_FULL
        else:
            assert quota.enter(source) is Entry.ADMITTED
            connections.append(source)
        assert quota.count == len(connections)
        assert quota._open.keys() == set(connections)  # nobody who left is remembered


def test_a_quota_that_admits_nobody_is_a_mistake() -> None:
    for per_source, total in ((0, 1), (2, 1)):
        with pytest.raises(ValueError, match="admits nobody"):
            Quota(per_source, total)


def strikes(limit: int = 3, capacity: int = 100) -> Strikes:
    return Strikes(limit=limit, window_ms=1_000, ban_ms=10_000, capacity=capacity)


def test_garbage_past_the_limit_bans_for_a_while_and_nobody_else() -> None:
    guard = strikes(limit=3)
    assert [guard.strike("a", now) for now in (0, 1, 2)] == [False, False, True]
    assert guard.banned("a", 10_001)
    assert guard.wait_ms("a", 10_001) == 1
    assert not guard.banned("b", 2)
    assert not guard.banned("a", 10_002)
    assert not guard.strike("a", 10_002)  # it starts anew
    assert len(guard) == 1


def test_garbage_now_and_then_is_forgiven() -> None:
    guard = strikes(limit=2)
    assert not any(guard.strike("a", now) for now in range(0, 100_000, 1_000))
    assert guard.strike("a", 99_001)


def test_a_ban_is_not_washed_out_by_garbage_from_others() -> None:
    guard = strikes(limit=2, capacity=4)
    guard.strike("a", 0)
    assert guard.strike("a", 0)
    for number in range(100):
        guard.strike(f"other {number}", 1)
    assert guard.banned("a", 1)
    assert len(guard) <= 2 * 4


def test_of_too_many_bans_the_oldest_are_forgotten() -> None:
    guard = strikes(limit=1, capacity=2)
    for now, source in enumerate("abc"):
        assert guard.strike(source, now)
    assert [guard.banned(source, 3) for source in "abc"] == [False, True, True]


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4_000), SOURCES), max_size=120),
)
def test_strikes_need_bounded_memory_and_ban_only_who_struck_often(
    limit: int, capacity: int, steps: list[tuple[int, str]]
) -> None:
    guard, now = strikes(limit, capacity), 0
    history: dict[str, list[int]] = {}
    for passed, source in steps:
        now += passed
        was_banned = guard.banned(source, now)
        times = history.setdefault(source, [])
        if not was_banned:
            times.append(now)
        if guard.strike(source, now) and not was_banned:
            assert sum(now - time < 1_000 for time in times) >= limit
            times.clear()
        assert len(guard) <= 2 * capacity


def test_strikes_without_a_limit_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        strikes(limit=0)


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_source_is_what_one_party_has_one_of(host: str, source: str) -> None:
    assert source_of(host) == source
