"""The reference page has a row for everything that the code declares, found here by other ways than the page's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import parley.application
import parley.modules
from parley.application.operations import Operation
from parley.application.tables import Table
from parley.applications import DATA_SHARD
from parley.model.names import word_of
from parley.model.receipts import Leaf, Outcome, Rejected
from parley.model.refusals import Refused
from parley.net import messages
from parley.node.telemetry import catalogue
from tools import reference

PAGE = reference.PAGE.read_text(encoding="utf-8")
HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
METRIC = re.compile(r'"(parley_[a-z_]+)"')


def rows(page: str, title: str) -> dict[str, list[str]]:
    """The cells of a section's table by the first of them."""
    section = re.split(rf"^#{{2,3}} {title}$", page, flags=re.MULTILINE)[1]
    lines = [line for line in HEADING.split(section)[0].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0].strip("`"): row for row in cells}


def missing(page: str, title: str, names: set[str]) -> set[str]:
    return names - set(rows(page, title))


# -- what there is -----------------------------------------------------------------------------------------------------


def modules() -> Iterator[object]:
    """Every module of the host and of the applications' modules, imported."""
    for package in (parley.application, parley.modules):
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            yield import_module(found.name)


def derived_from(base: type) -> set[type]:
    """Every class of Parley that is one; tests declare more of them."""
    found: set[type] = set()
    direct: list[type] = type.__subclasses__(base)
    for kind in direct:
        found |= {kind} | derived_from(kind)
    return {kind for kind in found if kind.__module__.startswith("parley.")}


LOADED = list(modules())
OPERATIONS = {word_of(kind.__name__) for kind in derived_from(Operation)}
RECEIPTS = {
    "batch" if kind.__name__ == "BatchReceipt" else "refused" if kind is Rejected else word_of(kind.__name__)
    for kind in derived_from(Outcome) | derived_from(Leaf)
}
TABLES = {value.name for module in LOADED for value in vars(module).values() if isinstance(value, Table)}
CODES = {kind.__name__ for kind in derived_from(Refused)}
QUESTIONS = {kind.__name__ for kind in derived_from(messages.Question)}
DECLARED = {
    "Operations": (OPERATIONS, {"create_topic", "commit_stage", "register_client"}),
    "Outcomes and leaves": (RECEIPTS, {"batch", "done", "refused", "published", "match", "closed"}),
    "Tables": (TABLES, {"topic", "client", "sequence", "receipt", "expiry"}),
    "Refusals": (CODES, {"Busy", "PermissionDenied", "UnknownTopic", "Pruned"}),
    "Questions of clients": (QUESTIONS, {"Submit", "Fetch", "OpenStream", "ReadHeader"}),
    "Metrics": ({entry.name for entry in catalogue.CATALOGUE}, {"parley_ready", "parley_view"}),
    "Ledger tables": (set(DATA_SHARD.changes), {"clients", "topics"}),
}
SECTIONS = pytest.mark.parametrize("title", DECLARED)


# -- what the page has -------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_code_gives() -> None:
    assert reference.page(DATA_SHARD) == PAGE, (
        "docs/reference.md is not what the code declares; run: .venv/bin/python tools/reference.py --write"
    )


@SECTIONS
def test_everything_that_is_declared_has_a_row(title: str) -> None:
    declared, known = DECLARED[title]
    assert known <= declared, "the search in this test finds less than there is"
    assert not missing(PAGE, title, declared)
    assert set(rows(PAGE, title)) == declared, "and nothing else has one"


@SECTIONS
def test_a_row_that_is_left_out_is_noticed(title: str) -> None:
    declared, _ = DECLARED[title]
    for name in sorted(declared):
        without = re.sub(rf"^\| `{name}` \|.*\n", "", PAGE, flags=re.MULTILINE)
        assert missing(without, title, declared) == {name}


@SECTIONS
def test_every_row_says_what_the_thing_is(title: str) -> None:
    columns = next(line for line in PAGE.split(f"## {title}\n")[1].splitlines() if line.startswith("|"))
    meaning = [cell.strip() for cell in columns.split("|")[1:-1]].index(
        "columns" if title == "Ledger tables" else "meaning"
    )
    assert [name for name, row in rows(PAGE, title).items() if not row[meaning]] == []


def test_metrics_have_a_row_by_the_words_of_their_source() -> None:
    named = set(METRIC.findall(Path(catalogue.__file__).read_text(encoding="utf-8")))
    assert "parley_ready" in named
    assert not missing(PAGE, "Metrics", named)


def test_every_table_says_to_whom_it_is_shown() -> None:
    assert [table.name for table in DATA_SHARD.tables.values() if not table.visible.about] == []


def test_every_code_has_a_reason_with_a_text() -> None:
    with_texts = {code for code, row in rows(PAGE, "Reasons").items() if row[-1]}
    assert with_texts == CODES
