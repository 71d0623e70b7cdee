"""A broker that lies to a job: the job goes to another one and its rows are right; among liars only, it stops (P7, P23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.node.network import LocalNetwork
from tests.spark.sources import LIAR, batch_rows, lying, options, publish, rows_of, stream, topic

from parley.spark.errors import Lying, Unreachable
from parley.spark.gateway import close_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = f"{LIAR},beta-1,gamma-1,delta-1"
TEXTS = [f"row {at}" for at in range(30)]


@pytest.fixture(scope="module")
def demo(network: LocalNetwork) -> str:
    """Three blocks, so that one can be left out."""
    name = topic(network, "liars", partitions=1)
    for start in (0, 10, 20):
        publish(network, name, TEXTS[start : start + 10])
    return name


@pytest.fixture(autouse=True)
def unprejudiced() -> None:
    """Forget who lied before: otherwise the liar is not even asked."""
    close_all()


@pytest.mark.parametrize("fault", ["forge", "withhold", "drop", "lie"])
def test_a_job_goes_on_with_another_broker_and_its_rows_are_right(
    network: LocalNetwork, demo: str, fault: str
) -> None:
    with lying(network, fault):
        rows = batch_rows(network, subscribe=demo, brokers=FIRST)
    assert [row["value"].decode() for row in rows] == TEXTS


@pytest.mark.parametrize("fault", ["forge", "withhold", "drop"])
def test_a_job_among_liars_only_stops_and_reads_nothing(network: LocalNetwork, demo: str, fault: str) -> None:
    reader = stream(network, subscribe=demo, startingOffsets="earliest", brokers=LIAR)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end != start
    with lying(network, fault), pytest.raises(Lying, match=LIAR):
        rows_of(reader, reader.partitions(start, end))


def test_a_driver_among_liars_only_plans_nothing(network: LocalNetwork, demo: str) -> None:
    with lying(network, "lie"), pytest.raises(Lying, match=LIAR):
        batch_rows(network, subscribe=demo, brokers=LIAR)


def test_a_stale_broker_does_not_hold_up_a_stream(network: LocalNetwork) -> None:
    name = topic(network, "liars-stale", partitions=1)
    publish(network, name, ["seen"])
    with lying(network, "stale"):
        reader = stream(network, subscribe=name, startingOffsets="earliest", brokers=FIRST)
        start = reader.initialOffset()
        publish(network, name, ["unseen by the liar"])
        while (end := reader.latestOffset(start, ReadAllAvailable()))["topics"][name]["0"]["offset"] < 2:
            pass
        close_all()
        # The liar is asked first again, and has not what was planned.
        late = stream(network, subscribe=name, startingOffsets="earliest", brokers=FIRST)
        rows = rows_of(late, late.partitions(start, end))
    assert [row["value"].decode() for row in rows] == ["seen", "unseen by the liar"]


def test_a_stale_broker_alone_is_an_error_in_time(network: LocalNetwork) -> None:
    name = topic(network, "liars-alone", partitions=1)
    reader = stream(network, subscribe=name, startingOffsets="earliest")
    start = reader.initialOffset()
    with lying(network, "stale"):
        publish(network, name, ["unseen by the liar"])
        while (end := reader.latestOffset(start, ReadAllAvailable())) == start:
            pass
        late = stream(network, subscribe=name, startingOffsets="earliest", brokers=LIAR, timeout="3")
        with pytest.raises((Unreachable, Lying)):
            rows_of(late, late.partitions(start, end))


def test_a_spark_job_that_is_lied_to_writes_what_was_published(
    network: LocalNetwork, demo: str, spark: SparkSession
) -> None:
    with lying(network, "forge"):
        frame = spark.read.format("parley").options(**options(network, subscribe=demo, brokers=FIRST)).load()
        rows = frame.orderBy("offset").select("value", "verified").collect()
    assert [(row.value.decode(), row.verified) for row in rows] == [(text, "certified") for text in TEXTS]


def test_a_spark_job_among_liars_only_says_so(network: LocalNetwork, demo: str, spark: SparkSession) -> None:
    chosen = options(network, subscribe=demo, brokers=LIAR, timeout="10")
    with lying(network, "forge"), pytest.raises(Exception, match="PARLEY_LYING_BROKERS"):
        spark.read.format("parley").options(**chosen).load().count()
