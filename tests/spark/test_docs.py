"""The page about Spark: what it tells a reader to type works, and it knows every option and every error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs import test_snippets as snippets

from parley.applications import DATA_SHARD
from parley.spark import options
from parley.spark.errors import ParleySparkError
from parley.spark.java import INSTALL
from parley.spark.rows import COLUMNS

PAGE = "docs/spark.md"
TEXT = (snippets.ROOT / PAGE).read_text()
README = (snippets.ROOT / "README.md").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield from snippets.folder.__wrapped__(tmp_path)  # type: ignore[attr-defined]


@pytest.mark.long
def test_the_blocks_of_the_page_run_in_order(java: Path, folder: Path) -> None:
    found = snippets.blocks(PAGE)
    assert [kind for kind, _ in found] == ["sh", "python", "sh"]
    for kind, text in found:
        snippets.run(kind, text, folder)


def test_every_option_is_told() -> None:
    names = {*options.READ, *options.WRITE, *options.TABLE}
    assert [name for name in sorted(names) if f"`{name}`" not in TEXT] == []
    section = TEXT.split("\n## Options\n")[1].split("\n## ")[0]
    told = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in told for name in re.findall("`([A-Za-z]+)`", cell)} <= names


def test_every_table_column_and_error_is_told() -> None:
    assert [name for name in options.tables_of(DATA_SHARD) if f"`{name}`" not in TEXT] == []
    assert [name for name in COLUMNS if f"`{name}`" not in TEXT] == []
    conditions = {ParleySparkError.condition, *(kind.condition for kind in ParleySparkError.__subclasses__())}
    assert set(re.findall(r"^\| `(PARLEY_[A-Z_]+)` \|", TEXT, re.MULTILINE)) == conditions


def test_the_line_that_installs_java_is_the_same_everywhere() -> None:
    package = INSTALL.rsplit(maxsplit=1)[-1]
    assert INSTALL in TEXT
    assert package in (snippets.ROOT / "Makefile").read_text()


def test_the_commands_of_the_readme_about_spark_are_those_of_its_pages() -> None:
    (block,) = re.findall(r"^## Spark\n.*?```console\n(.*?)```", README, re.MULTILINE | re.DOTALL)
    pages = TEXT + (snippets.ROOT / "docs" / "pipeline.md").read_text()
    commands = [line.split("#")[0].strip() for line in block.splitlines()]
    assert len(commands) >= 3
    assert [line for line in commands if line.removeprefix("./") not in pages] == []
