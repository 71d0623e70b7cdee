"""The page about events has a row for everything that brokers log, with its level and fields, and for nothing else."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE = ROOT / "src" / "parley" / "node"
PAGE = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \|([^|]*)\| (.+) \|$", re.MULTILINE)
LEVELS = {"debug", "info", "warning", "error", "critical"}
# Methods that pass an event on to the log, with fields of their own.
SAYING = {"_say", "_logged"}


@dataclass(frozen=True)
class Logged:
    """A place that logs an event. Level and fields are known where it calls the log itself."""

    event: str
    level: str
    fields: frozenset[str]


def logged(source: str) -> Iterator[Logged]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        first, called = node.args[0], node.func.attr
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            continue
        fields = frozenset(keyword.arg for keyword in node.keywords if keyword.arg is not None)
        if called in LEVELS and ast.unparse(node.func.value).endswith("log"):
            yield Logged(first.value, called, fields)
        elif called in SAYING:
            yield Logged(first.value, "", fields)


@cache
def everything() -> dict[str, list[Logged]]:
    found: defaultdict[str, list[Logged]] = defaultdict(list)
    for path in sorted(NODE.rglob("*.py")):
        for one in logged(path.read_text(encoding="utf-8")):
            found[one.event].append(one)
    return found


def rows(page: str) -> dict[str, tuple[str, set[str]]]:
    """The level and the fields of each event."""
    return {
        name: (level, set(re.findall(r"`(\w+)`", fields))) for name, level, fields, _ in ROW.findall(page)
    }


def without_row(page: str) -> set[str]:
    return everything().keys() - rows(page).keys()


def test_every_event_has_a_row() -> None:
    assert {"started", "peer_cut_off", "loop_held", "metrics_failed"} <= everything().keys(), (
        "too few are found"
    )
    assert without_row(PAGE) == set()


def test_every_row_is_of_an_event_and_there_is_one_for_each() -> None:
    names = [name for name, *_ in ROW.findall(PAGE)]
    assert len(names) == len(set(names))
    assert set(names) - everything().keys() == set()


@pytest.mark.parametrize("event", ["started", "view_change", "handshake_failed"])
def test_a_row_that_is_left_out_is_noticed(event: str) -> None:
    assert without_row(re.sub(rf"^\| `{event}` \|.*\n", "", PAGE, flags=re.MULTILINE)) == {event}


def test_rows_name_the_level_and_the_fields_that_are_logged() -> None:
    for event, (level, fields) in rows(PAGE).items():
        places = everything()[event]
        assert {place.level for place in places} <= {level, ""}, event
        told = {"exception" if field == "exc_info" else field for place in places for field in place.fields}
        assert told <= fields, event


def test_events_are_found_wherever_they_are_logged() -> None:
    source = 'self._log.error("a", x=1)\nlog.info("b")\nself._say("c", 1, y=2)\nlog.info(name)\nmath.log(2)\nprint("d")'
    assert list(logged(source)) == [
        Logged("a", "error", frozenset({"x"})),
        Logged("b", "info", frozenset()),
        Logged("c", "", frozenset({"y"})),
    ]
