"""A rule names organisations if it is true for no other ones, whatever else a reader's attributes say."""

from random import Random

import pytest
from hypothesis import given
from tests.model.formulas import (
    EQUALITY,
    NAMES,
    ORDER,
    VALUES,
    Formula,
    assignments,
    chances,
    formulas,
    holds,
    spelled,
    steady,
    within_limits,
)

from parley.model.expressions import Value, required_values


@pytest.mark.parametrize(
    ("rule", "organisations"),
    [
        ('org == "alpha"', {"alpha"}),
        ('"alpha" == org', {"alpha"}),
        ('org in ["alpha", "bravo"] and role == "nurse"', {"alpha", "bravo"}),
        ('role == "nurse" and level > 2 and org = "alpha"', {"alpha"}),
        ('org == "alpha" or org == "bravo" and role == "nurse"', {"alpha", "bravo"}),
        ('not (org != "alpha" or role == "nurse")', {"alpha"}),
        ('not (org not in ["alpha", "bravo"]) and org != "bravo"', {"alpha"}),
        ('(role == "nurse" or org == "alpha") and org in ["bravo"]', {"bravo"}),
        ("false", set()),
        ('org == "alpha" and org == "bravo"', set()),
    ],
)
def test_a_rule_names_organisations_that_it_limits_itself_to(rule: str, organisations: set[Value]) -> None:
    found = required_values(rule, "org")
    assert found is not None
    assert set(found) == organisations


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "true",
        'role == "nurse"',
        'client == "alice"',
        'org != "alpha"',
        'org not in ["alpha"] and role == "nurse"',
        'org == "alpha" or role == "nurse"',
        'not (org == "alpha" and role == "nurse")',
        'not org == "alpha"',
        'org < "b"',
        'not org >= "b"',
        'org == "alpha" or org != "alpha"',
        'organisation == "alpha"',
    ],
)
def test_a_rule_that_other_organisations_can_pass_names_none(rule: str) -> None:
    assert required_values(rule, "org") is None


@steady
@given(formulas(EQUALITY + ORDER), chances, assignments)
def test_a_rule_is_true_only_for_values_that_it_names(
    formula: Formula, chance: Random, known: dict[str, Value]
) -> None:
    named = within_limits(lambda text: required_values(text, NAMES[0]), spelled(formula, chance))
    if named is None:
        return
    listed = {(type(value), value) for value in named}
    for value in VALUES:
        assert not holds(formula, known | {NAMES[0]: value}) or (type(value), value) in listed
    assert not holds(formula, {name: value for name, value in known.items() if name != NAMES[0]})
