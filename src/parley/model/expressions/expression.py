"""Rules and constraints: an expression with its canonical text, ready to be evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec import Struct

from parley.crypto.hashing import digest
from parley.model.expressions.canonical import normal, written
from parley.model.expressions.errors import ExpressionError
from parley.model.expressions.evaluate import Predicate, compiled
from parley.model.expressions.parser import MAX_TEXT, parse
from parley.model.expressions.tree import Node, Value, names

MAX_CACHED = 1024  # texts of each kind; at the limits of the language some 35 KB each


@dataclass(frozen=True, slots=True)
class Rule:
    """An access rule over a reader's attributes; `parse_rule` makes it. Its text is canonical in spelling only."""

    text: str
    names: frozenset[str] = field(compare=False, repr=False)
    _holds: Predicate = field(compare=False, repr=False)

    def allows(self, attributes: Mapping[str, Value]) -> bool:
        return self._holds.holds(attributes)


class Constraint(Struct, frozen=True, eq=False, gc=False):
    """A constraint over tags; `parse_constraint` makes it. Its text and id are those of its normal form (P6).

    A broker keeps every live one, so the collector has nothing to look at: it is part of no cycle.
    """

    text: str
    id: bytes
    formula: Node  # the normal form: no `not`, no constant inside a group
    predicate: Predicate

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Constraint) else NotImplemented

    def __ne__(self, other: object) -> bool:  # a struct has its own, which does not ask `__eq__`
        return self.text != other.text if isinstance(other, Constraint) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Constraint(text={self.text!r})"

    @property
    def names(self) -> frozenset[str]:
        return names(self.formula)

    def matches(self, tags: Mapping[str, Value]) -> bool:
        return self.predicate.holds(tags)


@lru_cache(maxsize=MAX_CACHED)
def parse_rule(text: str) -> Rule:
    """Raises `ExpressionError`."""
    tree = parse(text, equality_only=False)
    return Rule(_canonical(tree), names(tree), compiled(tree))


@lru_cache(maxsize=MAX_CACHED)
def parse_constraint(text: str) -> Constraint:
    """Raises `ExpressionError`."""
    formula = normal(parse(text, equality_only=True))
    canonical = _canonical(formula)
    identity = digest("constraint/id", canonical.encode())
    return Constraint(canonical, identity, formula, compiled(formula))


def _canonical(tree: Node) -> str:
    """The canonical text, which must itself be a text that the language accepts."""
    text = written(tree)
    size = len(text.encode())
    if size > MAX_TEXT:
        message = f"expected at most {MAX_TEXT} bytes in canonical form, found {size}; shorten the text"
        raise ExpressionError(0, message)
    return text
