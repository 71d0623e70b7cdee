"""Another store on disk has one place to take: nothing else knows which one it is (decision 29)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
STORE = SOURCE / "parley" / "store"
WORDS = re.compile(r"[Rr]ocksd|RocksD|ROCKSD|RocksStore|\bCURRENT\b|\bMANIFEST-|\.sst\b")
SPARK = "org.apache.spark."  # what Spark keeps its own state in


def named(line: str) -> bool:
    return WORDS.search(line) is not None and SPARK not in line


def test_what_the_store_is_made_of_is_named_in_its_own_package_only() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(STORE / "rocksdb")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if named(line) and not (path == STORE / "disk.py" and line.startswith("from parley.store.rocksdb."))
    ]
    assert found == []


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
