"""The source inside Spark, with no register call: a checkpoint carries a stream from one run to the next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.node.network import LocalNetwork
from tests.spark.sources import admin, options, publish, topic

import parley

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


def test_there_is_nothing_to_read_and_the_frame_is_empty(network: LocalNetwork, spark: SparkSession) -> None:
    """Spark reads once even where nothing is planned, which ended in a bare AssertionError."""
    name = topic(network, "spark-empty", partitions=1)

    def count(**more: str) -> int:
        return spark.read.format("parley").options(**options(network, **more)).load().count()

    assert count(subscribe=name) == 0
    assert count(subscribePattern="nothing-is-called-so") == 0
    publish(network, name, ["x", "y"])
    assert count(subscribe=name) == 2
    turned = {"startingOffsets": f'{{"{name}": {{"0": 2}}}}', "endingOffsets": f'{{"{name}": {{"0": 1}}}}'}
    assert count(subscribe=name, **turned) == 0
    assert count(subscribe=name, startingTimestamp="9000000000000") == 0
    assert count(subscribe=name, minPartitions="4", startingTimestamp="9000000000000") == 0


def test_a_topic_whose_retention_took_everything_is_an_empty_frame(
    network: LocalNetwork, spark: SparkSession
) -> None:
    name = topic(network, "spark-emptied", partitions=1)
    other = topic(network, "spark-clock", partitions=1)
    publish(network, name, ["x"])
    admin(network, lambda client: client.alter_topic(name, retention=1))
    while not pruned(network, name):
        publish(network, other, ["time passes"])
    frame = spark.read.format("parley").options(**options(network, subscribe=name)).load()
    assert frame.collect() == []
    assert "value" in frame.columns


def pruned(network: LocalNetwork, name: str) -> bool:
    chosen = options(network)
    with parley.connect_blocking(directory=chosen["directory"], identity=chosen["identity"]) as client:
        head = client.topic(name).heads[0]
        return head.start == head.end > 0


def test_a_table_of_the_catalog_is_refused_with_the_way_that_works(
    network: LocalNetwork, spark: SparkSession
) -> None:
    name = topic(network, "spark-catalog", partitions=1)
    publish(network, name, ["x"])
    words = ", ".join(f"`{option}` '{value}'" for option, value in options(network, subscribe=name).items())
    for more in ("", f"OPTIONS ({words})"):
        with pytest.raises(Exception, match=r"PARLEY_OPTION.*CREATE TEMPORARY VIEW"):
            spark.sql(f"CREATE TABLE catalogued USING parley {more}")
    # With columns, Spark does not ask; the table then has no options when it is read, unless the query brings them.
    columns = spark.read.format("parley").options(**options(network, subscribe=name)).load().schema
    spark.sql(f"CREATE TABLE catalogued ({columns.toDDL()}) USING parley OPTIONS ({words})")
    try:
        with pytest.raises(Exception, match=r"PARLEY_OPTION.*none is given.*CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM catalogued").collect()
        assert spark.sql(f"SELECT * FROM catalogued WITH ({words})").count() == 1
    finally:
        spark.sql("DROP TABLE catalogued")
    spark.sql(f"CREATE TEMPORARY VIEW viewed USING parley OPTIONS ({words})")
    assert spark.sql("SELECT CAST(value AS STRING) AS text FROM viewed").collect()[0].text == "x"
