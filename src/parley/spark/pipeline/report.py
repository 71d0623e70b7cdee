"""What came of a run: counts, expectations, and each gold table as Parquet, as Delta and as a chart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from parley.spark.charts import Line, Panel, draw
from parley.spark.pipeline.folder import Folder
from parley.spark.pipeline.tenants import AIR, TENANTS, VITALS, Tenant

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TIME = "hour"
PANELS: dict[Tenant, tuple[tuple[str, str, tuple[float, str] | None], ...]] = {
    VITALS: (
        ("heart_rate", "heart rate, per minute", None),
        ("systolic", "systolic blood pressure, mmHg", None),
        ("alarms", "readings that call for somebody", None),
    ),
    AIR: (
        ("temperature", "temperature, °C", None),
        ("co2", "carbon dioxide, parts per million", None),
        ("pm25", "fine dust (PM2.5), µg/m³", (15.0, "guideline for a day")),
    ),
}
SHOWN = {
    VITALS: (TIME, "ward", "readings", "heart_rate", "systolic", "diastolic", "alarms"),
    AIR: (TIME, "building", "readings", "temperature", "humidity", "co2", "pm25", "pollution_index"),
}
TITLES = {VITALS: "Vital signs per ward and hour", AIR: "Indoor air per building and hour"}


class Rows(msgspec.Struct):
    """Of a table: how many there are, and how many the last run added."""

    rows: int
    new: int


class Held(msgspec.Struct):
    """An expectation and whether it holds."""

    table: str
    expectation: str
    rows: int
    failing: int
    least: float
    holds: bool


class Gold(msgspec.Struct):
    """Where a gold table is, in each of its forms; `newest` are its last rows, for people to see."""

    table: str
    rows: int
    parquet: str
    delta: str
    delta_version: int
    chart: str
    newest: list[dict[str, Any]]


class Run(msgspec.Struct):
    """Scripts read it with `--json`."""

    output: str
    master: str
    tables: dict[str, Rows]
    dead_letters: dict[str, dict[str, int]]  # by table and reason
    expectations: list[Held]
    gold: list[Gold]
    seconds: float = 0.0
    holds: bool = True


def read_run(folder: Folder) -> Run | None:
    """The report of the last run that came to its end."""
    try:
        return msgspec.json.decode(folder.report.read_bytes(), type=Run)
    except FileNotFoundError:
        return None


def write_run(spark: SparkSession, folder: Folder, master: str, begin: float) -> Run:
    """Read the tables that the pipeline made, through Spark, which knows what of their folders counts."""
    before = read_run(folder)
    dead = {tenant.dead: {} for tenant in TENANTS}  # type: dict[str, dict[str, int]]
    for row in spark.table("dead_letter_reasons").orderBy("table", "reason").collect():
        dead[row["table"]][row["reason"]] = row["rows"]
    held = [
        Held(**row.asDict())
        for row in spark.table("expectations").orderBy("holds", "table", "expectation").collect()
    ]
    counts = {one.table: one.rows for one in held}
    run = Run(
        output=str(folder.path),
        master=master,
        tables={
            table: Rows(counts[table], counts[table] - (before.tables[table].rows if before else 0))
            for tenant in TENANTS
            for table in tenant.tables
        },
        dead_letters=dead,
        expectations=held,
        gold=[_gold(spark, folder, tenant) for tenant in TENANTS],
        seconds=round(time.monotonic() - begin, 1),
        holds=all(one.holds for one in held),
    )
    written = folder.report.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(run))
    written.replace(folder.report)
    return run


def _gold(spark: SparkSession, folder: Folder, tenant: Tenant) -> Gold:
    table = spark.table(tenant.gold).orderBy(TIME, tenant.place).toArrow()
    delta, chart = folder.delta / tenant.gold, folder.charts / f"{tenant.gold}.png"
    version = _write_delta(table, delta)
    draw(TITLES[tenant], _panels(table, tenant), chart)
    newest = table.select(list(SHOWN[tenant])).slice(max(0, table.num_rows - len(tenant.places))).to_pylist()
    return Gold(
        table=tenant.gold,
        rows=table.num_rows,
        parquet=str(folder.tables / tenant.gold),
        delta=str(delta),
        delta_version=version,
        chart=str(chart),
        newest=newest,
    )


def _write_delta(table: pa.Table, path: Path) -> int:
    """One version for each run, whole: whoever reads it sees the last run or this one, and may ask for an older one."""
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415 - an extra

    path.parent.mkdir(exist_ok=True)
    write_deltalake(path, table, mode="overwrite", schema_mode="overwrite")
    return DeltaTable(path).version()


def _panels(table: pa.Table, tenant: Tenant) -> list[Panel]:
    rows = table.to_pylist()
    return [
        Panel(
            title,
            {
                place: Line(
                    [row[TIME] for row in rows if row[tenant.place] == place],
                    [row[column] for row in rows if row[tenant.place] == place],
                )
                for place in tenant.places
            },
            limit,
        )
        for column, title, limit in PANELS[tenant]
    ]
