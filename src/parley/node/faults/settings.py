"""The `faults` of a broker's configuration file, changed while the broker runs; all else in the file stays as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

from parley.node.faults.switches import FaultError, checked

KEY = "faults"

_SOMETHING_ELSE = re.compile(r'\s*(\[+\s*[\w"]|[\w"\'.-]+\s*=)')  # a line that is no part of a list


def read_faults(path: Path) -> tuple[str, ...]:
    """What the file says now. Raises `FaultError` if that cannot be read."""
    try:
        found = tomllib.loads(path.read_text()).get(KEY, [])
    except ValueError as error:
        raise FaultError(f"{path} is not TOML: {error}") from None
    if not isinstance(found, list) or not all(isinstance(fault, str) for fault in found):
        raise FaultError(f"{path}: {KEY} is not a list of texts")
    return checked(found)


def write_faults(path: Path, faults: Sequence[str]) -> None:
    """Replace the file as a whole, so that nobody reads half of it."""
    before = path.read_text()
    text = with_faults(before, faults)
    if text == before:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # without it the broker does not start
    shutil.copymode(path, temporary)
    temporary.replace(path)


def with_faults(text: str, faults: Sequence[str]) -> str:
    """The text with these faults on its first line, or without that line if there are none."""
    rest = _without(text)
    return f"{KEY} = {json.dumps(list(checked(faults)))}\n{rest}" if faults else rest


def _without(text: str) -> str:
    """The text without its `faults`, which a person may have written over several lines."""
    if (before := _parsed(text)) is None:
        return _without_broken(text)
    if KEY not in before:
        return text
    wanted = {key: value for key, value in before.items() if key != KEY}
    lines = text.splitlines(keepends=True)
    for first, line in enumerate(lines):
        if not line.lstrip().startswith(KEY):
            continue
        for last in range(first + 1, len(lines) + 1):
            rest = "".join(lines[:first] + lines[last:])
            if _parsed(rest) == wanted:
                return rest
    raise FaultError(f"the line {KEY} = [...] cannot be told from the others; edit the file by hand")


def _without_broken(text: str) -> str:
    """The same if the file cannot be read as it is, but can without that line."""
    lines = text.splitlines(keepends=True)
    for first, line in enumerate(lines):
        if line.lstrip().startswith("["):  # what follows belongs to a table
            break
        if not re.match(rf"\s*{KEY}\s*=", line):
            continue
        for last in range(first + 1, len(lines) + 1):
            rest = "".join(lines[:first] + lines[last:])
            if _parsed(rest) is not None:
                return rest
            if last < len(lines) and _SOMETHING_ELSE.match(lines[last]):
                break
    raise FaultError("it is not TOML, and not only because of its faults; edit the file by hand")


def _parsed(text: str) -> dict[str, object] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
