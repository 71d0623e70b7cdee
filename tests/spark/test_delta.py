"""Appending a micro-batch to a Delta table: once, however often Spark repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from parley.spark.delta import append_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Frame:
    """As much of a data frame as is needed; its rows are looked at only if they are wanted."""

    def __init__(self, *rows: int) -> None:
        self._rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        assert self._rows, "nobody should want these rows"
        return pa.table({"row": list(self._rows)})


def append(path: Path, batch: int, *rows: int, query: str = "query") -> bool:
    return append_once(cast("DataFrame", Frame(*rows)), batch, str(path), query)


def rows(path: Path) -> list[int]:
    files = DeltaTable(path).file_uris()
    return sorted(row for file in files for row in pq.read_table(file).column("row").to_pylist())


def test_a_batch_that_the_table_has_is_not_appended_again(tmp_path: Path) -> None:
    assert append(tmp_path, 0, 1, 2)
    assert not append(tmp_path, 0)
    assert append(tmp_path, 1, 3)
    assert not append(tmp_path, 0)
    assert append(tmp_path, 4, 4)  # Spark counts batches without rows, too
    assert rows(tmp_path) == [1, 2, 3, 4]


def test_every_query_counts_for_itself(tmp_path: Path) -> None:
    assert append(tmp_path, 3, 1, query="one")
    assert append(tmp_path, 0, 2, query="two")
    assert not append(tmp_path, 3, query="one")
    assert rows(tmp_path) == [1, 2]
