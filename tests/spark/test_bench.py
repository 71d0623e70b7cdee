"""`parley bench spark`: what it compares is comparable, and its result has the keys that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.commands import flat, start
from typer.testing import CliRunner

from parley.bench import spark as bench
from parley.bench.spark import AuditTime, Plan
from parley.bench.spark_source import Synthetic
from parley.cli.app import app
from parley.cli.output import ExitCode
from parley.spark import java
from parley.spark.source import ParleySource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("hashed", [True, False])
def test_the_synthetic_source_has_the_columns_of_the_real_one_and_all_its_rows(
    spark: SparkSession, hashed: bool
) -> None:
    spark.dataSource.register(Synthetic)
    frame = bench.synthetic(spark, 1_005, 128, 100, hashed=hashed)
    assert frame.schema == ParleySource({"subscribe": "none"}).schema()
    rows = frame.collect()
    assert sorted(row.offset for row in rows) == list(range(1_005))
    assert {len(row.value) for row in rows} == {128}


def test_the_synthetic_source_hashes_only_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def leaves(_salts: object, _headers: object, _rules: object, payloads: list[bytes]) -> list[bytes]:
        hashed.append(len(payloads))
        return payloads

    monkeypatch.setattr("parley.bench.spark_source.leaves_of_columns", leaves)
    for word, wanted in (("false", []), ("true", [40, 40, 20])):
        options = {"rows": "100", "size": "8", "batch": "40", "tasks": "1", "hash": word}
        reader = Synthetic(options).reader(Synthetic(options).schema())
        batches = [one for share in reader.partitions() for one in reader.read(share)]
        assert [batch.num_rows for batch in batches] == [40, 40, 20]
        assert hashed == wanted


def test_larger_messages_are_fewer() -> None:
    plan = Plan(rows=100_000)
    assert plan.rows_of(128) == 100_000
    assert plan.rows_of(1024) == 25_000


def test_audits_are_told_as_rates_and_against_one_core() -> None:
    first, second = AuditTime(1, 1_000, 2.0, 2_000.0, 0.1), AuditTime(2, 1_000, 1.25, 1_250.0, 0.2)
    alone, both = bench._audit_rates([first, second])
    assert (alone.case, alone.rows_per_s, alone.ratio) == ("audit on 1 core", 500.0, None)
    assert (both.case, both.baseline_rows_per_s, both.ratio) == ("audit on 2 cores", 500.0, 1.6)


def test_missing_java_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "FOLDERS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(app, ["bench", "spark"])
    assert (result.exit_code, result.stdout) == (ExitCode.WRONG_USE, "")
    assert java.INSTALL in flat(result.stderr)


@pytest.mark.long
def test_a_small_run_gives_all_figures_and_leaves_nothing(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = start("bench", "spark", "--rows", "2000", "--runs", "1", "--json", home=tmp_path)
    out, err = command.communicate(timeout=600)
    assert command.returncode == 0, err
    found = json.loads(out)
    assert {"case", "size", "rows_per_s", "baseline_rows_per_s", "ratio", "spread"} <= set(
        found["results"][0]
    )
    cases = [one["case"] for one in found["results"]]
    assert cases[0] == "certified 128 B"
    assert {"certified 1024 B", "sink 128 B", "audit on 1 core", "audit on 2 cores"} <= set(cases)
    assert all(one["rows_per_s"] > 0 for one in found["results"])
    assert [one["cores"] for one in found["audit"]] == [1, 2]
    assert found["rows"]["128"] >= 2_000
    assert not list(tmp_path.glob("parley-bench-*"))
