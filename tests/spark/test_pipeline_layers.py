"""Each layer in one session: what is set aside and why, what the numbers are, and which expectations fail."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from statistics import mean
from typing import TYPE_CHECKING

import pytest

from parley.spark.pipeline.sensors import Pace, Reading, readings
from parley.spark.pipeline.tenants import AIR, TENANTS, VITALS, Tenant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
ARRIVED = datetime(2026, 1, 3, tzinfo=UTC)
SCHEMA = (
    "topic string, partition int, offset long, height long, publisher string, timestamp timestamp, verified string, "
    "key binary, value binary, tags map<string,string>"
)
SOUND = {
    "device": "d",
    "ward": "surgery",
    "patient": "p",
    "taken": "2026-01-01T00:00:00Z",
    "heart_rate": 72,
    "systolic": 120,
    "diastolic": 80,
}


@pytest.fixture(scope="module")
def sent() -> list[Reading]:
    return list(islice(readings(3, Pace(START, malformed=0.2)), 2_500))


def bronze(spark: SparkSession, values: Iterable[bytes], topic: str) -> DataFrame:
    from parley.spark.pipeline import layers  # noqa: PLC0415 - an extra

    rows: list[tuple[object, ...]] = [
        (topic, 0, offset, 7, "alpha/x", ARRIVED, "certified", b"k", bytearray(value), {})
        for offset, value in enumerate(values)
    ]
    return layers.bronze(spark.createDataFrame(rows, SCHEMA))


def of(sent: list[Reading], tenant: Tenant) -> list[Reading]:
    return [reading for reading in sent if reading.topic == tenant.topic]


@pytest.mark.parametrize("tenant", TENANTS, ids=lambda tenant: tenant.name)
def test_a_row_is_a_reading_or_is_set_aside_for_what_is_wrong_with_it(
    spark: SparkSession, sent: list[Reading], tenant: Tenant
) -> None:
    from parley.spark.pipeline import layers  # noqa: PLC0415

    mine = of(sent, tenant)
    rows = bronze(spark, [reading.value for reading in mine], tenant.topic)
    dead = {row["offset"]: row["reason"] for row in layers.dead_letters(rows, tenant).collect()}
    fine = {row["offset"] for row in layers.silver(rows, tenant).collect()}
    assert dead == {offset: reading.flaw for offset, reading in enumerate(mine) if reading.flaw}
    assert fine == set(range(len(mine))) - set(dead)


def sound(**changes: object) -> bytes:
    return json.dumps(SOUND | changes).encode()


POISON = {
    b'{"a":1,"a":2}': "missing field",
    b'{"a":' + b"[" * 3_000 + b"]" * 3_000 + b"}": "not a JSON object",
    b'{"heart_rate":' + b"9" * 5_000 + b"}": "not a JSON object",
    b'[{"ward":"surgery"}]': "not a JSON object",
    b"null": "not a JSON object",
    b"\x00": "not a JSON object",
    b"\xef\xbb\xbf{}": "not a JSON object",
    '{"device":"é"}'.encode("latin-1"): "not UTF-8",
    sound(heart_rate="72"): "wrong type",
    sound(heart_rate=[72]): "wrong type",
    sound(taken=20260101): "wrong type",
    sound(taken="2026-13-01T00:00:00Z"): "wrong type",
    sound(taken="+12345-01-01T00:00:00Z"): "out of range",  # no date of Python's, in which charts are drawn
    sound(taken="0001-01-01T00:00:00+14"): "out of range",
    sound(ward=None): "missing field",
    sound(ward=""): "unknown place",
    sound(diastolic=130): "contradiction",
    sound().replace(b"72", b"NaN"): "out of range",
    sound().replace(b"72", b"1e999"): "out of range",
}


def test_no_row_whatever_it_holds_stops_the_pipeline(spark: SparkSession) -> None:
    from parley.spark.pipeline import layers  # noqa: PLC0415

    extra = sound(battery=0.5)  # what nobody asked for does no harm
    rows = bronze(spark, [*POISON, sound(), extra], VITALS.topic)
    dead = layers.dead_letters(rows, VITALS).orderBy("offset").collect()
    assert [row["reason"] for row in dead] == list(POISON.values())
    assert [bytes(row["value"]) for row in dead] == list(POISON)  # whole, for whoever repairs it
    assert layers.silver(rows, VITALS).count() == 2


def test_a_row_is_parsed_twice_and_not_for_every_question_that_is_asked_of_it(spark: SparkSession) -> None:
    from parley.spark.pipeline import layers  # noqa: PLC0415

    rows = bronze(spark, [sound()], VITALS.topic)
    for frame in (layers.silver(rows, VITALS), layers.dead_letters(rows, VITALS)):
        plan = frame._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json") == 2


def test_gold_has_the_means_of_the_hour_in_which_it_was_measured(
    spark: SparkSession, sent: list[Reading]
) -> None:
    from parley.spark.pipeline import layers  # noqa: PLC0415

    for tenant, column in ((VITALS, "heart_rate"), (AIR, "pm25")):
        mine = of(sent, tenant)
        rows = bronze(spark, [reading.value for reading in mine], tenant.topic)
        found = {
            (row["hour"].hour, row[tenant.place]): (row["readings"], row[column])
            for row in layers.GOLD[tenant](layers.silver(rows, tenant)).collect()
        }
        wanted = defaultdict(list)
        for reading in mine:
            if reading.flaw is None:
                value = json.loads(reading.value)
                hour = datetime.fromisoformat(value["taken"]).hour
                wanted[hour, reading.place].append(value[column])
        assert found == {
            window: (len(values), pytest.approx(mean(values), abs=0.06)) for window, values in wanted.items()
        }


def test_an_expectation_counts_the_rows_that_fail_it_and_holds_up_to_its_share(spark: SparkSession) -> None:
    from parley.spark.pipeline.expectations import Expectation, counted, each  # noqa: PLC0415

    rows = spark.createDataFrame([(number, 1.0) for number in range(10)] + [(None, 1.0)], "n int, x double")
    wanted = [
        each("t", "all are there", "x = 1.0"),
        each("t", "small", "n < 9"),  # neither true nor false is not as expected
        each("t", "mostly small", "n < 9", least=0.8),
        Expectation("t", "no two are equal", "count(*) - count(DISTINCT n, x)"),
    ]
    found = {row["expectation"]: row for row in counted(lambda _: rows, wanted).collect()}
    assert [(row["rows"], row["failing"], row["holds"]) for row in found.values()] == [
        (11, 0, True),
        (11, 2, False),
        (11, 2, True),
        (11, 1, False),
    ]


def test_rows_that_vanish_between_layers_are_noticed(spark: SparkSession) -> None:
    from parley.spark.pipeline.expectations import EXPECTATIONS, counted  # noqa: PLC0415

    sizes = {VITALS.bronze: 10, VITALS.silver: 7, VITALS.dead: 2}
    wanted = [one for one in EXPECTATIONS if one.table == VITALS.topic]
    found = {
        row["expectation"]: row
        for row in counted(lambda name: spark.range(sizes[name]).toDF("n"), wanted).collect()
    }
    lost, formed = found["nothing is lost between layers"], found["readings are well-formed"]
    assert (lost["rows"], lost["failing"], lost["holds"]) == (10, 1, False)
    assert (formed["failing"], formed["holds"]) == (2, False)
