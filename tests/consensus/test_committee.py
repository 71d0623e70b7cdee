"""Quorums (P1)."""

import pytest

from parley.consensus.committee import faults, quorum


@pytest.mark.parametrize("n", range(1, 201))
def test_two_quorums_share_an_honest_member_and_the_honest_make_one(n: int) -> None:
    f, q = faults(n), quorum(n)
    assert 2 * q - n >= f + 1
    assert q <= n - f


@pytest.mark.parametrize("n", range(1, 201))
def test_no_smaller_quorum_would_do(n: int) -> None:
    assert 2 * (quorum(n) - 1) - n < faults(n) + 1


@pytest.mark.parametrize(
    ("n", "q"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 4), (7, 5), (8, 6), (9, 6), (32, 22), (33, 22)]
)
def test_quorum_has_the_listed_value(n: int, q: int) -> None:
    assert quorum(n) == q


@pytest.mark.parametrize("n", range(1, 201))
def test_fewer_than_a_third_may_be_faulty(n: int) -> None:
    assert 3 * faults(n) < n <= 3 * faults(n) + 3
