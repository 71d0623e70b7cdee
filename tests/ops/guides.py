"""Takes the commands out of a guide, so that a test runs what a reader is told to type and nothing else.

A guide shows them in `console` blocks. The word before the prompt says who types: `alpha$ parley status` is for the
broker's user on the machine alpha, `alpha# systemctl ...` for its root. Lines without a prompt are output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Command", "commands", "section"]

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^(?P<indent> *)```console\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"\s*(?P<who>[a-z][a-z0-9-]*)(?P<sign>[$#]) (?P<text>.+)")
_HEADING = re.compile(r"(?P<level>#{1,6}) (?P<title>.+)")
_FENCE = re.compile(r"\s*```")


@dataclass(frozen=True)
class Command:
    """A line that a guide tells somebody to type."""

    who: str
    root: bool
    text: str


def commands(page: str, heading: str) -> list[Command]:
    """What the named section of a page tells to type, in order; a line that ends in a backslash goes on."""
    blocks = [block["body"] for block in _BLOCK.finditer(section(page, heading))]
    lines = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    prompts = filter(None, map(_PROMPT.fullmatch, lines))
    found = [Command(prompt["who"], prompt["sign"] == "#", prompt["text"]) for prompt in prompts]
    assert found, f"{page} tells nothing to type under {heading!r}"
    return found


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above; what is in a block is no heading."""
    kept: list[str] = []
    level, fenced = 0, False
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        fenced ^= bool(_FENCE.match(line))
        title = None if fenced else _HEADING.fullmatch(line)
        if level and title and len(title["level"]) <= level:
            break
        if level:
            kept.append(line)
        elif title and title["title"] == heading:
            level = len(title["level"])
    assert level, f"{page} has no section {heading!r}"
    return "\n".join(kept) + "\n"
