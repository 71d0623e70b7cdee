"""From tokens to a tree, within limits that hold before anything recurses."""

from __future__ import annotations

from parley.model.expressions.errors import ExpressionError
from parley.model.expressions.lexer import Token, tokens
from parley.model.expressions.tree import Comparison, Constant, Node, Not, Operator, Value, joined

MAX_TEXT = 1024  # bytes of UTF-8, of the text and of its canonical form
MAX_OPERATORS = 64  # comparisons (a bare name is one), `and`, `or`, `not`, and each value in a list
MAX_NESTING = 16  # parentheses and `not`

# What a comparison becomes when its sides are exchanged.
_MIRRORED: dict[str, Operator] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATORS: dict[str, Operator] = {"==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_EQUALITY = ("==", "!=")


def parse(text: str, *, equality_only: bool) -> Node:
    """The tree of a text as it was written; `equality_only` refuses `< <= > >=`, as constraints do."""
    _measure(text)
    return _Parser(text, equality_only=equality_only).parse()


def _measure(text: str) -> None:
    # Characters first: a text of many megabytes is not encoded just to be refused.
    head = text[: MAX_TEXT + 1]
    try:
        size = len(head.encode())
    except UnicodeEncodeError as error:
        raise ExpressionError(
            error.start, "expected text in UTF-8, found a byte that is not UTF-8, or half of a surrogate pair"
        ) from None
    if size > MAX_TEXT:
        fitting = len(head.encode()[:MAX_TEXT].decode(errors="ignore"))
        raise ExpressionError(fitting, f"expected the text to end here, within {MAX_TEXT} bytes")


class _Parser:
    """Recursive descent with one token of lookahead: or, and, not, comparison."""

    def __init__(self, text: str, *, equality_only: bool) -> None:
        self._equality_only = equality_only
        self._tokens = tokens(text)
        self._token = next(self._tokens)
        self._operators = 0
        self._nesting = 0

    def parse(self) -> Node:
        if self._token.kind == "end":
            return Constant(value=True)
        node = self._any()
        self._take("end", "`and`, `or` or the end of the text")
        return node

    def _any(self) -> Node:
        parts = [self._all()]
        while self._token.kind == "or":
            self._count(self._advance())
            parts.append(self._all())
        return joined("or", parts)

    def _all(self) -> Node:
        parts = [self._part()]
        while self._token.kind == "and":
            self._count(self._advance())
            parts.append(self._part())
        return joined("and", parts)

    def _part(self) -> Node:
        token = self._token
        match token.kind:
            case "not":
                self._count(token)
                self._enter()
                operand = self._part()
                self._nesting -= 1
                return _negated(operand)
            case "(":
                self._enter()
                inner = self._any()
                self._take(")", "`and`, `or` or `)`")
                self._nesting -= 1
                return inner
            case "name":
                return self._named()
            case "value":
                return self._mirrored()
            case _:
                raise self._expected("a name, a value, `not` or `(`")

    def _named(self) -> Comparison:
        """A comparison that starts with its name."""
        name = self._advance()
        self._count(name)
        match self._token.kind:
            case "in":
                self._advance()
                return Comparison(name.text, "in", self._list())
            case "not":
                self._advance()
                self._take("in", "`in` after `not`")
                return Comparison(name.text, "not in", self._list())
            case kind if kind in _OPERATORS:
                operator = self._operator()
                value = self._value(operator)
                self._refuse_chain()
                return Comparison(name.text, _OPERATORS[operator.kind], (value,))
            case _:
                return Comparison(name.text, "==", (True,))

    def _mirrored(self) -> Node:
        """`true`, `false`, or a comparison that starts with its value and is turned round."""
        value = self._advance()
        if self._token.kind in _OPERATORS:
            self._count(value)
            operator = self._operator()
            _refuse_order_of_booleans(operator, value)
            name = self._take("name", "a name on one side of the comparison")
            self._refuse_chain()
            return Comparison(name.text, _MIRRORED[operator.kind], (value.value,))
        if isinstance(value.value, bool):
            return Constant(value.value)
        raise self._expected(f"a comparison with a name after {value}")

    def _operator(self) -> Token:
        if self._equality_only and self._token.kind not in _EQUALITY:
            raise ExpressionError(
                self._token.position,
                f"expected `==`, `!=` or `in`, found {self._token}: constraints find subscribers by equal tags, "
                "only access rules compare by size",
            )
        return self._advance()

    def _value(self, operator: Token) -> Value:
        if self._token.kind == "name":
            raise self._expected(
                "a value, because names are compared with values only (text stands in quotes)"
            )
        if self._token.kind == "[":
            raise self._expected(f"one value after {operator}, because lists follow `in`")
        value = self._take("value", "a value")
        _refuse_order_of_booleans(operator, value)
        return value.value

    def _list(self) -> tuple[Value, ...]:
        self._take("[", "a list of values such as [1, 2] after `in`")
        values = [self._element()]
        while self._token.kind == ",":
            self._advance()
            values.append(self._element())
        self._take("]", "`,` or `]`")
        self._refuse_chain()
        return tuple(values)

    def _element(self) -> Value:
        self._count(self._token)
        return self._take("value", "a value").value

    def _enter(self) -> None:
        """Step into `not` or a parenthesis, which is where the parser recurses."""
        if self._nesting == MAX_NESTING:
            message = f"expected at most {MAX_NESTING} levels of parentheses and `not`"
            raise ExpressionError(self._token.position, message)
        self._nesting += 1
        self._advance()

    def _count(self, token: Token) -> None:
        if self._operators == MAX_OPERATORS:
            message = f"expected at most {MAX_OPERATORS} operators (comparisons, `and`, `or`, `not`, values in lists)"
            raise ExpressionError(token.position, message)
        self._operators += 1

    def _refuse_chain(self) -> None:
        if self._token.kind in _OPERATORS or self._token.kind == "in":
            raise self._expected("`and` or `or`, because comparisons do not follow one another")

    def _take(self, kind: str, what: str) -> Token:
        if self._token.kind != kind:
            raise self._expected(what)
        return self._advance()

    def _advance(self) -> Token:
        """The current token; moves on to the next, and stays at the end."""
        token = self._token
        self._token = next(self._tokens, token)
        return token

    def _expected(self, what: str) -> ExpressionError:
        return ExpressionError(self._token.position, f"expected {what}, found {self._token}")


def _negated(operand: Node) -> Node:
    # One spelling for `not x in [1]` and `x not in [1]`, which mean the same on every value.
    if isinstance(operand, Comparison) and operand.operator == "in":
        return Comparison(operand.name, "not in", operand.values)
    return Not(operand)


def _refuse_order_of_booleans(operator: Token, value: Token) -> None:
    if operator.kind not in _EQUALITY and isinstance(value.value, bool):
        message = f"expected a number or a string with {operator}, because {value} has no order"
        raise ExpressionError(value.position, message)
