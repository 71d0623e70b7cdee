"""A constraint keeps its meaning in normal form, and equal constraints have one id (P6)."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from parley.crypto.hashing import digest
from parley.model.expressions import ExpressionError, Value, parse_constraint, parse_rule

OPPOSITE = {
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
    "true": "false",
    "false": "true",
    "and": "or",
    "or": "and",
}


@steady
@given(formulas(EQUALITY), chances, assignments)
def test_the_normal_form_means_what_the_text_says(
    formula: Formula, chance: Random, tags: dict[str, Value]
) -> None:
    constraint = within_limits(parse_constraint, spelled(formula, chance))
    assert constraint.matches(tags) == holds(formula, tags)
    assert parse_rule(constraint.text).allows(tags) == holds(formula, tags)


@steady
@given(formulas(EQUALITY), chances)
def test_the_normal_form_is_its_own_normal_form(formula: Formula, chance: Random) -> None:
    constraint = within_limits(parse_constraint, spelled(formula, chance))
    again = parse_constraint(constraint.text)
    assert again == constraint
    assert (again.text, again.id, again.names) == (constraint.text, constraint.id, constraint.names)
    assert constraint.id == digest("constraint/id", constraint.text.encode())


def rewritten(formula: Formula, chance: Random) -> Formula:
    """Another formula that is the same up to order, duplicates, De Morgan, lists and constants."""

    def again(formula: Formula) -> Formula:
        match chance.randrange(8):
            case 5:
                return Formula("not", parts=(varied(negated(formula)),))
            case 6:
                return Formula("and", parts=(Formula("true"), varied(formula)))
            case 7:
                return Formula("or", parts=(varied(formula), Formula("false")))
            case _:
                return varied(formula)

    def varied(formula: Formula) -> Formula:
        if formula.kind in ("in", "not in"):
            return unlisted(formula)
        if formula.kind == "bare":
            return Formula("==", formula.name, (True,))
        parts = shuffled([again(part) for part in formula.parts], chance)
        if formula.kind in ("and", "or") and chance.random() < 0.5:
            parts = [*parts, parts[0]]
        return Formula(formula.kind, formula.name, formula.values, tuple(parts))

    def unlisted(formula: Formula) -> Formula:
        operator, word = ("==", "or") if formula.kind == "in" else ("!=", "and")
        parts = shuffled([Formula(operator, formula.name, (value,)) for value in formula.values], chance)
        return parts[0] if len(parts) == 1 else Formula(word, parts=tuple(parts))

    return again(formula)


def negated(formula: Formula) -> Formula:
    match formula.kind:
        case "not":
            return formula.parts[0]
        case "bare":
            return Formula("!=", formula.name, (True,))
        case kind:
            parts = tuple(negated(part) for part in formula.parts)
            return Formula(OPPOSITE[kind], formula.name, formula.values, parts)


def shuffled(parts: list[Formula], chance: Random) -> list[Formula]:
    return chance.sample(parts, len(parts))


@steady
@given(formulas(EQUALITY, max_leaves=4), chances)
def test_constraints_that_say_the_same_in_another_way_have_one_id(formula: Formula, chance: Random) -> None:
    first = within_limits(parse_constraint, spelled(formula, chance))
    second = within_limits(parse_constraint, spelled(rewritten(formula, chance), chance))
    assert first.text == second.text
    assert first.id == second.id


WRAPPINGS = [
    "not ({})",
    "not {}",
    "({}) and n{}",
    "({}) or n{}",
    "n{} or m{} and ({})",
    "n{} and ({})",
    "n{} or {}",
]


@steady
@given(st.lists(st.sampled_from(WRAPPINGS), min_size=8, max_size=18))
def test_no_normal_form_outgrows_the_limits_that_its_text_kept(wrappings: list[str]) -> None:
    text = "x in [1, 2]"
    for number, wrapping in enumerate(wrappings):
        text = wrapping.replace("n{}", f"n{number}").replace("m{}", f"m{number}").format(text)
    constraint = within_limits(parse_constraint, text)
    assert parse_constraint(constraint.text) == constraint


def test_at_the_limit_of_operators_negation_still_has_a_normal_form() -> None:
    lists = " and ".join(f"{name} in [1, 2, 3, 4]" for name in "abcdefghij")
    constraint = parse_constraint(f"not ({lists} and k and l)")  # 1 not, 10 lists of 5, 2 names, 11 and
    assert parse_constraint(constraint.text) == constraint
    assert constraint.text.startswith("a not in [1, 2, 3, 4] or b not in")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", "true"),
        ("  ", "true"),
        ("not true", "false"),
        ("x && true", "x == true"),
        ("x and not true", "false"),
        ("x or true", "true"),
        ("x or false", "x == true"),
        ("true and (false or true)", "true"),
        ("b and a and b", "a == true and b == true"),
        ("a and (b and (c and a))", "a == true and b == true and c == true"),
        ("x == 2 or x == 1 or y", "x in [1, 2] or y == true"),
        ("x in ['b', 1, true, 'a', false, 1, -1]", 'x in [false, true, -1, 1, "a", "b"]'),
        ("x in [1] or x == 1", "x == 1"),
        ("x != 1 and x not in [3, 2]", "x not in [1, 2, 3]"),
        ("x != 1 or x != 2", "x != 1 or x != 2"),
        ("x == 1 and x == 2", "x == 1 and x == 2"),
        ("x in [1, 2] and x in [2, 3]", "x in [1, 2] and x in [2, 3]"),
        ("!(a && !(b || c))", "a != true or b == true or c == true"),
        ("not (a or b and c)", "a != true and (b != true or c != true)"),
        ("x != false", "x != false"),
    ],
)
def test_the_canonical_text_of_a_constraint(text: str, canonical: str) -> None:
    assert parse_constraint(text).text == canonical


@pytest.mark.parametrize(
    ("cel", "words"),
    [
        ('kind == "trade" && !(venue in ["x", "y"])', "kind = 'trade' and venue not in ['y', 'x']"),
        ("a || !b", "not b or a = true"),
        ("!(a && b)", "not a or not b"),
    ],
)
def test_the_spelling_of_cel_and_that_of_words_share_an_id(cel: str, words: str) -> None:
    assert parse_constraint(cel).id == parse_constraint(words).id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x == 1", "x == true"),
        ("x == 1", "x == '1'"),
        ("x == 'true'", "x"),
        ("x != true", "x == false"),
        ("x in [1, true]", "x == 1"),
        ("x == 'é'", "x == 'e\u0301'"),
        ("a and b or c", "a and (b or c)"),
        ("true", "false"),
    ],
)
def test_constraints_of_different_meaning_have_different_ids(one: str, other: str) -> None:
    assert parse_constraint(one).id != parse_constraint(other).id
    assert parse_constraint(one) != parse_constraint(other)


def test_the_id_is_frozen() -> None:
    constraint = parse_constraint("kind = 'trade' and not (venue in ['y', 'x'] or test)")
    assert constraint.text == 'kind == "trade" and test != true and venue not in ["x", "y"]'
    assert constraint.id.hex() == "dd910a0d64385df3b3227c4ac4fac19e53d3d8a0515361ad20dccf8d0ab40b5c"


@pytest.mark.parametrize(
    ("text", "position"), [("x < 1", 2), ("a and 5 >= x", 8), ("a or (b > 'x')", 8), ("x <= 1.5", 2)]
)
def test_constraints_refuse_order_and_say_why(text: str, position: int) -> None:
    with pytest.raises(ExpressionError, match="constraints find subscribers by equal tags") as caught:
        parse_constraint(text)
    assert caught.value.position == position


def test_a_constraint_knows_the_names_it_reads_after_absorption() -> None:
    assert parse_constraint("a and (b == 1 or not c)").names == {"a", "b", "c"}
    assert parse_constraint("a or true").names == frozenset()
