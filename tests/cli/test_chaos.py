"""`parley chaos` for people and for scripts: how it is misused, what it says of a history, how it ends."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from tests.chaos.histories import good
from tests.cli.commands import flat, start
from typer.testing import CliRunner, Result

from parley.chaos.history import Acknowledged, Began, Delivered, Record, Span, Subscribed, write_history
from parley.cli.app import app
from parley.cli.output import ExitCode

SECONDS = 60.0


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["chaos", *map(str, words)])


def written(path: Path, records: list[Record]) -> Path:
    began = Began(0.0, 7, ("kill", "pause"), 4, 60.0)
    spans = [
        Span(0.1, 0.2, "beta-1", "killed", "kill one: beta-1"),
        Span(0.3, 0.5, "alpha-1", "paused", "pause"),
    ]
    write_history(path, [began, *spans, *records])
    return path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--faults", "kil"], "there is no fault 'kil'; did you mean 'kill'?"),
        (
            ["--faults", "kill,quake"],
            "there is no fault 'quake'; choose from kill, pause, partition, disk, byzantine, expensive.",
        ),
        (
            ["--faults", "partition:rings"],
            "there is no fault 'partition:rings'; did you mean 'partition:ring'?",
        ),
        (["--faults", "disk:quake"], "there is no fault 'disk:quake'; choose from disk:full."),
        (["--brokers", "3"], "'--brokers'"),
        (["--minutes", "0"], "'--minutes'"),
        (["--chart", "timeline.svg"], "'--chart': charts are PNG files"),
        (["--check", "no-such-file"], "no-such-file cannot be read"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], complaint: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (ExitCode.WRONG_USE, "")
    assert complaint in flat(result.stderr).replace("--chart: ", "'--chart': ")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = invoke("--dir", tmp_path)
    assert result.exit_code == ExitCode.WRONG_USE
    assert "name a new folder" in flat(result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_history_that_holds_is_judged_again(tmp_path: Path) -> None:
    path = written(tmp_path / "history.jsonl", good())
    found = invoke("--check", path, "--json")
    assert (found.exit_code, found.stderr) == (0, "")
    result = json.loads(found.stdout)
    assert result["violations"] == []
    assert (result["lost"], result["doubled"], result["reordered"]) == (0, 0, 0)
    assert (result["digests_equal"], result["seed"], result["acknowledged"]) == (True, 7, 10)
    told = invoke("--check", path).stdout
    assert "Every property holds" in told
    assert "4 brokers, seed 7, 60 s of kill, pause" in told


def test_a_history_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, [Began(0.0, 7, ("kill", "pause; rm -r ~"), 4, 60.0)])
    result = invoke("--check", path)
    assert result.exit_code == ExitCode.DOES_NOT_HOLD
    assert "parley chaos --minutes 1 --faults kill --seed 7" in result.stderr
    write_history(path, [Subscribed(0.0, "s", "alpha/a", "log", "((", {})])
    result = invoke("--check", path)
    assert result.exit_code == ExitCode.WRONG_USE
    assert "a rule or a constraint in it cannot be read" in flat(result.stderr)


def test_the_timeline_shows_who_was_down_when(tmp_path: Path) -> None:
    told = invoke("--check", written(tmp_path / "history.jsonl", good())).stdout.splitlines()
    lines = {
        line.split()[0]: line.split(maxsplit=1)[1] for line in told if line.startswith(("alpha-1", "beta-1"))
    }
    assert "X" in lines["beta-1"]
    assert "=" not in lines["beta-1"]
    assert "=" in lines["alpha-1"]
    assert any("up, X killed, = paused" in line for line in told)


def test_a_violation_ends_with_1_and_says_how_to_see_it_again(tmp_path: Path) -> None:
    lost = next(one.id for one in good() if isinstance(one, Acknowledged))
    records = [one for one in good() if not isinstance(one, Delivered) or one.id != lost]
    path = written(tmp_path / "history.jsonl", records)
    result = invoke("--check", path)
    assert result.exit_code == ExitCode.DOES_NOT_HOLD
    assert "BROKEN: nothing-lost" in result.stdout
    assert f"nothing-lost: dora did not get {lost}, which was acknowledged" in result.stdout
    assert "parley chaos --minutes 1 --faults kill,pause --seed 7 --brokers 4" in result.stderr
    assert f"parley chaos --check {path}" in result.stderr


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    chart = tmp_path / "timeline.png"
    result = invoke("--check", written(tmp_path / "history.jsonl", good()), "--chart", chart)
    assert result.exit_code == 0
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_short_run_holds_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = invoke("--minutes", "0.05", "--faults", "pause", "--seed", "3", "--json")
    assert result.exit_code == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert (found["violations"], found["faults"], found["seed"]) == ([], ["pause"], 3)
    assert found["acknowledged"] > 0
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_no_broker_behind(tmp_path: Path) -> None:
    command = start(
        "chaos", "--minutes", "10", "--faults", "pause", "--dir", tmp_path / "kept", home=tmp_path
    )
    pids = started(tmp_path / "kept")
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=SECONDS)
    assert command.returncode == 130
    assert not any(is_alive(pid) for pid in pids)


def started(directory: Path) -> list[int]:
    """The ids of all four brokers, once they have been started."""
    deadline = time.monotonic() + SECONDS
    while len(files := list(directory.glob("network/brokers/*/pid"))) < 4 or not all(
        path.read_text().strip() for path in files
    ):
        assert time.monotonic() < deadline, "no broker was started"
        time.sleep(0.05)
    return [int(path.read_text()) for path in files]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
