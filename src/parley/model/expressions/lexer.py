"""From text to tokens.

Only fixed lists of characters decide here: what Python calls a letter, a space or printable changes with its Unicode
tables, and every replica must read a text alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from parley.model.expressions.errors import ExpressionError
from parley.model.expressions.tree import Value

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
SHOWN = 24  # characters of a token that an error message repeats

# Controls, line separators and marks that change the direction of writing: a reader would not see what is compared.
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "r": "\r", "t": "\t"}

_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_INTEGER = re.compile(r"-?[0-9]+")
_AFTER_INTEGER = re.compile(r"[A-Za-z0-9_.]")
_SYMBOL = re.compile(r"&&|\|\||[=!<>]=|[=!<>()\[\],]")
_CODE_POINT = re.compile(r"[0-9A-Fa-f]{4}")

_SPELLINGS = {"&&": "and", "||": "or", "!": "not", "=": "=="}
_CONSTANTS = {"true": True, "false": False}
_WORDS = frozenset(("and", "or", "not", "in", *_CONSTANTS))


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is "name", "value", "end", or the canonical spelling of a word or symbol."""

    kind: str
    position: int
    text: str
    value: Value = False

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        shown = self.text if len(self.text) <= SHOWN else self.text[: SHOWN - 1] + "…"
        return f"`{shown}`"


def is_word(name: str) -> bool:
    """Whether the language uses this word itself, in any case of letters, so that it cannot be a name."""
    return name.lower() in _WORDS


def tokens(text: str) -> Iterator[Token]:
    """The tokens in turn, the last of which is "end"; a fault is raised when it is reached."""
    at = 0
    while True:
        space = _SPACE.match(text, at)
        assert space is not None
        at = space.end()
        if at == len(text):
            yield Token("end", at, "")
            return
        token = _token(text, at)
        yield token
        at += len(token.text)


def _token(text: str, at: int) -> Token:
    if text[at] in "\"'":
        value, end = _string(text, at)
        return Token("value", at, text[at:end], value)
    if found := _NAME.match(text, at):
        return _word(found[0], at)
    if found := _INTEGER.match(text, at):
        return _integer(found[0], at, text[found.end() : found.end() + 1])
    if found := _SYMBOL.match(text, at):
        return Token(_SPELLINGS.get(found[0], found[0]), at, found[0])
    raise ExpressionError(at, _unknown(text[at]))


def _word(word: str, at: int) -> Token:
    if word in _CONSTANTS:
        return Token("value", at, word, _CONSTANTS[word])
    if word in _WORDS:
        return Token(word, at, word)
    # As a name, `True` would be a missing attribute, and its rule would silently never hold.
    if is_word(word):
        raise ExpressionError(at, f"write `{word.lower()}` in lower case")
    return Token("name", at, word)


def _integer(digits: str, at: int, following: str) -> Token:
    if _AFTER_INTEGER.match(following):
        raise ExpressionError(at, "expected a whole number in digits, without fraction, exponent or suffix")
    value = int(digits)
    if not MIN_INTEGER <= value <= MAX_INTEGER:
        raise ExpressionError(at, f"expected a number from {MIN_INTEGER} to {MAX_INTEGER}")
    return Token("value", at, digits, value)


def _string(text: str, start: int) -> tuple[str, int]:
    """What the string that opens at `start` says, and where the text goes on after it."""
    characters: list[str] = []
    at = start + 1
    while at < len(text):
        character = text[at]
        if character == text[start]:
            return "".join(characters), at + 1
        if HIDDEN.match(character):
            raise ExpressionError(
                at, f"expected U+{ord(character):04X} to be written \\u{ord(character):04x}"
            )
        at += 1
        if character == "\\":
            character, at = _escape(text, at)
        characters.append(character)
    raise ExpressionError(start, f"expected a closing {text[start]} for the string that opens here")


def _escape(text: str, at: int) -> tuple[str, int]:
    """What stands for the escape whose backslash is just before `at`, and where the text goes on."""
    letter = text[at : at + 1]
    if letter in ESCAPES:
        return ESCAPES[letter], at + 1
    code = _CODE_POINT.match(text, at + 1) if letter == "u" else None
    if code is None:
        raise ExpressionError(
            at - 1, r"expected one of \\ \" \' \n \r \t \uXXXX with four hexadecimal digits"
        )
    point = int(code[0], 16)
    if 0xD800 <= point <= 0xDFFF:
        raise ExpressionError(at - 1, "expected a whole character: half of a surrogate pair has no meaning")
    return chr(point), code.end()


def _unknown(character: str) -> str:
    if character in "&|":
        return f"expected `{character * 2}`, which may be written `{'and' if character == '&' else 'or'}`"
    shown = f"`{character}`" if "!" <= character <= "~" else f"the character U+{ord(character):04X}"
    return f"{shown} has no meaning here; expected a name, a value or an operator"
