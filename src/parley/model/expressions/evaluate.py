"""From a tree to a predicate: compiled once, asked for every publication and every reader.

Predicates are structs without a place in the collector's lists (`gc=False`), not closures: a broker keeps one for every
live constraint, and each full collection would look at all their cells. They are built bottom up and never changed, so
they are part of no cycle.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeGuard

from msgspec import Struct

from parley.model.expressions.tree import Comparison, Constant, Group, Node, Not, Value

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


# A name, a value with its type, because 1 == True in Python, and whether the name is to have it; the type of a missing
# name's None is none of these. The collector lets go of such tuples, but of none that holds a dictionary or a set.
_Equality = tuple[str, type, Value, bool]


class Predicate(Protocol):
    def holds(self, values: Mapping[str, Value], /) -> bool: ...


def compiled(node: Node) -> Predicate:
    """Recurses, here and in every call, as deep as the tree: the parser's limit on nesting bounds it."""
    match node:
        case Constant(value=value):
            return _Always(value)
        case Comparison(operator="<" | "<=" | ">" | ">="):
            (limit,) = node.values
            return _Order(node.name, type(limit), limit, _ORDER[node.operator])
        case Comparison(operator="in" | "not in"):
            members = dict.fromkeys((type(value), value) for value in node.values)
            return _Member(node.name, members, node.operator == "in")
        case Comparison():
            return _All((_equality(node),), ())
        case Not():
            return _Negation(compiled(node.operand))
        case Group():
            equalities = tuple(_equality(part) for part in node.parts if _is_equality(part))
            others = tuple(compiled(part) for part in node.parts if not _is_equality(part))
            return _All(equalities, others) if node.word == "and" else _Any(equalities, others)


def _is_equality(node: Node) -> TypeGuard[Comparison]:
    return isinstance(node, Comparison) and node.operator in ("==", "!=")


def _equality(node: Comparison) -> _Equality:
    (value,) = node.values
    return node.name, type(value), value, node.operator == "=="


class _Always(Struct, frozen=True, eq=False, gc=False):
    value: bool

    def holds(self, _values: Mapping[str, Value], /) -> bool:
        return self.value


class _Member(Struct, frozen=True, eq=False, gc=False):
    name: str
    members: dict[tuple[type, Value], None]  # the collector lets go of it, as it would not of a set
    wanted: bool

    def holds(self, values: Mapping[str, Value], /) -> bool:
        value = values.get(self.name)
        return ((type(value), value) in self.members) is self.wanted


class _Order(Struct, frozen=True, eq=False, gc=False):
    name: str
    kind: type
    limit: Value
    compare: Callable[[Any, Any], bool]

    def holds(self, values: Mapping[str, Value], /) -> bool:
        value = values.get(self.name)
        return type(value) is self.kind and self.compare(value, self.limit)


class _Negation(Struct, frozen=True, eq=False, gc=False):
    predicate: Predicate

    def holds(self, values: Mapping[str, Value], /) -> bool:
        return not self.predicate.holds(values)


class _All(Struct, frozen=True, eq=False, gc=False):
    """Equalities are compared here, without a call for each: nearly all parts of nearly all constraints are some."""

    equalities: tuple[_Equality, ...]
    others: tuple[Predicate, ...]

    def holds(self, values: Mapping[str, Value], /) -> bool:
        for name, kind, expected, wanted in self.equalities:
            value = values.get(name)
            if (type(value) is kind and value == expected) is not wanted:
                return False
        for predicate in self.others:  # noqa: SIM110 - a generator would double the cost of a call
            if not predicate.holds(values):
                return False
        return True


class _Any(Struct, frozen=True, eq=False, gc=False):
    equalities: tuple[_Equality, ...]
    others: tuple[Predicate, ...]

    def holds(self, values: Mapping[str, Value], /) -> bool:
        for name, kind, expected, wanted in self.equalities:
            value = values.get(name)
            if (type(value) is kind and value == expected) is wanted:
                return True
        for predicate in self.others:  # noqa: SIM110 - as above
            if predicate.holds(values):
                return True
        return False
