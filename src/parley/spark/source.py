"""`format("parley")`: topics as Spark reads them, in batches and as streams, every row checked where it is fetched (P23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from parley.spark import offsets
from parley.spark.arrow import columns_of
from parley.spark.errors import BadOption
from parley.spark.options import ReadOptions, read_options, table_of
from parley.spark.planning import Planner
from parley.spark.reader import Range, read


class ParleySource(DataSource):
    """Reads topics; with the option `table` the ledger itself; writes topics."""

    @classmethod
    def name(cls) -> str:
        return "parley"

    def schema(self) -> StructType:
        if table_of(self.options) is not None:
            from parley.spark import tables  # noqa: PLC0415 - only where it is asked for

            return tables.table_schema(self.options)
        # Batch or stream is not known here; what the columns are does not depend on it.
        return columns_of(read_options(self.options, stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        if table_of(self.options) is not None:
            from parley.spark import tables  # noqa: PLC0415

            return tables.table_reader(self.options)
        return ParleyBatchReader(_checked(read_options(self.options, stream=False), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        if table_of(self.options) is not None:
            from parley.spark import tables  # noqa: PLC0415

            return tables.table_stream_reader(self.options)
        return ParleyStreamReader(_checked(read_options(self.options, stream=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        from parley.spark import sink  # noqa: PLC0415

        return sink.batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        from parley.spark import sink  # noqa: PLC0415

        return sink.stream_writer(schema, self.options)


def _checked(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The columns are what they are; a schema that says otherwise is a mistake."""
    ours = columns_of(options)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in ours]:
        raise BadOption(
            f"This source has columns of its own and takes no other schema: {ours.simpleString()}. Leave schema() out, and "
            f"select or cast afterwards."
        )
    return options


class _RangeReader:
    """`read` runs in executors and has nothing but options."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            return read(self._options, partition)
        return iter(())  # Spark also reads once if there is nothing to read, with a partition of its own


class ParleyBatchReader(_RangeReader, DataSourceReader):
    """Everything between two offsets of each partition, as it was when the query was planned."""

    def partitions(self) -> Sequence[InputPartition]:
        return Planner(self._options).batch()


class ParleyStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side plans with certified offsets only."""

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_options": self._options}

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return offsets.encode(self._planner.beginning())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begun = offsets.decode(start)
        planned = self._planner.next(begun, rows)
        return start if planned is begun else offsets.encode(planned)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        newest = self._planner.newest()
        return None if newest is None else offsets.encode(newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._planner.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._planner.pieces(offsets.decode(start), offsets.decode(end))
