"""Formulas made apart from the code under test: drawn at random, spelled in many ways, evaluated naively."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from hypothesis import reject, settings
from hypothesis import strategies as st

from parley.model.expressions import ExpressionError, Value

NAMES = ["a", "b", "_c.d", "innot", "Z9"]
VALUES: list[Value] = [
    True,
    False,
    0,
    1,
    -1,
    2,
    -(2**63),
    2**63 - 1,
    "",
    "1",
    "true",
    "é\U0001f600",
    "\"'\\\n\t\r\u202e]",
]

EQUALITY = ["==", "!=", "in", "not in", "bare"]
ORDER = ["<", "<=", ">", ">="]

T = TypeVar("T")

steady = settings(derandomize=True, max_examples=200, deadline=None)
chances = st.integers(0, 2**32).map(Random)

assignments = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))


@dataclass(frozen=True)
class Formula:
    kind: str  # "true", "false", an operator, "bare", "not", "and", "or"
    name: str = ""
    values: tuple[Value, ...] = ()
    parts: tuple[Formula, ...] = ()


def holds(formula: Formula, known: Mapping[str, Value]) -> bool:
    """What the language says of missing names and of types, word by word."""
    match formula.kind:
        case "true" | "false":
            return formula.kind == "true"
        case "not":
            return not holds(formula.parts[0], known)
        case "and":
            return all(holds(part, known) for part in formula.parts)
        case "or":
            return any(holds(part, known) for part in formula.parts)
        case "!=" | "not in":
            return not any(compares(known, formula.name, "==", value) for value in formula.values)
        case "in":
            return any(compares(known, formula.name, "==", value) for value in formula.values)
        case "bare":
            return compares(known, formula.name, "==", True)
        case _:
            return compares(known, formula.name, formula.kind, formula.values[0])


def compares(known: Mapping[str, Value], name: str, operator: str, value: Value) -> bool:
    if name not in known or type(known[name]) is not type(value):
        return False
    left: str | int = known[name]
    results = {"==": left == value}
    if isinstance(left, str) and isinstance(value, str):
        results |= {"<": left < value, "<=": left <= value, ">": left > value, ">=": left >= value}
    if isinstance(left, int) and isinstance(value, int):
        results |= {"<": left < value, "<=": left <= value, ">": left > value, ">=": left >= value}
    return results[operator]


def comparisons(operators: list[str]) -> st.SearchStrategy[Formula]:
    @st.composite
    def drawn(draw: st.DrawFn) -> Formula:
        operator = draw(st.sampled_from(operators))
        name = draw(st.sampled_from(NAMES))
        if operator == "bare":
            return Formula("bare", name)
        longest = 3 if operator.endswith("in") else 1
        values = st.sampled_from([v for v in VALUES if operator not in ORDER or not isinstance(v, bool)])
        return Formula(operator, name, tuple(draw(st.lists(values, min_size=1, max_size=longest))))

    return drawn()


def formulas(operators: list[str], max_leaves: int = 7) -> st.SearchStrategy[Formula]:
    leaves = st.one_of(
        comparisons(operators), comparisons(operators), st.builds(Formula, st.sampled_from(["true", "false"]))
    )

    def extended(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        groups = st.builds(
            lambda kind, parts: Formula(kind, parts=tuple(parts)),
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=2, max_size=3),
        )
        return st.one_of(groups, groups, st.builds(lambda part: Formula("not", parts=(part,)), inner))

    return st.recursive(leaves, extended, max_leaves=max_leaves)


SPELLINGS = {"and": ["and", "&&"], "or": ["or", "||"], "not": ["not ", "!", "! "], "==": ["=", "=="]}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def spelled(formula: Formula, chance: Random) -> str:
    """One of the many texts of a formula."""

    def chosen(symbol: str) -> str:
        return chance.choice(SPELLINGS.get(symbol, [symbol]))

    def text(formula: Formula, level: int) -> str:
        plain, own = body(formula)
        needless = chance.random() < 0.1
        return f"({plain})" if own < level or needless else plain

    def body(formula: Formula) -> tuple[str, int]:
        """The text, and how tightly it binds: 1 or, 2 and, 3 not, 4 comparison."""
        match formula.kind:
            case "true" | "false":
                return formula.kind, 4
            case "not":
                return chosen("not") + text(formula.parts[0], 3), 3
            case "and" | "or":
                level = 2 if formula.kind == "and" else 1
                glue = f" {chosen(formula.kind)} "
                return glue.join(text(part, level) for part in formula.parts), level
            case _:
                return comparison(formula), 4

    def comparison(formula: Formula) -> str:
        space = chance.choice(["", " ", "\n\t "])
        values = [literal(value, chance) for value in formula.values]
        match formula.kind:
            case "bare":
                return formula.name
            case "in" | "not in":
                return f"{formula.name} {formula.kind} [{f'{space},'.join(values)}]"
            case kind if chance.random() < 0.5:
                return f"{values[0]}{space}{chosen(MIRRORED[kind])}{space}{formula.name}"
            case kind:
                return f"{formula.name}{space}{chosen(kind)}{space}{values[0]}"

    return text(formula, 1)


def literal(value: Value, chance: Random) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    quote = chance.choice("\"'")
    escapes = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\u202e": "\\u202E", quote: "\\" + quote}
    return quote + "".join(escapes.get(character, character) for character in value) + quote


def within_limits(parse: Callable[[str], T], text: str) -> T:
    """Parsed; a text that random drawing made too large is no example."""
    try:
        return parse(text)
    except ExpressionError as error:
        if "at most" in error.message or "to end here" in error.message:
            reject()
        raise
