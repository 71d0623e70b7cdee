"""The source inside Spark, with no register call: a checkpoint carries a stream from one run to the next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.node.network import LocalNetwork
from tests.spark.sources import options, publish, topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_stream_goes_on_where_its_checkpoint_ends(
    network: LocalNetwork, spark: SparkSession, tmp_path: Path
) -> None:
    name = topic(network, "spark-stream")
    chosen = options(network, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="25")

    def run() -> list[tuple[int, int, str]]:
        frame = spark.readStream.format("parley").options(**chosen).load()
        query = (
            frame.selectExpr("partition", "offset", "CAST(value AS STRING) AS text")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(120)
        rows = spark.read.parquet(str(tmp_path / "table")).orderBy("partition", "offset").collect()
        return [(row.partition, row.offset, row.text) for row in rows]

    first = [f"a{at}" for at in range(40)]
    publish(network, name, first)
    assert run() == [(0, at, text) for at, text in enumerate(first)]
    publish(network, name, ["b"], partition=1)
    assert run() == [*((0, at, text) for at, text in enumerate(first)), (1, 0, "b")]


def test_columns_and_batches_are_as_documented_and_a_wrong_option_is_told_apart(
    network: LocalNetwork, spark: SparkSession
) -> None:
    name = topic(network, "spark-batch", partitions=1)
    publish(network, name, ["x"], key="k", tags={"ward": "er"}, headers={"h": b"1"})
    frame = (
        spark.read.format("parley").options(**options(network, subscribe=name, includeHeaders="true")).load()
    )
    row = frame.first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value), row.tags, row.verified) == (
        b"k",
        b"x",
        {"ward": "er"},
        "certified",
    )
    assert [(one.key, bytes(one.value)) for one in row.headers] == [("h", b"1")]
    with pytest.raises(Exception, match=r"PARLEY_OPTION.*did you mean 'subscribe'"):
        spark.read.format("parley").options(**options(network, subscribed=name)).load()
