"""The one text of an expression, and the normal form that gives equal constraints equal ids (P6)."""

from __future__ import annotations

from collections.abc import Iterable

from parley.model.expressions.lexer import ESCAPES, HIDDEN
from parley.model.expressions.tree import (
    Comparison,
    Constant,
    Group,
    Node,
    Not,
    Operator,
    Value,
    Word,
    joined,
    spread,
)

# Only these have an opposite on every value: where a name is missing, `x < 5` and `x >= 5` are both false.
_OPPOSITE: dict[Operator, Operator] = {"==": "!=", "!=": "==", "in": "not in", "not in": "in"}
_POSITIVE = ("==", "in")

_SPELLED = {character: f"\\{letter}" for letter, character in ESCAPES.items() if character != "'"}
_RANK = {bool: 0, int: 1, str: 2}


def written(node: Node) -> str:
    """The text of a tree, with parentheses only where they are needed; it parses to the same tree."""
    match node:
        case Constant():
            return _literal(node.value)
        case Comparison(operator="in" | "not in"):
            return f"{node.name} {node.operator} [{', '.join(map(_literal, node.values))}]"
        case Comparison():
            return f"{node.name} {node.operator} {_literal(node.values[0])}"
        case Not():
            return f"not {_enclosed(node.operand)}"
        case Group(word="and"):
            return " and ".join(map(_enclosed, node.parts))
        case Group():
            return " or ".join(map(written, node.parts))


def normal(node: Node, *, positive: bool = True) -> Node:
    """The normal form of a constraint, or of its negation.

    `not` is drawn into the comparisons, parts are sorted and occur once, constants are absorbed, and what compares one
    name in an `or` (or denies values of it in an `and`) is one list. Neither operators nor levels are ever added, so
    the canonical text keeps the limits that its source kept; only its bytes are measured again.
    """
    match node:
        case Constant():
            return Constant(node.value == positive)
        case Not():
            return normal(node.operand, positive=not positive)
        case Comparison():
            operator = node.operator if positive else _OPPOSITE[node.operator]
            return _comparison(node.name, node.values, positive=operator in _POSITIVE)
        case Group():
            word: Word = node.word if positive else ("or" if node.word == "and" else "and")
            return _group(word, [normal(part, positive=positive) for part in node.parts])


def _group(word: Word, parts: Iterable[Node]) -> Node:
    absorbing = word == "or"  # `true` decides an `or`, `false` an `and`; the other one adds nothing
    values: dict[str, list[Value]] = {}
    others: dict[str, Node] = {}
    for part in spread(word, parts):
        match part:
            case Constant(value=value) if value == absorbing:
                return part
            case Constant():
                continue
            case Comparison() if (part.operator in _POSITIVE) == absorbing:
                values.setdefault(part.name, []).extend(part.values)
            case _:
                others[written(part)] = part
    for name, listed in values.items():
        merged = _comparison(name, listed, positive=absorbing)
        others[written(merged)] = merged
    if not others:
        return Constant(not absorbing)
    return joined(word, (others[text] for text in sorted(others)))


def _comparison(name: str, values: Iterable[Value], *, positive: bool) -> Comparison:
    # By type first: Python would take 1 for a second `true`, and does not order strings among numbers.
    distinct = sorted({(_RANK[type(value)], value) for value in values})
    ordered = tuple(value for _, value in distinct)
    if len(ordered) == 1:
        return Comparison(name, "==" if positive else "!=", ordered)
    return Comparison(name, "in" if positive else "not in", ordered)


def _enclosed(node: Node) -> str:
    return f"({written(node)})" if isinstance(node, Group) else written(node)


def _literal(value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return f'"{"".join(map(_character, value))}"'


def _character(character: str) -> str:
    if character in _SPELLED:
        return _SPELLED[character]
    return f"\\u{ord(character):04x}" if HIDDEN.match(character) else character
