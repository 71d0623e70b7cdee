"""What the data is expected to be like: declared here, counted by the pipeline in every run, and shown with the result.

An expectation that does not hold stops nothing: the rows are there, and so is the table that says how many of them are
not as they should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from parley.spark.pipeline.tenants import AIR, TENANTS, VITALS, Tenant

RESULTS, REASONS = "expectations", "dead_letter_reasons"  # the tables
WELL_FORMED = 0.95  # of what arrives
ENOUGH = 0.9  # of windows


@dataclass(frozen=True, slots=True)
class Expectation:
    """`failing` and `rows` are SQL aggregates over the table; `least` is the share of rows that must be as expected."""

    table: str
    name: str
    failing: str
    rows: str = "count(*)"
    least: float = 1.0


def each(table: str, name: str, rule: str, least: float = 1.0) -> Expectation:
    """Of every row. Where the rule is neither true nor false, the row fails."""
    return Expectation(table, name, f"count_if(NOT coalesce({rule}, false))", least=least)


def _of(tenant: Tenant) -> tuple[Expectation, ...]:
    arrived = "count_if(layer = 'bronze')"
    once = "count(*) - count(DISTINCT topic, partition, offset)"
    return (
        each(tenant.bronze, "every row was verified", "verified = 'certified'"),
        Expectation(tenant.bronze, "no offset came twice", once),
        Expectation(
            tenant.topic,
            "nothing is lost between layers",
            "abs(count_if(layer = 'bronze') - count_if(layer = 'silver') - count_if(layer = 'dead'))",
            arrived,
        ),
        Expectation(
            tenant.topic, "readings are well-formed", "count_if(layer = 'dead')", arrived, WELL_FORMED
        ),
        each(tenant.silver, "measured before it arrived", "taken <= arrived + INTERVAL 5 MINUTES", 0.99),
        each(tenant.dead, "has a reason", "reason <> ''"),
    )


EXPECTATIONS: tuple[Expectation, ...] = (
    *_of(VITALS),
    each(VITALS.silver, "pulse pressure is at least 10", "systolic - diastolic >= 10", 0.99),
    each(VITALS.gold, "a window has 12 readings of 3 patients", "readings >= 12 AND patients >= 3", ENOUGH),
    *_of(AIR),
    each(AIR.silver, "people live in it", "temperature BETWEEN 5 AND 40", 0.99),
    each(AIR.gold, "a window has 9 readings of 3 rooms", "readings >= 9 AND rooms >= 3", ENOUGH),
)


def counted(read: Callable[[str], DataFrame], expectations: Iterable[Expectation]) -> DataFrame:
    """A row for each of them, from one pass over each table."""
    by_table: dict[str, list[Expectation]] = {}
    for one in expectations:
        by_table.setdefault(one.table, []).append(one)
    return reduce(
        DataFrame.union, (_counted(_table(read, table), table, ones) for table, ones in by_table.items())
    )


def reasons(read: Callable[[str], DataFrame]) -> DataFrame:
    """How many dead letters there are of each tenant, by reason."""
    frames = [
        read(tenant.dead)
        .groupBy("reason")
        .agg(F.count("*").alias("rows"))
        .select(F.lit(tenant.dead).alias("table"), "reason", "rows")
        for tenant in TENANTS
    ]
    return reduce(DataFrame.union, frames)


def _table(read: Callable[[str], DataFrame], name: str) -> DataFrame:
    """A table by its name; by the name of a topic all rows of its first layers, and in which they are."""
    for tenant in TENANTS:
        if name == tenant.topic:
            layers = {"bronze": tenant.bronze, "silver": tenant.silver, "dead": tenant.dead}
            parts = [read(table).select(F.lit(layer).alias("layer")) for layer, table in layers.items()]
            return reduce(DataFrame.unionAll, parts)
    return read(name)


def _counted(rows: DataFrame, table: str, ones: list[Expectation]) -> DataFrame:
    counts = rows.agg(
        *(F.expr(one.rows).alias(f"rows_{number}") for number, one in enumerate(ones)),
        *(F.expr(one.failing).alias(f"failing_{number}") for number, one in enumerate(ones)),
    )
    lines = [
        F.struct(
            F.lit(table).alias("table"),
            F.lit(one.name).alias("expectation"),
            F.col(f"rows_{number}").alias("rows"),
            F.col(f"failing_{number}").alias("failing"),
            F.lit(one.least).alias("least"),
        )
        for number, one in enumerate(ones)
    ]
    found = counts.select(F.explode(F.array(*lines)).alias("line")).select("line.*")
    return found.select("*", F.expr("rows - failing >= least * rows").alias("holds"))
