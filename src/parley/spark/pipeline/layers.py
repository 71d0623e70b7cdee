"""How rows become the next layer's rows: the same functions serve the declarative pipeline, the notebook and tests.

They only build columns: a pipeline's definitions may not run queries. Nor may they use `withColumn`, which Spark Connect
resolves at once: it finds the table of the last run, and the pipeline does not see that one table waits for another.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from parley.spark.pipeline.tenants import AIR, VITALS, Number, Tenant

WINDOW = "1 hour"
TAKEN = "yyyy-MM-dd'T'HH:mm:ssX"
YEARS = (1970, 9998)  # of a reading: Spark knows more of them than those who read its tables do
PLACE_IN_LEDGER = ("topic", "partition", "offset", "height", "publisher")
GUIDELINE = 15.0  # µg of fine dust in a cubic metre over a day, as the World Health Organization advises
COMFORT = "temperature BETWEEN 18 AND 26 AND humidity BETWEEN 30 AND 60"
ALARM = "heart_rate NOT BETWEEN 45 AND 120 OR systolic NOT BETWEEN 85 AND 170"


def bronze(rows: DataFrame) -> DataFrame:
    """What the source checked, as it came. `arrived` is the time of the block, which no publisher can choose."""
    return rows.select(
        *PLACE_IN_LEDGER, F.col("timestamp").alias("arrived"), "verified", "key", "value", "tags"
    )


def silver(rows: DataFrame, tenant: Tenant) -> DataFrame:
    """Rows with typed columns: those that have no reason to be set aside."""
    numbers = [F.col(f"typed.{number.name}").alias(number.name) for number in tenant.numbers]
    texts = [F.col(f"typed.{name}").alias(name) for name in tenant.texts[:-1]]
    return (
        _judged(rows, tenant)
        .where("reason IS NULL")
        .select(F.col("at").alias("taken"), *texts, *numbers, "arrived", *PLACE_IN_LEDGER)
    )


def dead_letters(rows: DataFrame, tenant: Tenant) -> DataFrame:
    """The other rows, whole, with the first reason and all that can be said against them."""
    return (
        _judged(rows, tenant)
        .where("reason IS NOT NULL")
        .select("reason", "complaints", "value", "arrived", *PLACE_IN_LEDGER)
    )


def vitals_per_ward(rows: DataFrame) -> DataFrame:
    return _windows(rows, VITALS).agg(
        F.count("*").alias("readings"),
        F.count_distinct("patient").alias("patients"),
        F.round(F.avg("heart_rate"), 1).alias("heart_rate"),
        F.min("heart_rate").alias("heart_rate_least"),
        F.max("heart_rate").alias("heart_rate_most"),
        F.round(F.avg("systolic"), 1).alias("systolic"),
        F.round(F.avg("diastolic"), 1).alias("diastolic"),
        F.count_if(F.expr(ALARM)).alias("alarms"),
    )


def air_per_building(rows: DataFrame) -> DataFrame:
    return _windows(rows, AIR).agg(
        F.count("*").alias("readings"),
        F.count_distinct("room").alias("rooms"),
        F.round(F.avg("temperature"), 1).alias("temperature"),
        F.round(F.avg("humidity"), 1).alias("humidity"),
        F.round(F.avg("co2")).alias("co2"),
        F.round(F.avg("pm25"), 1).alias("pm25"),
        F.max("pm25").alias("pm25_most"),
        F.round(100 * F.avg("pm25") / GUIDELINE).alias("pollution_index"),
        F.round(F.avg(F.expr(COMFORT).cast("int")), 3).alias("comfortable"),
    )


GOLD = {VITALS: vitals_per_ward, AIR: air_per_building}


def _windows(rows: DataFrame, tenant: Tenant) -> GroupedData:
    # By when it was measured: a reading that came late still belongs to its hour.
    return rows.groupBy(F.window("taken", WINDOW)["start"].alias("hour"), tenant.place)


# -- what is wrong with a row ----------------------------------------------------------------------------------------


def _judged(rows: DataFrame, tenant: Tenant) -> DataFrame:
    """With `typed`, and `reason` where there is one. Every row comes out: it is silver or a dead letter."""
    schema = StructType(
        [StructField(name, StringType()) for name in tenant.texts]
        + [StructField(number.name, DoubleType()) for number in tenant.numbers]
    )
    text = F.coalesce("value", F.lit(b"")).cast("string")
    once = F.struct(
        F.is_valid_utf8(text).alias("readable"),
        F.from_json(text, "map<string,string>").alias("given"),
        F.from_json(text, schema).alias("typed"),
    )
    # Columns that come out of a generator are worked out once. As plain columns they would be put into the filter below,
    # wherever it mentions them, and every row would be parsed forty times.
    parsed = rows.select("*", F.inline(F.array(once)))
    timed = parsed.select("*", F.try_to_timestamp("typed.taken", F.lit(TAKEN)).alias("at"))
    complaints = _complaints(tenant)
    return timed.select(
        "*",
        F.substring_index(F.coalesce(*complaints), ":", 1).alias("reason"),
        F.concat_ws("; ", *complaints).alias("complaints"),
    )


def _complaints(tenant: Tenant) -> list[Column]:
    """Each is null or a sentence that begins with its reason; the first one counts."""
    readable, given = F.col("readable"), F.col("given").isNotNull()
    typed = [("taken", "at"), *((one.name, f"typed.{one.name}") for one in tenant.numbers)]
    place = F.col(f"typed.{tenant.place}")
    inside = [
        *((_is_missing(name), f"missing field: {name}") for name in tenant.fields),
        *((~_is_missing(name) & F.col(column).isNull(), f"wrong type: {name}") for name, column in typed),
        (~F.year("at").between(*YEARS), "out of range: taken"),
        *((_is_outside(number), f"out of range: {number.name}") for number in tenant.numbers),
        (~place.isin(*tenant.places), f"unknown place: {tenant.place}"),
    ]
    if tenant is VITALS:
        upside_down = F.expr("typed.diastolic >= typed.systolic")
        inside.append((upside_down, "contradiction: diastolic is not below systolic"))
    return [
        F.when(~readable, F.lit("not UTF-8")),
        F.when(readable & ~given, F.lit("not a JSON object")),
        *(F.when(readable & given & condition, F.lit(words)) for condition, words in inside),
    ]


def _is_missing(name: str) -> Column:
    return F.col("given")[name].isNull()


def _is_outside(number: Number) -> Column:
    """Not a number is larger than any, for Spark: so it is outside, too."""
    return ~F.col(f"typed.{number.name}").between(number.low, number.high)
