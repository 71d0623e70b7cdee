"""A text means what it says on every value, has one canonical spelling, and is refused where it goes wrong."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.formulas import (
    EQUALITY,
    ORDER,
    Formula,
    assignments,
    chances,
    formulas,
    holds,
    spelled,
    steady,
    within_limits,
)

from parley.model.expressions import (
    MAX_NESTING,
    MAX_OPERATORS,
    MAX_TEXT,
    Constraint,
    ExpressionError,
    Rule,
    Value,
    parse_constraint,
    parse_rule,
)

Parse = Callable[[str], Rule | Constraint]

PARSERS: list[Parse] = [parse_rule, parse_constraint]


def error_of(parse: Parse, text: str) -> ExpressionError | None:
    try:
        parse(text)
    except ExpressionError as error:
        return error
    return None


def fault(text: str) -> ExpressionError:
    error = error_of(parse_rule, text)
    assert error is not None, "the text was accepted"
    return error


@steady
@given(formulas(EQUALITY + ORDER), chances, assignments)
def test_a_rule_means_what_its_text_says(
    formula: Formula, chance: Random, attributes: dict[str, Value]
) -> None:
    rule = within_limits(parse_rule, spelled(formula, chance))
    assert rule.allows(attributes) == holds(formula, attributes)


@steady
@given(formulas(EQUALITY + ORDER), chances, assignments)
def test_the_canonical_text_of_a_rule_is_its_own_and_means_the_same(
    formula: Formula, chance: Random, attributes: dict[str, Value]
) -> None:
    rule = within_limits(parse_rule, spelled(formula, chance))
    again = parse_rule(rule.text)
    assert again.text == rule.text
    assert again.names == rule.names
    assert again.allows(attributes) == rule.allows(attributes)


@steady
@given(formulas(EQUALITY + ORDER), chances)
def test_all_spellings_of_a_rule_have_one_text(formula: Formula, chance: Random) -> None:
    first, second = (within_limits(parse_rule, spelled(formula, chance)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", "true"),
        (" \t\r\n", "true"),
        ("false", "false"),
        ("admin", "admin == true"),
        ("a&&b||!c", "a == true and b == true or not c == true"),
        ("((a or b)) and (c and d)", "(a == true or b == true) and c == true and d == true"),
        ("not (not a)", "not not a == true"),
        ("not (a and b)", "not (a == true and b == true)"),
        ("5<age", "age > 5"),
        ("18<=age and 'm' >= name and 7 > x and 0 >= y", 'age >= 18 and name <= "m" and x < 7 and y <= 0'),
        ("'x' = org", 'org == "x"'),
        ("-0 != n", "n != 0"),
        ("007 == n", "n == 7"),
        ("!(x in [2,1,1])", "x not in [2, 1, 1]"),
        ("not x not in [1]", "not x not in [1]"),
        (r"""x == 'a"\'\\\u000a\u0041\u202e/'""", r'''x == "a\"'\\\nA\u202e/"'''),
        ("x == '\u200d😀'", 'x == "\u200d😀"'),
        ("x and true", "x == true and true"),
    ],
)
def test_the_canonical_text_of_a_rule(text: str, canonical: str) -> None:
    assert parse_rule(text).text == canonical
    assert parse_rule(canonical).text == canonical


@pytest.mark.parametrize(
    "text", ["n == 1", "n != 1", "n in [1, 2]", "n not in [1]", "n < 2", "n <= 1", "n > 0", "n >= 1"]
)
def test_true_is_no_number_and_a_digit_is_no_number(text: str) -> None:
    rule = parse_rule(text)
    missing = rule.allows({})
    assert missing == ("!=" in text or "not" in text)
    assert rule.allows({"n": 1}) != missing
    assert rule.allows({"n": True}) == rule.allows({"n": "1"}) == missing


def test_a_bare_name_is_not_any_true_value() -> None:
    rule = parse_rule("admin")
    assert rule.allows({"admin": True})
    assert not any(rule.allows({"admin": value}) for value in (1, "true", False))


def test_negated_order_keeps_its_meaning_on_missing_names() -> None:
    assert parse_rule("not age < 18").allows({})
    assert not parse_rule("age >= 18").allows({})


def test_a_rule_knows_the_names_it_reads() -> None:
    assert parse_rule("a and (b.c == 1 or not 5 < d) or true").names == {"a", "b.c", "d"}


def test_rules_and_constraints_cannot_be_changed() -> None:
    for parse in PARSERS:
        with pytest.raises(AttributeError):
            parse("a").text = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("a and", 5, "expected a name, a value, `not` or `(`, found the end of the text"),
        ("a b", 2, "expected `and`, `or` or the end of the text, found `b`"),
        ("a true b", 2, "expected `and`, `or` or the end of the text, found `true`"),
        ("(a", 2, "expected `and`, `or` or `)`, found the end"),
        ("a)", 1, "expected `and`, `or` or the end of the text, found `)`"),
        ("()", 1, "found `)`"),
        ("(x) == 1", 4, "found `==`"),
        ("x ==", 4, "expected a value, found the end"),
        ("x === 1", 4, "expected a value, found `=`"),
        ("x == y", 5, "names are compared with values only"),
        ("5 == 6", 5, "expected a name on one side of the comparison, found `6`"),
        ("5", 1, "expected a comparison with a name after `5`"),
        ("'a' in x", 4, "expected a comparison with a name after `'a'`, found `in`"),
        ("true in [true]", 5, "found `in`"),
        ("1 < x < 2", 6, "comparisons do not follow one another"),
        ("x == 1 != y", 7, "comparisons do not follow one another"),
        ("x in [1] in [2]", 9, "comparisons do not follow one another"),
        ("x == [1]", 5, "lists follow `in`"),
        ("x in 1", 5, "expected a list of values"),
        ("x in []", 6, "expected a value, found `]`"),
        ("x in [1,]", 8, "expected a value, found `]`"),
        ("x in [y]", 6, "expected a value, found `y`"),
        ("x in [1 ( 2]", 8, "expected `,` or `]`, found `(`"),
        ("x in [1 2]", 8, "expected `,` or `]`, found `2`"),
        ("x not 5", 6, "expected `in` after `not`, found `5`"),
        ("x < true", 4, "has no order"),
        ("false >= x", 0, "has no order"),
        ("x == 1.5", 5, "without fraction, exponent or suffix"),
        ("x == 1e5", 5, "without fraction"),
        ("x == 0x1f", 5, "without fraction"),
        ("x == 9223372036854775808", 5, "expected a number from -9223372036854775808 to 9223372036854775807"),
        ("x == -9223372036854775809", 5, "expected a number from"),
        ("x == +1", 5, "`+` has no meaning here"),
        ("x == - 1", 5, "`-` has no meaning here"),
        ("f(x)", 1, "found `(`"),
        ("x =~ 'a*'", 3, "`~` has no meaning here"),
        ("a & b", 2, "expected `&&`"),
        ("a | b", 2, "expected `||`"),
        ("é", 0, "U+00E9 has no meaning here"),
        ("x\u00a0== 1", 1, "U+00A0 has no meaning here"),
        ("x == ١", 5, "U+0661 has no meaning here"),
        ("a AND b", 2, "write `and` in lower case"),
        ("x or True", 5, "write `true` in lower case"),
        ("x == 'abc", 5, "expected a closing '"),
        ("x == \"abc'", 5, 'expected a closing "'),
        ("x == 'abc\\", 9, "expected one of"),
        (r"x == 'a\q'", 7, "expected one of"),
        (r"x == 'a\u12'", 7, "four hexadecimal digits"),
        (r"x == 'a\ud800'", 7, "half of a surrogate pair"),
        ("x == 'a\nb'", 7, r"expected U+000A to be written \u000a"),
        ("x == 'a\u202eb'", 7, r"expected U+202E to be written \u202e"),
        ("x == '\ud800'", 6, "half of a surrogate pair"),
        ("a " + "b" * 1000, 2, "found `bbbbbbbbbbbbbbbbbbbbbbb…`"),
    ],
)
def test_a_fault_is_named_and_located(text: str, position: int, message: str) -> None:
    error = fault(text)
    assert message in error.message
    assert error.position == position
    assert str(error) == f"at character {position}: {error.message}"


def test_the_first_fault_is_the_one_reported() -> None:
    assert fault("x == == 'abc").position == 5


@pytest.mark.parametrize("parse", PARSERS)
def test_operators_are_limited_and_flat_chains_count(parse: Parse) -> None:
    chain = " and ".join(["a == 1", "b"] * 16)  # 32 comparisons, 31 `and`
    listed = ", ".join(["1"] * (MAX_OPERATORS - 1))
    for text in (f"not {chain}", f"x in [{listed}]"):
        parse(text)
    assert fault(" or ".join(["1 == a"] * 33)).position == 32 * 10
    for text, position in ((f"not {chain} or c", len(chain) + 5), (f"x in [{listed}, 22]", len(listed) + 8)):
        assert fault(text).position == position
        assert "at most 64 operators" in fault(text).message


@pytest.mark.parametrize(("before", "after"), [("(", ")"), ("not ", ""), ("!", "")])
def test_nesting_is_limited(before: str, after: str) -> None:
    for parse in PARSERS:
        parse(before * MAX_NESTING + "x" + after * MAX_NESTING)
    error = fault(before * (MAX_NESTING + 1) + "x" + after * (MAX_NESTING + 1))
    assert "at most 16 levels" in error.message
    assert error.position == MAX_NESTING * len(before)


def test_nesting_counts_parentheses_and_not_together_and_only_while_they_last() -> None:
    parse_rule("not (" * 8 + "x" + ")" * 8)
    assert "levels" in fault("not (" * 8 + "not x" + ")" * 8).message
    parse_rule(" or ".join(["not (a)"] * 21))
    for before in ("not a and ", "(a) and "):
        assert fault(before + "(" * 17).position == len(before) + 16


@pytest.mark.parametrize("character", ["(", "!", "[", "'", '"', "-", "a", "9", "\\", " or", "not ", "x in ["])
def test_a_kilobyte_of_anything_is_answered_without_deep_recursion(character: str) -> None:
    for parse in PARSERS:
        with pytest.raises(ExpressionError):
            parse((character * MAX_TEXT)[:MAX_TEXT])


def test_the_text_is_limited_in_bytes() -> None:
    longest = 'x == "' + "é" * ((MAX_TEXT - 8) // 2) + 'a"'
    assert len(longest.encode()) == MAX_TEXT
    assert parse_rule(longest).text == longest
    error = fault(longest + " ")
    assert (error.position, error.message) == (
        len(longest),
        "expected the text to end here, within 1024 bytes",
    )
    assert fault("é" * MAX_TEXT).position == MAX_TEXT // 2
    assert fault("a" + "é" * MAX_TEXT).position == MAX_TEXT // 2  # half of the last one would fit
    assert parse_rule(" " * MAX_TEXT).text == "true"
    assert fault(" " * (MAX_TEXT + 1)).position == MAX_TEXT


@pytest.mark.parametrize("parse", PARSERS)
def test_the_canonical_text_keeps_the_same_limit(parse: Parse) -> None:
    parse("x=='a" + '"' * 508 + "'")
    with pytest.raises(ExpressionError, match="at most 1024 bytes in canonical form, found 1025"):
        parse("x=='aa" + '"' * 508 + "'")


PIECES = [
    *(
        "a",
        "b.c",
        "true",
        "false",
        "not",
        "in",
        "and",
        "or",
        "&&",
        "||",
        "!",
        "(",
        ")",
        "[",
        "]",
        ",",
        "'",
        '"',
    ),
    *(
        "=",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "1",
        "-5",
        "1.5",
        "'s'",
        r"\u00",
        "\\",
        " ",
        "\n",
        "é",
        "\u202e",
        "\ud800",
    ),
]


@settings(derandomize=True, max_examples=1000, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_any_text_is_an_expression_or_an_expression_error(text: str) -> None:
    for parse in PARSERS:
        error = error_of(parse, text)
        if error is None:
            canonical = parse(text).text
            assert parse(canonical).text == canonical
        else:
            assert 0 <= error.position <= len(text)
            assert error.message
