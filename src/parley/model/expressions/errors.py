"""Why a text is not an expression, and where."""

from __future__ import annotations


class ExpressionError(ValueError):
    """The text was refused; `position` counts characters from 0.

    The message depends on the text alone, not on the version of Python, so it may stand in a receipt.
    """

    def __init__(self, position: int, message: str) -> None:
        super().__init__(position, message)
        self.position = position
        self.message = message

    def __str__(self) -> str:
        return f"at character {self.position}: {self.message}"
