"""The job on Spark: state in RocksDB, restarts from a checkpoint, and the table of alerts that comes of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from parley.model.refusals import OK, Invalid, SequenceReused
from parley.modules.topics.refusals import UnknownTopic
from parley.spark.detect import Job, Watch, alerts_of
from parley.spark.detect_rules import Alert, Thresholds
from parley.spark.detect_table import read_alerts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.node.network import LocalNetwork

LIMITS = Thresholds(
    refusals=4, probed=3, replays=5, reused=1, window=10_000, silent_blocks=5, silent_time=3_000
)

OPERATIONS = pa.schema(
    [
        ("height", pa.int64()),
        ("position", pa.int32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("publisher", pa.string()),
        ("code", pa.string()),
        ("topic", pa.string()),
        ("digest", pa.binary()),
        ("operation", pa.string()),
        ("arguments", pa.string()),
    ]
)
VOTES = pa.schema(
    [
        ("voted_height", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("broker", pa.string()),
        ("kind", pa.string()),
        ("voted", pa.bool_()),
    ]
)


class Files:
    """The two tables as folders of files, of which Spark takes one for each micro-batch."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written = 0
        for name in ("operations", "votes"):
            (directory / name).mkdir(parents=True)

    def add(self, operations: Sequence[tuple[int, str, str, str]], votes: Sequence[tuple[int, str]]) -> None:
        self._written += 1
        rows = [
            {
                "height": height,
                "position": place,
                "time": _time(height),
                "publisher": client,
                "code": code,
                "topic": topic,
                "digest": b"%d/%d" % (height, place),
            }
            for place, (height, client, code, topic) in enumerate(operations)
        ]
        self._write("operations", pa.Table.from_pylist(rows, OPERATIONS))
        heard = [
            {"voted_height": height, "time": _time(height), "broker": broker, "kind": "vote", "voted": True}
            for height, broker in votes
        ]
        self._write("votes", pa.Table.from_pylist(heard, VOTES))

    def stream(self, spark: SparkSession, name: str) -> DataFrame:
        folder = str(self._directory / name)
        return (
            spark.readStream.schema(spark.read.parquet(folder).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(folder)
        )

    def _write(self, name: str, table: pa.Table) -> None:
        path = self._directory / name / f"{self._written:03}.parquet"
        pq.write_table(table, path)
        # Spark takes files in the order of these times, and two that are written in one millisecond in any order.
        changed = 1_700_000_000 + self._written
        os.utime(path, (changed, changed))


def _time(height: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + height, UTC)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "ledger")


def run(spark: SparkSession, files: Files, watch: Watch) -> list[Alert]:
    """To the end of what there is; what was told on the way."""
    told: list[Alert] = []
    found = alerts_of(
        files.stream(spark, "operations"), files.stream(spark, "votes"), watch.genesis, watch.limits
    )
    Job(watch, told.extend).start(found, once=True).awaitTermination()
    return told


def test_alerts_are_written_once_though_the_job_is_restarted(
    few: SparkSession, network: LocalNetwork, files: Files, tmp_path: Path
) -> None:
    watch = Watch(
        network.genesis, {}, tmp_path / "alerts", tmp_path / "checkpoint", LIMITS, delta=tmp_path / "delta"
    )
    first, *others = network.names
    files.add(
        [(1, "alpha/mallory", Invalid.code, "")] * 3 + [(1, "alpha/alice", OK, "notes")],
        [(1, name) for name in network.names],
    )
    assert run(few, files, watch) == []
    # The fourth refusal comes after a restart, which remembers three; the end of it comes in a micro-batch of its own.
    files.add(
        [(2, "alpha/mallory", UnknownTopic.code, "secrets"), (2, "beta/bob", SequenceReused.code, "notes")],
        [(height, name) for height in range(2, 10) for name in others],
    )
    files.add(
        [(40, "alpha/alice", OK, "notes")],
        [(height, name) for height in (40, 41) for name in network.names],
    )
    told = run(few, files, watch)
    assert [(alert.kind, alert.subject, alert.phase) for alert in told] == [
        ("refusals", "alpha/mallory", "began"),
        ("reused-sequences", "beta/bob", "began"),
        ("silent-broker", first, "began"),
        ("silent-broker", first, "ended"),
        ("refusals", "alpha/mallory", "ended"),
        ("reused-sequences", "beta/bob", "ended"),
    ]
    kept = read_alerts(watch.table)
    assert sorted(alert.alert for alert in told) == sorted(alert.alert for alert in kept)
    # As after a crash between the sink and Spark's own note that the batch is done.
    last = max((watch.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    run(few, files, watch)
    assert read_alerts(watch.table) == kept
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == len(kept)
