"""How many rows a second Spark publishes: staged by executors, committed by the driver, each with a certified receipt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SinkRate:
    """`seconds` are those of the whole job: planning, staging and the commit."""

    rows: int
    size: int  # bytes of a value
    seconds: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds


def measure_sink(
    spark: SparkSession, options: Mapping[str, str], *, rows: int, size: int, tasks: int = 2
) -> SinkRate:
    """Publish `rows` values of `size` bytes with `df.write`; `options` name the network and the topic.

    The values are made in the same job, by Java: that costs next to nothing beside publishing them. Whoever compares
    should let a small run go first, which starts the workers.
    """
    digits = f"lpad(cast(id as string), {size}, '0')"
    frame = spark.range(0, rows, 1, tasks).selectExpr(f"cast({digits} as binary) as value")
    began = time.monotonic()
    frame.write.format("parley").options(**options).mode("append").save()
    return SinkRate(rows, size, time.monotonic() - began)
