"""What people type for a message: tags, headers, positions, and lines on stdin."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Literal

import typer

from parley.cli.contexts import nearest
from parley.client.compose import checked_pairs
from parley.client.errors import InvalidMessage
from parley.model.batches import MAX_BATCH_BYTES
from parley.model.expressions import ExpressionError, parse_constraint, parse_rule
from parley.model.names import Value, is_topic

Start = Literal["earliest", "latest"] | int

CHUNK = 64 * 1024
CHUNKS_AHEAD = 16  # that the reading thread may be ahead of the publisher
DIGITS = 19  # of the largest integer of 64 bits
MAX_DIGITS_SHOWN = 40  # of an integer that is refused
MAX_OFFSET = 2**62 - 1  # that a question to a broker can hold
_POSITIONS = ["earliest", "latest"]


def check_topic(text: str) -> str:
    if not is_topic(text):
        raise typer.BadParameter(
            f"{text!r} is no name of a topic: use 1 to 128 letters, digits and . _ / -, with a letter or digit at both "
            "ends.",
            param_hint="TOPIC",
        )
    return text


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", callback=check_topic)]


def parse_tags(texts: Sequence[str], option: str = "--tag") -> dict[str, Value]:
    """`name=value`: integers, true and false get their type, anything in double quotes stays a text.

    Raises `BadParameter` for a name or value that no tag, or no attribute, can have.
    """
    found: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not name=value.", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice.", param_hint=option)
        try:
            found |= checked_pairs(option.removeprefix("--"), {name: _typed(value, option)})
        except InvalidMessage as error:
            raise typer.BadParameter(str(error), param_hint=option) from None
    return found


def parse_headers(texts: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not name=value.", param_hint="--header")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice.", param_hint="--header")
        found[name] = value.encode(errors="surrogateescape")
    return found


def parse_start(text: str) -> Start:
    if text.isdecimal():
        return parse_offset(text, "--from")
    match text:
        case "earliest" | "latest":
            return text
        case _:
            raise typer.BadParameter(
                f"{text!r} is neither earliest nor latest nor an offset{nearest(text, _POSITIONS)}",
                param_hint="--from",
            )


def parse_offset(text: str, option: str) -> int:
    found = _integer(text, 0, MAX_OFFSET) if text.isdecimal() else None
    if found is None:
        raise typer.BadParameter(f"{text[: DIGITS + 1]!r} is no offset.", param_hint=option)
    return found


def choice(*known: str) -> Callable[[str], str]:
    """A parser of an option that takes one of these words."""

    def parse(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}{nearest(text, list(known))}")
        return text

    return parse


def check_rule(text: str, option: str) -> str:
    """The rule in its canonical form; the end of the command if it is not a rule."""
    try:
        return parse_rule(text).text if text else ""
    except ExpressionError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def check_constraint(text: str) -> str:
    try:
        return parse_constraint(text).text if text else ""
    except ExpressionError as error:
        raise typer.BadParameter(str(error), param_hint="--where") from None


def require_stdin(hint: str) -> None:
    """Raises `BadParameter` if stdin is closed, as after `<&-`."""
    if sys.stdin is None:
        raise typer.BadParameter("stdin is closed, so nothing can be read from it.", param_hint=hint)


async def stdin_lines(delimiter: bytes = b"\n") -> AsyncIterator[bytes]:
    """The lines of stdin as they come, without their ends. A last line without an end counts, too."""
    rest = b""
    async for chunk in _chunks():
        *lines, rest = (rest + chunk).split(delimiter)
        for line in lines:
            yield line
        if len(rest) > MAX_BATCH_BYTES:
            raise typer.BadParameter(
                f"a line on stdin is longer than the {MAX_BATCH_BYTES} bytes of a message"
            )
    if rest:
        yield rest


async def _chunks() -> AsyncIterator[bytes]:
    # A thread, because a file as stdin cannot be waited for; a daemon, because nobody can interrupt its read.
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    ahead = threading.Semaphore(CHUNKS_AHEAD)

    def read() -> None:
        chunk = b"more"
        while chunk:
            ahead.acquire()
            chunk = os.read(0, CHUNK)
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop has ended: nobody wants more
                return

    threading.Thread(target=read, daemon=True).start()
    while chunk := await queue.get():
        ahead.release()
        yield chunk


def _shortened(digits: str) -> str:
    return digits if len(digits) <= MAX_DIGITS_SHOWN else f"{digits[:MAX_DIGITS_SHOWN]}..."


def _integer(text: str, lowest: int, highest: int) -> int | None:
    """The integer that decimal digits say, or None if it is not within these limits.

    Python refuses to read very many digits, so long texts are not tried.
    """
    digits = text.lstrip("+-0") or "0"
    if len(digits) > DIGITS:
        return None
    found = -int(digits) if text.startswith("-") else int(digits)
    return found if lowest <= found <= highest else None


def _typed(text: str, option: str) -> Value:
    if text in {"true", "false"}:
        return text == "true"
    if text.lower() in {"true", "false"}:
        raise typer.BadParameter(
            f"write {text.lower()} in lower case; to have {text} as a text, put it in double quotes that the shell keeps: "
            f"'NAME=\"{text}\"'.",
            param_hint=option,
        )
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if (found := _integer(text, -(2**63), 2**63 - 1)) is None:
            raise typer.BadParameter(
                f"{_shortened(text)} is beyond the integers that a tag can hold, -2**63 to 2**63-1; to have it as a text, "
                "put it in double quotes that the shell keeps: 'NAME=\"1234\"'.",
                param_hint=option,
            )
        return found
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text
