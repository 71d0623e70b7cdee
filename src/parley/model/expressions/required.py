"""The values that an expression allows for one name, for example the organisations that a rule names."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from parley.model.expressions.parser import parse
from parley.model.expressions.tree import Comparison, Constant, Group, Node, Not, Value


class _Values(NamedTuple):
    """The values that a name may have: only these if `listed`, else any other value, or none."""

    values: frozenset[tuple[type, Value]]  # with its type, because 1 == True in Python
    listed: bool


_NONE = _Values(frozenset(), listed=True)
_ALL = _Values(frozenset(), listed=False)


def required_values(text: str, name: str) -> frozenset[Value] | None:
    """The values of which `name` must have one for the expression to be true; None if others are possible.

    The answer may be wider than the truth, never narrower: other names may have any value, also in comparisons that
    exclude each other. Raises `ExpressionError`.
    """
    found = _possible(parse(text, equality_only=False), name, truth=True)
    return frozenset(value for _, value in found.values) if found.listed else None


def _possible(node: Node, name: str, *, truth: bool) -> _Values:
    """The values of the name for which the expression may have this truth."""
    match node:
        case Constant():
            return _ALL if node.value == truth else _NONE
        case Not():
            return _possible(node.operand, name, truth=not truth)
        case Comparison():
            if node.name != name or node.operator not in ("==", "!=", "in", "not in"):
                return _ALL
            values = frozenset((type(value), value) for value in node.values)
            return _Values(values, listed=(node.operator in ("==", "in")) == truth)
        case Group():
            parts = [_possible(part, name, truth=truth) for part in node.parts]
            return reduce(_both if (node.word == "and") == truth else _either, parts)


def _both(one: _Values, other: _Values) -> _Values:
    if one.listed and other.listed:
        return _Values(one.values & other.values, listed=True)
    if one.listed:
        return _Values(one.values - other.values, listed=True)
    if other.listed:
        return _Values(other.values - one.values, listed=True)
    return _Values(one.values | other.values, listed=False)


def _either(one: _Values, other: _Values) -> _Values:
    return _opposite(_both(_opposite(one), _opposite(other)))


def _opposite(one: _Values) -> _Values:
    return _Values(one.values, listed=not one.listed)
