"""Quality: the expectations, counted over all tables, and the dead letters by reason."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from parley.spark.pipeline import expectations

spark = SparkSession.active()


@dp.materialized_view(
    name=expectations.RESULTS, comment="Each expectation: rows looked at, rows that fail it."
)
def results() -> DataFrame:
    return expectations.counted(spark.read.table, expectations.EXPECTATIONS)


@dp.materialized_view(name=expectations.REASONS, comment="Dead letters of each tenant by reason.")
def reasons() -> DataFrame:
    return expectations.reasons(spark.read.table)
