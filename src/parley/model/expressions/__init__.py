"""One small language for constraints over tags and access rules over attributes (P24): no calls, floats or patterns.

A comparison with a missing name, or with a value of another type, is false; `!=` and `not in` are then true.
`true` and `1` are of different types. A name on its own means `name == true`; no text at all means `true`.
"""

from __future__ import annotations

from parley.model.expressions.errors import ExpressionError
from parley.model.expressions.expression import Constraint, Rule, parse_constraint, parse_rule
from parley.model.expressions.lexer import is_word
from parley.model.expressions.parser import MAX_NESTING, MAX_OPERATORS, MAX_TEXT
from parley.model.expressions.required import required_values
from parley.model.expressions.tree import Comparison, Constant, Group, Node, Not, Value

__all__ = [
    "MAX_NESTING",
    "MAX_OPERATORS",
    "MAX_TEXT",
    "Comparison",
    "Constant",
    "Constraint",
    "ExpressionError",
    "Group",
    "Node",
    "Not",
    "Rule",
    "Value",
    "is_word",
    "parse_constraint",
    "parse_rule",
    "required_values",
]
