"""Comments name decisions by numbers; the page about them has a row for each number, and its rows lead somewhere."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "parley"
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\b([PTR])(\d+)(?:-\1(\d+))?\b")
ROW = re.compile(r"^\| ([PTR]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
LINTER = re.compile(r"noqa:[ A-Z0-9,]+")  # names of rules, such as T201, and not of traps


def words(source: str) -> Iterator[str]:
    """Comments, docstrings and all other texts of a file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield LINTER.sub("", token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def cited(source: str) -> set[str]:
    """The numbers that a file names; of "R1-R5", all five."""
    return {
        f"{letter}{number}"
        for text in words(source)
        for letter, first, last in NUMBER.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def rows(page: str) -> list[str]:
    return [number for number, _, _ in ROW.findall(page)]


def without_row(page: str, numbers: set[str]) -> set[str]:
    return numbers - set(rows(page))


@cache
def citations() -> dict[str, str]:
    """Every number that the code cites, and a file that does."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for number in cited(source) if NUMBER.search(source) else ():
            found.setdefault(number, path.relative_to(ROOT).as_posix())
    return found


def test_every_number_that_the_code_cites_has_a_row() -> None:
    missing = [f"{number} ({citations()[number]})" for number in without_row(PAGE, set(citations()))]
    assert not missing, f"docs/protocol.md has no row for {', '.join(sorted(missing))}"


def test_rows_are_in_order_and_there_is_one_for_each_number() -> None:
    found = [(number[0], int(number[1:])) for number in rows(PAGE)]
    assert found == sorted(set(found), key=lambda one: ("PTR".index(one[0]), one[1]))


def test_a_row_of_a_decision_is_there_because_the_code_cites_it() -> None:
    everywhere = citations()
    assert {"P2", "P10", "P23", "P27", "T8", "R7"} <= everywhere.keys(), (
        "the search in this test finds too little"
    )
    assert [number for number in rows(PAGE) if number not in everywhere and not number.startswith("T")] == []


@pytest.mark.parametrize("number", ["P2", "P23", "T8", "R7"])
def test_a_row_that_is_left_out_is_noticed(number: str) -> None:
    without = re.sub(rf"^\| {number} \|.*\n", "", PAGE, flags=re.MULTILINE)
    assert without_row(without, set(citations())) == {number}


def test_numbers_are_found_in_comments_docstrings_and_texts() -> None:
    source = (
        '"""Why (P2).\n\nAnd PROTOCOL P3."""\nx = 1  # R1-R3\nT4 = f"T5 {x}, T6"  # noqa: T201 - P7\nP8 = x\n'
    )
    assert cited(source) == {"P2", "P3", "R1", "R2", "R3", "T5", "T6", "P7"}


@pytest.mark.parametrize(("number", "says", "held"), ROW.findall(PAGE))
def test_a_row_says_what_is_demanded_and_where_it_is_held(number: str, says: str, held: str) -> None:
    assert len(says) > 20
    paths = re.findall(r"`([^`]+)`", held)
    assert paths, f"{number} names no place"
    assert [path for path in paths if not (SOURCE / path).exists()] == []


def test_the_traps_have_a_row_on_both_pages() -> None:
    traps = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    on_their_page = re.findall(r"^\| (T\d+) \|", traps, re.MULTILINE)
    assert on_their_page == [number for number in rows(PAGE) if number.startswith("T")]


def test_the_page_names_no_document_outside_the_repository() -> None:
    assert not re.search(r"\.\./\.\.|PROTOCOL\.md|bft\.md", PAGE)
