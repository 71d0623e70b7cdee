"""What an expression is between its text and its evaluation.

Nodes do not compare as equal: Python holds `True == 1`, the language does not. Their canonical text tells them apart.
They are built bottom up and never changed, so that they are part of no cycle and need no place in the collector's lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

Value = bool | int | str  # an integer has 64 bits and a sign

Operator = Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in"]
Word = Literal["and", "or"]


class Constant(Struct, frozen=True, eq=False, gc=False):
    value: bool


class Comparison(Struct, frozen=True, eq=False, gc=False):
    """A name against one value, or against one or more for `in` and `not in`."""

    name: str
    operator: Operator
    values: tuple[Value, ...]


class Not(Struct, frozen=True, eq=False, gc=False):
    operand: Node


class Group(Struct, frozen=True, eq=False, gc=False):
    """Two or more parts joined by one word, none of which is a group of the same word."""

    word: Word
    parts: tuple[Node, ...]


Node = Constant | Comparison | Not | Group


def joined(word: Word, parts: Iterable[Node]) -> Node:
    """The parts under one word, if there are several."""
    flat = tuple(spread(word, parts))
    return flat[0] if len(flat) == 1 else Group(word, flat)


def spread(word: Word, parts: Iterable[Node]) -> Iterator[Node]:
    """The parts, with those of nested groups of the same word in their place."""
    for part in parts:
        if isinstance(part, Group) and part.word == word:
            yield from part.parts
        else:
            yield part


def names(node: Node) -> frozenset[str]:
    match node:
        case Constant():
            return frozenset()
        case Comparison():
            return frozenset((node.name,))
        case Not():
            return names(node.operand)
        case Group():
            return frozenset().union(*map(names, node.parts))
