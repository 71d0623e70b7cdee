"""The rules for Prometheus as Python reads them: YAML, as far as these files use it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PROMETHEUS = Path(__file__).parents[2] / "ops" / "prometheus"
RULES = PROMETHEUS / "alerts.yml"


def alerts() -> list[dict[str, Any]]:
    """All rules, in their order."""
    (group,) = parsed(RULES.read_text())["groups"]
    assert group["name"] == "parley"
    return list(group["rules"])


def parsed(text: str) -> dict[str, Any]:
    """Blocks by indentation, lists, plain and double-quoted words."""
    lines = [
        line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    value, rest = _block(lines, 0)
    assert not rest
    assert isinstance(value, dict)
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    """The value that begins here, and the lines after it."""
    if lines[0].lstrip().startswith("- "):
        items = []
        while lines and _indent(lines[0]) == indent and lines[0].lstrip().startswith("- "):
            content = lines[0].lstrip()[2:]
            if re.match(r"\w+:( |$)", content):  # a mapping begins on the line of its dash
                item, lines = _block([" " * (indent + 2) + content, *lines[1:]], indent + 2)
            else:
                item, lines = _scalar(content), lines[1:]
            items.append(item)
        return items, lines
    found: dict[str, Any] = {}
    while lines and _indent(lines[0]) == indent:
        key, _, content = lines[0].strip().partition(":")
        assert key.isidentifier(), lines[0]
        assert key not in found, lines[0]
        if content:
            assert content.startswith(" "), lines[0]
            found[key], lines = _scalar(content[1:]), lines[1:]
        else:
            assert _indent(lines[1]) > indent, lines[0]
            found[key], lines = _block(lines[1:], _indent(lines[1]))
    return found, lines


def _scalar(text: str) -> str:
    if text.startswith('"'):
        return str(json.loads(text))
    assert not re.search(r": |\s#", text), f"to be quoted: {text}"
    assert text[0] not in "&*!|>'%@`[{,-?", f"to be quoted: {text}"
    return text
