"""A source with the columns of `format("parley")` and nothing behind it: what Spark and P3's hashes cost by themselves.

Every batch of rows is made anew from payloads in memory, as a source must; with `hash` each row is hashed as a message is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from parley.model.batches import MessageHeader, encode
from parley.model.leaves import leaves_of_columns
from parley.spark.source import ParleySource

SALT = 16  # bytes
_TAGS = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_HEADER = encode(MessageHeader())


@dataclass(frozen=True)
class Share(InputPartition):
    """The rows of one task."""

    start: int
    end: int


class Synthetic(DataSource):
    """Options: `rows`, `size` of a payload, `batch` (rows of an Arrow batch), `tasks`, `hash`."""

    @classmethod
    def name(cls) -> str:
        return "parley-synthetic"

    def schema(self) -> StructType:
        return ParleySource({"subscribe": "none"}).schema()

    def reader(self, schema: StructType) -> SyntheticReader:  # noqa: ARG002 - Spark's signature
        return SyntheticReader(dict(self.options))


class SyntheticReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._size, self._batch, self._tasks = (
            int(options[name]) for name in ("rows", "size", "batch", "tasks")
        )
        self._hash = options["hash"] == "true"

    def partitions(self) -> Sequence[InputPartition]:
        ends = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [Share(start, end) for start, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        block = os.urandom(self._size + self._batch)
        payloads = [block[at : at + self._size] for at in range(self._batch)]
        salts = [os.urandom(SALT) for _ in range(self._batch)]
        headers, rules = [_HEADER] * self._batch, [""] * self._batch
        constant = _constant(self._batch)
        for start in range(partition.start, partition.end, self._batch):
            count = min(self._batch, partition.end - start)
            if self._hash:
                leaves = leaves_of_columns(salts[:count], headers[:count], rules[:count], payloads[:count])
                assert len(leaves) == count
            columns = {name: array.slice(0, count) for name, array in constant.items()}
            columns["value"] = pa.array(payloads[:count], pa.binary())
            columns["offset"] = pa.array(np.arange(start, start + count, dtype=np.int64))
            yield pa.RecordBatch.from_pydict({name: columns[name] for name in ORDER})


ORDER = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "publisher",
    "tags",
    "height",
    "verified",
)


def _constant(count: int) -> dict[str, pa.Array]:
    """What is the same in every row."""
    whole = {"partition": (0, pa.int32()), "timestampType": (1, pa.int32()), "height": (1, pa.int64())}
    words = {"topic": "bench", "publisher": "org-1/load-0", "verified": "certified"}
    return {
        "key": pa.nulls(count, pa.binary()),
        "timestamp": pa.repeat(pa.scalar(0, _TIME), count),
        "tags": pa.array([[]] * count, _TAGS),
        **{name: pa.repeat(pa.scalar(value, kind), count) for name, (value, kind) in whole.items()},
        **{name: pa.repeat(pa.scalar(value, pa.string()), count) for name, value in words.items()},
    }
