"""A forked process is one of its own, in the surroundings of the moment, and ends like every other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.node.forked import Forked, run_broker

SECONDS = 60.0


def tell(arguments: list[str]) -> int:
    """Its surroundings, in a file."""
    mask = os.umask(0)
    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGCHLD)]
    facts = {
        "pid": os.getpid(),
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "mask": mask,
        "input": sys.stdin.read(),
        "handlers": [one is signal.SIG_DFL for one in handlers],
    }
    Path(arguments[0]).write_text(json.dumps(facts))
    return 7


def sleep(_arguments: list[str]) -> int:
    time.sleep(600)
    return 0


def test_it_has_an_id_of_its_own_and_the_surroundings_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        for number in range(2):
            monkeypatch.setenv("PARLEY_NUMBER", str(number))
            place = tmp_path / str(number)
            place.mkdir()
            monkeypatch.chdir(place)
            process = Forked(tell, ["facts"])
            assert process.wait(SECONDS) == process.poll() == 7
            facts = json.loads((place / "facts").read_text())
            assert facts.pop("environment") == dict(os.environ)
            handlers = [True, True]
            expected = {"pid": process.pid, "directory": str(place), "mask": 0o027, "input": ""}
            assert facts == {**expected, "handlers": handlers}
            assert process.pid != os.getpid()
    finally:
        os.umask(before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_and_is_its_exit_code(number: signal.Signals) -> None:
    process = Forked(sleep, [])
    other = Forked(sleep, [])
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, number)
    assert process.wait(SECONDS) == -number
    process.send_signal(signal.SIGKILL)  # to nobody
    assert other.poll() is None
    other.kill()
    assert other.wait(SECONDS) == -signal.SIGKILL


def test_a_broker_that_cannot_start_ends_as_its_command_does(tmp_path: Path) -> None:
    assert Forked(run_broker, []).wait(SECONDS) == 2
    assert Forked(run_broker, [str(tmp_path / "none.toml")]).wait(SECONDS) == 2
