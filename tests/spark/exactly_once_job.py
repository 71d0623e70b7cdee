"""The job that the tests of exactly-once kill: one source, a Delta table and a topic, and rows that differ at every attempt.

Run as `python exactly_once_job.py CONFIG`, where CONFIG is JSON: see `Job`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from tests.spark.killing import last_noted, until

from parley.spark.delta import append_once
from parley.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2


class Job(msgspec.Struct, frozen=True):
    master: str
    network: dict[str, str]  # options
    source: str
    sink: str
    table: str
    checkpoints: str
    rows_per_batch: int

    @property
    def folders(self) -> tuple[str, str]:
        """The checkpoints of both queries."""
        return f"{self.checkpoints}/table", f"{self.checkpoints}/sink"


def several(spark: SparkSession, job: Job) -> DataFrame:
    """Every publication one to three times, as chance has it, in an order of chance: each copy says of how many it is one.

    If the copies of one attempt were mixed with those of another, or published twice, the numbers would not add up.
    """
    source = (
        spark.readStream.format("parley")
        .options(**job.network)
        .options(subscribe=job.source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", job.rows_per_batch)
        .load()
    )
    drawn = source.repartition(PARTITIONS).selectExpr(
        "cast(value as string) as id", "partition", "offset", "1 + cast(rand() * 3 as int) as copies"
    )
    return drawn.selectExpr("*", "explode(sequence(1, copies)) as copy")


def run(job: Job) -> None:
    # All executors are there before anything begins.
    more = {"spark.executor.memory": "512m", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    spark = spark_session("exactly once", job.master, more=more)
    spark.sparkContext.setLogLevel("ERROR")
    work(spark, job)
    spark.stop()


def work(spark: SparkSession, job: Job) -> None:
    """From where the checkpoints say to the end of the source."""
    table, sink = job.folders
    publishing = (
        several(spark, job)
        .selectExpr("id as key", "concat_ws(' ', id, partition, offset, copies, copy) as value")
        .writeStream.format("parley")
        .options(**job.network, topic=job.sink)
        .option("checkpointLocation", sink)
        .trigger(availableNow=True)
        .start()
    )

    def append(batch: DataFrame, number: int) -> None:
        # The quicker query waits for the other one, so that whoever kills finds both at work.
        until(lambda: last_noted(sink, "offsets") >= number or not publishing.isActive, f"batch {number}")
        append_once(batch, number, job.table, "exactly once")

    appending = (
        several(spark, job)
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", table)
        .trigger(availableNow=True)
        .start()
    )
    publishing.awaitTermination()
    appending.awaitTermination()


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Job))
