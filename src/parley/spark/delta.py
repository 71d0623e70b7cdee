"""Appending micro-batches to a Delta table exactly once, without Delta's Java part: its log remembers which batch came last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def append_once(batch_df: DataFrame, batch_id: int, path: str, app_id: str) -> bool:
    """Append one micro-batch in `foreachBatch`, unless the table has it: whether it was appended now.

    `app_id` names the query and must be as lasting as its checkpoint; no two queries may share one. The rows and the number
    of their batch are one entry of the table's log, so that a repetition after a crash finds either both or neither. The
    batch passes through the driver: limit it with maxOffsetsPerTrigger.
    """
    return append_rows(batch_df.toArrow, batch_id, path, app_id)


def append_rows(rows: Callable[[], pa.Table], batch_id: int, path: str, app_id: str) -> bool:
    """The same for rows of any origin; they are asked for only if the table lacks them."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: PLC0415 - a heavy extra

    if DeltaTable.is_deltatable(path):
        last = DeltaTable(path).transaction_version(app_id)
        if last is not None and last >= batch_id:
            return False
    properties = CommitProperties(app_transactions=[Transaction(app_id, batch_id)])
    write_deltalake(path, rows(), mode="append", commit_properties=properties)
    return True
