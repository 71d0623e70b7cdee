"""The other measurements of a network: their results are complete, and nothing of them is left."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import flat
from typer.testing import CliRunner, Result

from parley.cli.app import app
from parley.cli.output import ExitCode

CASE = {"case", "value", "unit", "baseline", "ratio", "spread"}


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    return home


def found(home: Path, *words: str | Path) -> dict[str, Any]:
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.stderr
    assert list(home.iterdir()) == []
    read: dict[str, Any] = json.loads(result.stdout)
    assert all(set(case) >= CASE for case in read["results"])
    return read


def test_every_subscriber_in_every_process_is_counted(home: Path) -> None:
    words = ("--subscribers", "5", "--processes", "2", "--seconds", "1", "--runs", "1", "--brokers", "1")
    result = found(home, "sub", *words)
    rate, cost, published = result["results"]
    assert (rate["unit"], rate["baseline"]) == ("deliveries/s", 100_000)
    assert rate["value"] > published["value"] > 0
    (run,) = result["runs"]
    parts = run["cpu_us_brokers"] + run["cpu_us_subscribers"] + run["cpu_us_publisher"]
    assert cost["value"] == pytest.approx(parts, abs=0.04)
    assert run["cpu_us_subscribers"] > 0
    assert run["failed"] == 0


@pytest.mark.long
def test_latency_is_that_of_single_publications(home: Path) -> None:
    result = found(home, "latency", "--seconds", "1", "--runs", "2", "--rate", "20", "--brokers", "1")
    median, high = result["results"]
    assert (median["unit"], median["baseline"]) == ("ms", 25)
    assert 0 < median["value"] <= high["value"]
    assert len(result["runs"]) == 2
    assert 2 <= result["publications"] <= 2 * (20 + 5)


@pytest.mark.long
def test_idle_tells_each_broker_and_the_latency(home: Path) -> None:
    result = found(home, "idle", "--seconds", "1", "--rate", "10", "--brokers", "4")
    assert set(result["cpu_percent"]) == {"org-1-1", "org-2-1", "org-3-1", "org-4-1"}
    busiest, everybody, median, _ = result["results"]
    assert busiest["value"] == max(result["cpu_percent"].values())
    assert everybody["value"] == pytest.approx(sum(result["cpu_percent"].values()), abs=0.01)
    assert (busiest["baseline"], median["baseline"]) == (2, 25)
    assert result["latencies_ms"]


@pytest.mark.long
def test_memory_compares_the_end_with_two_fifths_of_the_time(home: Path, tmp_path: Path) -> None:
    chart = tmp_path / "memory.png"
    words = ("--minutes", "0.05", "--peak-seconds", "1", "--brokers", "1", "--chart", chart)
    result = found(home, "memory", *words)
    (broker,) = result["results"]
    assert (broker["case"], broker["unit"]) == ("org-1-1", "MB")
    samples = result["samples"]
    assert broker["value"] == samples[-1]["rss_mb"]["org-1-1"]
    early = next(one for one in samples if one["seconds"] == result["early_seconds"])
    assert broker["baseline"] == early["rss_mb"]["org-1-1"]
    assert result["early_seconds"] == pytest.approx(0.4 * 3, abs=1)
    assert (
        result["largest_ratio"]
        == broker["ratio"]
        == pytest.approx(broker["value"] / broker["baseline"], abs=0.01)
    )
    assert result["wanted_publications_per_s"] == pytest.approx(
        result["peak_publications_per_s"] / 2, rel=0.01
    )
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_growth_writes_points_and_a_chart_for_each_dimension(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "results" / "growth"
    result = found(home, "growth", "--to", to, "--only", "topics,batch", "--seconds", "0.5", "--quick")
    assert sorted(path.name for path in to.iterdir()) == [
        "batch.json",
        "batch.png",
        "topics.json",
        "topics.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in to.glob("*.png"))
    batch, topics = (json.loads((to / f"{name}.json").read_text()) for name in ("batch", "topics"))
    assert result["growth"] == [batch, topics]
    assert [point["x"] for point in batch["points"]] == [1, 10, 100, 1_000]
    assert [point["x"] for point in topics["points"]] == [1, 10, 100]
    for point in (*batch["points"], *topics["points"]):
        parts = point["cpu_us_brokers"] + point["cpu_us_publishers"] + point["cpu_us_readers"]
        assert point["cpu_us_per_publication"] == pytest.approx(parts, abs=0.05)
        assert point["cpu_us_readers"] == 0
    assert (batch["inverse"], batch["constant"]) == (True, {"brokers": 4, "size": 128})
    # A batch has a price of its own, which its messages share.
    assert batch["points"][0]["cpu_us_per_publication"] > batch["points"][-1]["cpu_us_per_publication"]
    assert batch["slope"] > 0
    assert [case["baseline"] for case in result["results"][:4]] == [
        batch["points"][0]["cpu_us_per_publication"]
    ] * 4


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["growth", "--only", "broker"], "'broker' is not one of brokers, size, batch"),
        (["memory", "--chart", "memory.svg"], "charts are PNG files"),
        (["memory", "--rate-share", "2"], "'--rate-share'"),
        (["sub", "--subscribers", "0"], "'--subscribers'"),
        (["sub", "--batch", "4000", "--size", "1000"], "a batch takes at most"),
        (["latency", "--rate", "0"], "'--rate'"),
        (["idle", "--set", "nonsense"], "is not KEY=VALUE"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], complaint: str, home: Path) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (ExitCode.WRONG_USE, "")
    assert complaint in flat(result.stderr)
    assert list(home.iterdir()) == []
