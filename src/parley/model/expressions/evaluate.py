"""From a tree to a function: compiled once, called for every publication and every reader."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from parley.model.expressions.tree import Comparison, Constant, Group, Node, Not, Value

Predicate = Callable[[Mapping[str, Value]], bool]

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compiled(node: Node) -> Predicate:
    """Recurses, here and in every call, as deep as the tree: the parser's limit on nesting bounds it."""
    match node:
        case Constant(value=value):
            return lambda _: value
        case Comparison():
            return _comparison(node)
        case Not():
            return _negation(compiled(node.operand))
        case Group(word="and"):
            return _conjunction(tuple(map(compiled, node.parts)))
        case Group():
            return _disjunction(tuple(map(compiled, node.parts)))


def _comparison(node: Comparison) -> Predicate:
    match node.operator:
        case "==" | "in":
            return _membership(node)
        case "!=" | "not in":
            return _negation(_membership(node))
        case _:
            return _order(node)


def _membership(node: Comparison) -> Predicate:
    name = node.name
    # With its type, because 1 == True in Python; the type of a missing name's None is none of these.
    members = frozenset((type(value), value) for value in node.values)

    def holds(values: Mapping[str, Value]) -> bool:
        value = values.get(name)
        return (type(value), value) in members

    return holds


def _order(node: Comparison) -> Predicate:
    name, (limit,), compare = node.name, node.values, _ORDER[node.operator]
    kind = type(limit)

    def holds(values: Mapping[str, Value]) -> bool:
        value = values.get(name)
        return type(value) is kind and compare(value, limit)

    return holds


def _negation(predicate: Predicate) -> Predicate:
    return lambda values: not predicate(values)


def _conjunction(predicates: tuple[Predicate, ...]) -> Predicate:
    def holds(values: Mapping[str, Value]) -> bool:
        for predicate in predicates:  # noqa: SIM110 - a generator would double the cost of a call
            if not predicate(values):
                return False
        return True

    return holds


def _disjunction(predicates: tuple[Predicate, ...]) -> Predicate:
    def holds(values: Mapping[str, Value]) -> bool:
        for predicate in predicates:  # noqa: SIM110
            if predicate(values):
                return True
        return False

    return holds
