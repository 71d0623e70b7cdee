"""Sums by height, and what they are for: a bound of what constraints add to a batch that was staged before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.model.expressions import parse_constraint
from parley.modules.subscriptions.matching import MatchingIndex
from parley.modules.subscriptions.sums import SumsByHeight

heights = st.integers(0, 40) | st.integers(0, 2**64 - 1) | st.sampled_from((15, 16, 255, 256, 2**64 - 1))
TEXTS = (
    "a = 1",
    "a != 1",
    "a in [1, 2, 3] and b = 2",
    "(a = 1 or b = 2) and c != 3",
    "a = 1 or b in [1, 2]",
    "c = 1 and (a = 2 or b = 1)",
    "false",
    "",
)


@given(st.lists(st.tuples(heights, st.integers(1, 9))), heights, st.data())
def test_the_sum_since_a_height_is_that_of_what_is_there(
    added: list[tuple[int, int]], since: int, data: st.DataObject
) -> None:
    sums = SumsByHeight()
    for height, by in added:
        sums.add(height, by)
    kept = [one for one in added if data.draw(st.booleans())]
    removed = list(added)
    for one in kept:
        removed.remove(one)
    for height, by in removed:
        sums.add(height, -by)
    for asked in (since, 0, *(height for height, _ in added)):
        assert sums.since(asked) == sum(by for height, by in kept if height >= asked)
    again = SumsByHeight()
    for height, by in reversed(kept):
        again.add(height, by)
    assert sums == again


@given(
    st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(1, 9)), unique_by=lambda one: one[0]),
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)), min_size=1, max_size=6),
    st.integers(1, 9),
)
def test_what_was_opened_since_adds_no_more_than_its_burden(
    texts: list[tuple[str, int]], messages: list[dict[str, int]], staged: int
) -> None:
    index = MatchingIndex()
    before = 0
    for text, height in sorted(texts, key=lambda one: one[1]):
        if height < staged:
            constraint = parse_constraint(text)
            index.add(constraint, index.choose(constraint), height)
            before = index.cost((1, tags) for tags in messages)
    for text, height in texts:
        constraint = parse_constraint(text)
        index.add(constraint, index.choose(constraint), height)
    more = index.opened_since(staged).times(len(messages))
    assert index.cost((1, tags) for tags in messages) <= before + more
