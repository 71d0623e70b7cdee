"""Another store on disk has one place to take: nothing else knows which one it is (decision 29)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
STORE = SOURCE / "parley" / "store"
WORDS = re.compile(r"rocksd|\bRocksStore\b|\bCURRENT\b|\bMANIFEST-|\.sst\b", re.IGNORECASE)
MARKS = re.compile(r"\bCURRENT\b")  # in capitals; the word itself is used for other things
SPARK = "org.apache.spark."  # what Spark keeps its own state in
UNTIL_LATER = {
    SOURCE / "parley" / "node" / "live_copy.py"
}  # copies from outside, until a broker copies its store itself


def named(line: str) -> bool:
    found = WORDS.search(line)
    return (
        found is not None
        and SPARK not in line
        and (found[0].lower() != "current" or bool(MARKS.search(line)))
    )


def test_what_the_store_is_made_of_is_named_in_its_own_package_only() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(STORE / "rocksdb") and path not in UNTIL_LATER
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if named(line) and not (path == STORE / "disk.py" and line.startswith("from parley.store.rocksdb."))
    ]
    assert found == []


def test_one_module_imports_that_package() -> None:
    importing = {
        path
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in getattr(node, "names", [])]
        )
        if module and module.startswith("parley.store.rocksdb") and not path.is_relative_to(STORE / "rocksdb")
    }
    assert importing == {STORE / "disk.py"}


@pytest.mark.parametrize(
    "line",
    [
        "from rocksdict import Rdict",
        "# by RocksDB's checkpoint",
        'if (path / "CURRENT").exists():',
        'name = "parley_rocksdb_sst_bytes"',
        "def held(store: RocksStore) -> None:",
    ],
)
def test_each_way_to_name_it_is_found(line: str) -> None:
    assert named(line)


@pytest.mark.parametrize(
    "line", ["the current view", "showing.current", '"org.apache.spark.RocksDBStateStoreProvider"']
)
def test_other_words_are_left_alone(line: str) -> None:
    assert not named(line)
