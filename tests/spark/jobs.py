"""Jobs that tests run in a process of their own, each with a Spark of its own: `python jobs.py NAME CONFIG`."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from parley.spark.session import prepare, settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "StreamingQuery/")
TABLES = ("environment", "jobs", "stages", "sql?details=true&planDescription=true&length=100", "allexecutors")


class Job(msgspec.Struct, frozen=True):
    options: dict[str, str]  # of a source
    sink: str  # a topic
    folder: str  # for everything that the job leaves


def through_connect(job: Job) -> None:
    """Reads and streams with no word about where the format comes from."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - what follows is for Connect alone

    prepare()
    builder = SparkSession.builder.remote("local[2]")
    chosen = settings() | {"spark.connect.grpc.binding.address": "127.0.0.1"}
    del chosen["spark.master"]
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.read.format("parley").options(**job.options).load()
    _say(f"{type(spark).__module__} {sorted(bytes(row.value).decode() for row in rows.collect())}")
    nothing = spark.read.format("parley").options(**job.options, startingTimestamp="9000000000000").load()
    _say(f"nothing {nothing.collect()}")
    _stream(spark, job, "parquet")
    read = spark.read.parquet(f"{job.folder}/table")
    _say(f"streamed {sorted(bytes(row.value).decode() for row in read.collect())}")
    spark.stop()


def everything_on_record(job: Job) -> None:
    """Reads, streams and writes; keeps what Spark tells of it: plans, event log, pages and data of its user interface."""
    folder = Path(job.folder)
    for name in ("events", "local", "pages"):
        (folder / name).mkdir(parents=True)
    more = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(folder / "local"),
    }
    spark = spark_session("on-record", more=more)
    spark.sparkContext.setLogLevel("DEBUG")
    frame = spark.read.format("parley").options(**job.options).load()
    with (folder / "plans").open("w") as file, redirect_stdout(file):
        frame.explain(mode="formatted")
        frame.explain(mode="extended")
    where = {key: job.options[key] for key in ("genesis", "identity")}
    frame.select("value").write.format("parley").mode("append").options(**where, topic=job.sink).save()
    _stream(spark, job, "parquet")
    _keep_pages(str(spark.sparkContext.uiWebUrl), spark.sparkContext.applicationId, folder / "pages")
    for number, path in enumerate((folder / "local").rglob("*")):
        if path.is_file():  # Spark removes them at its end
            (folder / "pages" / f"local-{number}").write_bytes(path.read_bytes())
    spark.stop()
    _say("done")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _stream(spark: SparkSession, job: Job, kind: str) -> None:
    frame = spark.readStream.format("parley").options(**job.options, startingOffsets="earliest").load()
    query = (
        frame.writeStream.format(kind)
        .option("checkpointLocation", f"{job.folder}/checkpoint")
        .option("path", f"{job.folder}/table")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _keep_pages(url: str, application: str, folder: Path) -> None:
    urls: Mapping[str, str] = {
        **{name.strip("/"): f"{url}/{name}" for name in PAGES},
        **{
            f"api-{name.partition('?')[0]}": f"{url}/api/v1/applications/{application}/{name}"
            for name in TABLES
        },
    }
    for name, address in urls.items():
        with urllib.request.urlopen(address, timeout=60) as answer:
            (folder / name).write_bytes(answer.read())


if __name__ == "__main__":
    work = {one.__name__: one for one in (through_connect, everything_on_record)}[sys.argv[1]]
    work(msgspec.json.decode(sys.argv[2], type=Job))
