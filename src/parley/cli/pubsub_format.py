"""How received messages are shown: JSON lines for scripts, kcat's tokens, or a line that no publisher can abuse."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping

import msgspec
import typer

from parley.cli.output import json_line
from parley.client.messages import Message
from parley.model.names import Value
from parley.model.text import unsteering

TOKENS = "%t topic, %p partition, %o offset, %n ps, %k key, %s value, %S its length, %h headers, %g tags, %T time, %P publisher, %% percent"
MAX_FORMAT = 4096

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECES = re.compile(r"%(?P<token>.?)|\\(?P<escape>x[0-9A-Fa-f]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)

Render = Callable[[Message], bytes]


def as_json(message: Message) -> bytes:
    """A message as one line of JSON. If its content cannot be read, all keys are there, those of the content empty."""
    content = _NO_CONTENT if message.empty or message.unopened else _content(message)
    why = {"unopened": message.unopened} if message.unopened else {}
    return json_line(
        {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "ps": message.ps,
            "publisher": message.publisher,
            **content,
            "rule": message.rule,
            "height": message.height,
            "time": message.time,
            "verified": message.verified != "trusted",
            "level": message.verified,
            "empty": message.empty,
            **why,
        }
    )


_NO_CONTENT: dict[str, object] = {"tags": {}, "value": None, "encoding": "utf-8", "key": None, "headers": {}}


def _content(message: Message) -> dict[str, object]:
    value, encoding = text_of(message.value)
    return {
        "tags": message.tags,
        "value": value,
        "encoding": encoding,
        "key": None if message.key is None else _inline(message.key),
        "headers": {name: _inline(data) for name, data in message.headers.items()},
    }


def compile_format(text: str, *, terminal: bool = False) -> Render:
    """The tokens of kcat's `-f`. Ends the command at a token that does not exist.

    For a `terminal`, what a token stands for is shown as `visible` shows it; else every byte stays as it was published.
    """
    if len(text) > MAX_FORMAT:
        raise typer.BadParameter(f"it is longer than {MAX_FORMAT} characters.", param_hint="--format")
    pieces = [_piece(found, terminal=terminal) for found in _PIECES.finditer(text)]
    return lambda message: b"".join([piece(message) for piece in pieces])


def visible(data: bytes) -> str:
    """Text for a terminal: a publisher must not be able to move the reader's cursor or hide what stands there."""
    return unsteering(data.decode(errors="backslashreplace")).replace("\n", "\\n")


def _piece(found: re.Match[str], *, terminal: bool) -> Render:
    if found["text"] is not None:
        text = os.fsencode(found["text"])
        return lambda _: text
    if found["escape"] is not None:
        escape = _escape(found["escape"])
        return lambda _: escape
    token = found["token"]
    if token not in _RENDER:
        raise typer.BadParameter(f"there is no token %{token}; there are {TOKENS}.", param_hint="--format")
    render = _RENDER[token]
    return (lambda message: visible(render(message)).encode()) if terminal else render


def _escape(text: str) -> bytes:
    if text.startswith("x") and len(text) == 3:
        return bytes.fromhex(text[1:])
    if text not in _ESCAPES:
        raise typer.BadParameter(
            rf"there is no escape \{text}; there are \n \t \r \0 \xNN \\.", param_hint="--format"
        )
    return _ESCAPES[text]


def _pairs(values: Mapping[str, Value | bytes]) -> bytes:
    return b",".join(
        name.encode() + b"=" + (value if isinstance(value, bytes) else msgspec.json.encode(value))
        for name, value in values.items()
    )


_RENDER: dict[str, Render] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "n": lambda message: b"" if message.ps is None else b"%d" % message.ps,
    "k": lambda message: message.key or b"",
    "s": lambda message: message.value,
    "S": lambda message: b"%d" % len(message.value),
    "h": lambda message: _pairs(message.headers),
    "g": lambda message: _pairs(message.tags),
    "T": lambda message: b"%d" % message.time,
    "P": lambda message: message.publisher.encode(),
    "%": lambda _: b"%",
}


def text_of(data: bytes) -> tuple[str, str]:
    """Bytes as a text and its encoding: UTF-8, or Base64 if they are not UTF-8."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _inline(data: bytes) -> str | dict[str, str]:
    text, encoding = text_of(data)
    return text if encoding == "utf-8" else {encoding: text}
