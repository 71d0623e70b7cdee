"""Columns that were read and checked, as Arrow record batches with Kafka's columns and a few of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from parley.client.columns import ColumnPage, Rows
from parley.model.batches import MessageHeader
from parley.model.names import Value
from parley.modules.publishing.proof import encode_publication
from parley.spark.options import ReadOptions

APPENDED = 1  # Kafka's LogAppendTime: the block's, which a quorum vouches for
MAX_CONSTANT = 16_384  # rows of a constant column that are made in advance

Keep = Callable[[Rows], Sequence[int] | None]  # which rows of a batch are wanted; None: all of them

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_TAGS = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")

_COLUMNS: tuple[tuple[str, DataType, pa.DataType], ...] = (
    ("key", BinaryType(), pa.binary()),
    ("value", BinaryType(), pa.binary()),
    ("topic", StringType(), pa.string()),
    ("partition", IntegerType(), pa.int32()),
    ("offset", LongType(), pa.int64()),
    ("timestamp", TimestampType(), _TIME),
    ("timestampType", IntegerType(), pa.int32()),
    (
        "headers",
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        _HEADERS,
    ),
    ("publisher", StringType(), pa.string()),
    ("tags", MapType(StringType(), StringType()), _TAGS),
    ("height", LongType(), pa.int64()),
    ("verified", StringType(), pa.string()),
    ("proof", BinaryType(), pa.binary()),
)


def _chosen(options: ReadOptions) -> list[tuple[str, DataType, pa.DataType]]:
    left_out = {
        name for name, wanted in (("headers", options.headers), ("proof", options.proof)) if not wanted
    }
    return [column for column in _COLUMNS if column[0] not in left_out]


def columns_of(options: ReadOptions) -> StructType:
    """What Spark is told."""
    return StructType([StructField(name, kind) for name, kind, _ in _chosen(options)])


class Builder:
    """Makes record batches of the pages of one partition; what all rows have in common is made once."""

    def __init__(self, options: ReadOptions, topic: str, partition: int) -> None:
        self._options = options
        self._names = [name for name, _, _ in _chosen(options)]
        self._schema = pa.schema([(name, kind) for name, _, kind in _chosen(options)])
        constant = {
            "topic": topic,
            "partition": partition,
            "timestampType": APPENDED,
            "verified": options.verify,
        }
        self._constant = {
            name: _constant(value, self._schema.field(name).type) for name, value in constant.items()
        }

    def batch(self, page: ColumnPage, keep: Keep) -> pa.RecordBatch | None:
        """The wanted rows, None if there is none."""
        chosen = [(rows, keep(rows)) for rows in page.batches]
        taken = [(rows, at) for rows, at in chosen if at is None or len(at)]
        counts = [len(rows.offsets) if at is None else len(at) for rows, at in taken]
        if not any(counts):
            return None
        arrays = {
            **{name: _first(array, sum(counts)) for name, array in self._constant.items()},
            **self._of_batches([rows for rows, _ in taken], counts),
            **self._of_headers(page.headers, [_pick(rows.headers, at) for rows, at in taken]),
            "offset": pa.array(np.concatenate([_offsets(rows, at) for rows, at in taken])),
            "value": self._values([_pick(rows.payloads, at) for rows, at in taken], sum(counts)),
        }
        if self._options.proof:
            arrays["proof"] = pa.array(
                [
                    encode_publication(rows.proof(index))
                    for rows, at in taken
                    for index in (range(len(rows.offsets)) if at is None else at)
                ],
                pa.binary(),
            )
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._names], schema=self._schema)

    def _values(self, payloads: Iterable[Sequence[bytes]], count: int) -> pa.Array:
        return (
            pa.array(list(chain.from_iterable(payloads)), pa.binary())
            if self._options.payload
            else pa.nulls(count, pa.binary())
        )

    def _of_batches(self, batches: Sequence[Rows], counts: Sequence[int]) -> dict[str, pa.Array]:
        """What is the same for all rows of a batch."""
        publishers = sorted({rows.publisher for rows in batches})
        number = {publisher: at for at, publisher in enumerate(publishers)}
        which = np.repeat(np.array([number[rows.publisher] for rows in batches], np.int32), counts)
        times = np.repeat(np.array([rows.time * 1_000 for rows in batches], np.int64), counts)
        heights = np.repeat(np.array([rows.height for rows in batches], np.int64), counts)
        return {
            "publisher": pa.array(publishers, pa.string()).take(pa.array(which)),
            "timestamp": pa.array(times).cast(_TIME),
            "height": pa.array(heights),
        }

    def _of_headers(
        self, known: Mapping[bytes, MessageHeader], columns: Sequence[Sequence[bytes]]
    ) -> dict[str, pa.Array]:
        """Key, tags and headers: read once for each header that differs."""
        distinct = list(dict.fromkeys(chain.from_iterable(map(set, columns))))
        said = [known[data] for data in distinct]
        arrays = {
            "key": pa.array([header.key for header in said], pa.binary()),
            "tags": pa.array([[(name, _text(tag)) for name, tag in header.tags] for header in said], _TAGS),
        }
        if self._options.headers:
            pairs = [[{"key": name, "value": value} for name, value in header.headers] for header in said]
            arrays["headers"] = pa.array(pairs, _HEADERS)
        count = sum(map(len, columns))
        if len(distinct) == 1:
            which = np.zeros(count, np.int32)
        else:
            number = {data: at for at, data in enumerate(distinct)}
            which = np.fromiter(map(number.__getitem__, chain.from_iterable(columns)), np.int32, count)
        return {name: array.take(pa.array(which)) for name, array in arrays.items()}


@lru_cache(maxsize=256)
def _constant(value: str | int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), MAX_CONSTANT)


def _first(array: pa.Array, count: int) -> pa.Array:
    return array.slice(0, count) if count <= len(array) else pa.repeat(array[0], count)


def _pick(column: Sequence[Any], at: Sequence[int] | None) -> Sequence[Any]:
    return column if at is None else [column[index] for index in at]


def _offsets(rows: Rows, at: Sequence[int] | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    if at is None and isinstance(rows.offsets, range):
        return np.arange(rows.offsets.start, rows.offsets.stop, dtype=np.int64)
    return np.array(_pick(rows.offsets, at), np.int64)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
