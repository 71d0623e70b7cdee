"""The index gives what asking every constraint would give, and asks few of them."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.model.formulas import (
    EQUALITY,
    Formula,
    assignments,
    chances,
    formulas,
    holds,
    spelled,
    steady,
    within_limits,
)

from parley.application.tables import encode_value
from parley.model.expressions import Constraint, Value, parse_constraint
from parley.modules.subscriptions import matching
from parley.modules.subscriptions.index import equalities_of, guard_of
from parley.modules.subscriptions.matching import HEAD, LEAST, MatchingIndex
from parley.modules.subscriptions.tables import CONSTRAINTS, LiveConstraint


def add(index: MatchingIndex, constraint: Constraint) -> None:
    index.add(constraint, index.choose(constraint))


def index_of(*texts: str) -> MatchingIndex:
    index = MatchingIndex()
    for text in texts:
        add(index, parse_constraint(text))
    return index


Drawn = tuple[Formula, Constraint]


def made(formula: Formula, chance: Random) -> Drawn:
    return formula, within_limits(parse_constraint, spelled(formula, chance))


constraints = st.builds(made, formulas(EQUALITY, max_leaves=4), chances)
pools = st.lists(constraints, min_size=1, max_size=8)


@steady
@given(pools, chances, st.lists(assignments, min_size=1, max_size=12))
def test_the_index_gives_what_asking_every_constraint_gives(
    pool: list[Drawn], chance: Random, publications: list[dict[str, Value]]
) -> None:
    index, present = MatchingIndex(), dict[bytes, Formula]()
    for tags in publications:
        for formula, constraint in chance.choices(pool, k=3):
            if constraint.id in present and chance.random() < 0.5:
                del present[constraint.id]
                index.remove(constraint.id)
            else:
                present[constraint.id] = formula
                add(index, constraint)
            assert len(index) == len(present)
            assert (constraint.id in index) == (constraint.id in present)
        assert index.match(tags) == sorted(name for name, formula in present.items() if holds(formula, tags))


@steady
@given(pools, chances, assignments)
def test_the_order_of_adding_makes_no_difference(
    pool: list[Drawn], chance: Random, tags: dict[str, Value]
) -> None:
    first, second = MatchingIndex(), MatchingIndex()
    for _, constraint in pool:
        add(first, constraint)
    for _, constraint in chance.sample(pool, len(pool)):
        add(second, constraint)
    assert first.match(tags) == second.match(tags)


@steady
@given(pools)
def test_an_emptied_index_keeps_nothing(pool: list[Drawn]) -> None:
    index = MatchingIndex()
    for _, constraint in pool:
        add(index, constraint)
    for identity in {constraint.id for _, constraint in pool}:
        index.remove(identity)
    assert len(index) == 0
    assert not index.needs_tags
    assert not any((index._constraints, index._guards, index._guarded, index._unguarded, index._weights))


def test_numbers_and_booleans_are_told_apart() -> None:
    one, true = parse_constraint("x == 1"), parse_constraint("x")
    index = index_of("x == 1", "x")
    assert index.match({"x": 1}) == [one.id]
    assert index.match({"x": True}) == [true.id]


def test_tags_are_needed_only_for_constraints_that_name_some() -> None:
    assert not MatchingIndex().needs_tags
    constant = index_of("true", "false")
    assert not constant.needs_tags
    assert constant.match({}) == constant.match({"x": 1}) == [parse_constraint("true").id]
    assert index_of("true", "x == 1").needs_tags
    assert index_of("true", "x != 1").needs_tags


def test_tags_are_not_needed_once_the_last_constraint_that_names_some_is_gone() -> None:
    index = index_of("true", "x == 1", "x != 1")
    index.remove(parse_constraint("x == 1").id)
    assert index.needs_tags
    index.remove(parse_constraint("x != 1").id)
    assert not index.needs_tags


def test_a_constraint_added_twice_is_there_once() -> None:
    index = index_of("x == 1", "1 = x")
    assert len(index) == 1
    index.remove(parse_constraint("x == 1").id)
    assert index.match({"x": 1}) == []
    with pytest.raises(KeyError):
        index.remove(parse_constraint("x == 1").id)


def watched(text: str, asked: list[str]) -> Constraint:
    """The constraint, which notes when it is asked."""
    constraint = parse_constraint(text)

    class Noting:
        def holds(self, tags: Mapping[str, Value], /) -> bool:
            asked.append(text)
            return constraint.matches(tags)

    return replace(constraint, predicate=Noting())


@pytest.mark.parametrize(
    "shape",
    [
        "kind == 'trade' and symbol == {}",
        "symbol == {} and kind == 'trade' and not test",
        "(kind == 'trade' or kind == 'quote') and symbol in [{}, -1]",
        "kind == 'trade' and (symbol == {} or account == {} or urgent)",
        "zone in ['a', 'b', 'c'] and symbol == {}",
    ],
)
def test_a_publication_asks_few_of_many_constraints(shape: str) -> None:
    index, asked = MatchingIndex(), list[str]()
    for number in range(300):
        add(index, watched(shape.replace("{}", str(number)), asked))
    matched = index.match({"kind": "trade", "symbol": 250, "zone": "a"})
    assert len(matched) == 1
    # The first of them may wait under the common tag, until it is crowded.
    assert len(asked) <= 30


def test_only_what_cannot_be_guarded_is_asked_every_time() -> None:
    asked = list[str]()
    index = MatchingIndex()
    for text in ("x == 1", "x in [1, 2]", "x == 1 and y != 2", "x == 1 or y == 1", "false"):
        add(index, watched(text, asked))
    assert index.match({"x": 3, "z": 1}) == []
    assert asked == []
    for text in ("x != 3", "x not in [3, 4]", "x == 1 or y != 1", "true"):
        add(index, watched(text, asked))
    assert len(index.match({"x": 3, "z": 1})) == 2
    assert sorted(asked) == sorted(["x != 3", "x not in [3, 4]", "x == 1 or y != 1", "true"])


@steady
@given(pools, assignments)
def test_what_a_publication_asks_is_known_before_it_asks(pool: list[Drawn], tags: dict[str, Value]) -> None:
    index, asked = MatchingIndex(), list[str]()
    for _, constraint in pool:
        add(index, watched(constraint.text, asked))
    index.match(tags)
    assert len(asked) <= index.cost([(1, tags)])


def test_long_constraints_cost_more_than_short_ones() -> None:
    index = index_of("x == 1", "x == 1 and (y != 1 or z != 1)", "w != 1")
    assert [index.cost([(1, tags)]) for tags in ({}, {"x": 2}, {"x": True})] == [LEAST + HEAD] * 3
    assert index.cost([(1, {"x": 1, "y": 1})]) == 3 * LEAST + 3 * HEAD


def test_the_head_of_an_order_counts_once_for_a_batch_however_many_messages_it_numbers() -> None:
    index = index_of("x == 1", "x == 2", "w != 1")
    assert index.cost([(5, {"x": 1}), (1, {"x": 1}), (2, {"x": 2}), (1, {})]) == 17 * LEAST + 3 * HEAD


def test_each_place_of_the_index_has_limited_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MAX_UNGUARDED", 2)
    monkeypatch.setattr(matching, "MAX_WAITING", 3)
    index = index_of("a != 1", "x == 1", "x == 1 and b != 1", "x == 1 and b != 2")
    full, free = (index.choose(parse_constraint(text)) for text in ("x in [1, 2]", "x == 2"))
    assert (index.has_room(None), index.has_room(full), index.has_room(free)) == (True, False, True)
    add(index, parse_constraint("a != 2"))
    assert not index.has_room(None)


@steady
@given(pools)
def test_a_guard_is_stored_in_one_form(pool: list[Drawn]) -> None:
    index = MatchingIndex()
    for _, constraint in pool:
        guard = index.choose(constraint)
        index.add(constraint, guard)
        live = LiveConstraint(constraint.text, (1, 0), 1, equalities_of(guard))
        assert guard_of(CONSTRAINTS.decode(encode_value(live))) == guard
