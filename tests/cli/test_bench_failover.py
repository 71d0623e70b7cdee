"""`parley bench failover`: what it says and how it is misused. No test looks at how long anything takes."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.commands import flat
from typer.testing import CliRunner, Result

from parley.bench.failover.gaps import Round, summaries
from parley.bench.failover.rounds import Result as Found
from parley.cli.app import app
from parley.cli.bench_failover import _told
from parley.cli.output import ExitCode

CASE = {"case", "value", "unit", "baseline", "ratio", "spread", "worst", "gaps", "failed_views", "victims"}
BROKERS = {"org-1-1", "org-2-1", "org-3-1", "org-4-1"}


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", "failover", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--brokers", "3"], "'--brokers'"),
        (["--cases", "kil"], "'kil' is not one of kill, stop, cut, isolate"),
        (["--cases", ","], "name one of kill, stop, cut, isolate"),
        (["--rounds", "0"], "'--rounds'"),
        (["--set", "nonsense"], "is not KEY=VALUE"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], complaint: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (ExitCode.WRONG_USE, "")
    assert complaint in flat(result.stderr)


def test_the_table_tells_median_worst_and_failed_views_of_each_case() -> None:
    played = {
        "no fault": [Round("", 0.125, None, None, 0)],
        "kill leader": [Round("a", 1.0, 3.0, 0.5, 1), Round("b", 2.0, 4.0, 0.25, 12)],
    }
    found = Found(summaries("", played), [], {"nats": "nats-server 2"}, 4, 2, 10.0, 50.0, 128, "ext4")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_told(found))
    text = console.export_text()
    (line,) = (line for line in text.splitlines() if "kill leader" in line)
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    assert cells == ["kill leader", "1.50", "2.00", "1.00", "0.12", "4.00", "0.50", "1 12"]
    assert "nats-server 2" in text


@pytest.mark.long
def test_every_fault_has_its_gaps_and_peers_are_killed_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = invoke("--rounds", "2", "--seconds", "1", "--cases", "kill,stop,cut,isolate", "--json")
    assert result.exit_code == 0, result.stderr
    assert list(tmp_path.iterdir()) == []
    found = json.loads(result.stdout)
    own = [one for one in found["results"] if not one["case"].startswith(("nats", "kafka"))]
    faults = {
        f"{before}{fault} {whom}"
        for before, kinds in (("", ("kill", "stop")), ("proxies: ", ("cut", "isolate")))
        for fault in kinds
        for whom in ("leader", "other")
    }
    assert {one["case"] for one in own} == faults | {"no fault", "proxies: no fault"}
    for one in own:
        assert set(one) >= CASE
        assert (one["unit"], len(one["gaps"]), len(one["failed_views"])) == ("s", 2, 2)
        assert one["worst"] == max(one["gaps"]) > 0
        fails = one["case"] in faults
        assert len(one["victims"]) == len(one["own_client"]) == (2 if fails else 0)
        assert set(one["victims"]) <= BROKERS
        assert (one["baseline"] is not None) == fails
    played = {one["case"].partition(":")[0] for one in found["results"] if one not in own}
    skipped = {one["name"] for one in found["skipped"]}
    assert (played | skipped, played & skipped) == ({"nats", "kafka"}, set())
    assert all(f"skipped: {name}" in flat(result.stderr) for name in skipped)
