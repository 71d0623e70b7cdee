"""`parley bench pub`: what it says, how it is misused, and that it leaves nothing behind. No test looks at how fast it is."""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest
from tests.cli.commands import flat, start
from typer.testing import CliRunner, Result

from parley.bench import profile
from parley.cli.app import app
from parley.cli.output import ExitCode

SECONDS = 90.0
TINY = ("--seconds", "1", "--runs", "1")


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", "pub", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--brokers", "0"], "'--brokers'"),
        (["--preset", "galaxy"], "'galaxy' is not one of bps, chios-p"),
        (["--size", "65536", "--batch", "100"], "that is 15 messages of 65536 bytes"),
        (["--set", "log.level=debug"], "is not KEY=VALUE as in broker.toml; words need quotes"),
        (["--set", "a=1\nb=2"], "is not KEY=VALUE"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], complaint: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (ExitCode.WRONG_USE, "")
    assert complaint in flat(result.stderr)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = invoke("--dir", tmp_path)
    assert result.exit_code == ExitCode.WRONG_USE
    assert "name a new folder" in flat(result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_settings_that_brokers_refuse_end_with_2_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = invoke("--set", "limitz.connections=5")
    assert result.exit_code == ExitCode.WRONG_USE
    assert "Invalid value for --set: there is no 'limitz'; did you mean 'limits'?" in flat(result.stderr)
    assert "broker.toml" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_profiler_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(profile, "find_profiler", lambda: None)
    result = invoke("--profile", tmp_path / "profile")
    assert result.exit_code == ExitCode.WRONG_USE
    assert 'pip install "parley[bench]"' in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_four_brokers_give_the_keys_that_scripts_rely_on_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = invoke(*TINY, "--clients", "2", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["brokers"], found["size"], found["batch"]) == (4, 128, 100)
    assert (found["preset"], found["solo"], found["clients"]) == ("bps", False, 2)
    assert found["publications_per_s"] > 0
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["rss_mb"] > 1
    assert found["spread"] == 0
    parts = found["cpu_us_client"] + found["cpu_us_brokers"]
    assert found["cpu_us_per_publication"] == pytest.approx(parts, abs=0.03)
    (run,) = found["runs"]
    assert run["publications"] % 100 == 0
    assert run["failed"] == 0
    assert run["view_changes"] == found["view_changes"] >= 0
    assert run["publications_per_s"] == pytest.approx(run["publications"] / run["seconds"], rel=0.02)
    assert set(run["cpu"]) == {"org-1-1", "org-2-1", "org-3-1", "org-4-1", "client-1", "client-2"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_solo_is_one_broker_and_a_named_folder_is_kept(tmp_path: Path) -> None:
    result = invoke("--seconds", "1", "--runs", "2", "--solo", "--batch", "5", "--dir", tmp_path / "kept")
    assert result.exit_code == 0, result.stderr
    assert "one broker, no replication, batches of 5 x 128 bytes" in result.stdout
    assert "best of 2" in result.stdout
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["run-1", "run-2"]
    assert [path.name for path in (tmp_path / "kept" / "run-1" / "brokers").iterdir()] == ["org-1-1"]


def profiler(tmp_path: Path, body: str) -> str:
    """A command that stands for py-spy."""
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.long
def test_a_profile_is_written_for_brokers_and_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = profiler(tmp_path, 'while [ "$1" != --output ]; do shift; done; echo "main;work 3" > "$2"')
    words = profile_words(tmp_path, fake, monkeypatch)
    result = invoke(*words)
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["runs"]) == 1  # the one that was profiled does not count
    assert "flame graphs" in result.stderr
    names = sorted(path.name for path in (tmp_path / "profile").iterdir())
    assert names == ["client-1.svg", "client-1.txt", "org-1-1.svg", "org-1-1.txt"]
    assert "100.0%  work" in (tmp_path / "profile" / "client-1.txt").read_text()


@pytest.mark.long
def test_a_profiler_that_may_not_look_into_processes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = profiler(tmp_path, "echo Permission denied >&2; exit 1")
    result = invoke(*profile_words(tmp_path, fake, monkeypatch))
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "py-spy could not look into" in result.stderr
    assert "Permission denied" in result.stderr
    assert "ptrace_scope" in result.stderr


def profile_words(tmp_path: Path, fake: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(profile, "find_profiler", lambda: fake)
    return [*TINY, "--solo", "--profile", str(tmp_path / "profile"), "--json"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_measurement_that_is_interrupted_leaves_no_process_and_no_folder(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = start("bench", "pub", "--seconds", "600", home=tmp_path)
    pids = started(tmp_path)
    command.send_signal(number)
    command.communicate(timeout=SECONDS)
    assert command.returncode == 130
    assert not any(is_alive(pid) for pid in pids)
    assert list(tmp_path.glob("parley-bench-*")) == []


def started(home: Path) -> list[int]:
    """The ids of four brokers and of the load process, once they have been started."""
    deadline = time.monotonic() + SECONDS
    while not (log := list(home.glob("parley-bench-*/run-1/client-1.log"))):
        assert time.monotonic() < deadline, "no load process was started"
        time.sleep(0.05)
    brokers = [int(path.read_text()) for path in log[0].parent.glob("brokers/*/pid")]
    loads: list[int] = []
    while not loads:
        assert time.monotonic() < deadline, "the load process is not to be seen"
        loads = [pid for pid in descendants(home) if pid not in brokers]
    return [*brokers, *loads]


def descendants(home: Path) -> list[int]:
    """Load processes that write into this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, errors = (process / "cmdline").read_bytes(), str((process / "fd" / "2").readlink())
        except OSError:
            continue
        if b"parley.bench.load" in command and errors.startswith(str(home)):
            found.append(int(process.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
