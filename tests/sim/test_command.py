"""`parley sim run`: the same for people and for scripts."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from parley.cli import sim
from parley.cli.output import ExitCode
from parley.sim.byzantine import ACTORS
from parley.sim.checkers import Violation
from parley.sim.scenario import run

runner = CliRunner()


def invoke(*words: str) -> tuple[int, str, str]:
    result = runner.invoke(sim.app, words)
    return result.exit_code, result.stdout, result.stderr


def test_one_seed_as_json() -> None:
    code, out, err = invoke("run", "--nodes", "4", "--byzantine", "1", "--seed", "3", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["trace_hash"] == run(4, 1, 3).trace_hash
    assert report["violations"] == []
    assert report["committed"] > 0
    assert {"nodes", "seed", "actors", "views", "refused"} <= set(report)


def test_pubsub_is_mounted_on_demand() -> None:
    code, out, err = invoke("run", "--application", "pubsub", "--nodes", "4", "--seed", "7", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["application"] == "pubsub"
    assert report["trace_hash"] == run(4, 1, 7, application="pubsub").trace_hash
    assert report["receipts"]["Ok"] > 0
    assert report["violations"] == []


def test_one_seed_in_words() -> None:
    code, out, _ = invoke("run", "--nodes", "4", "--byzantine", "1", "--actor", "silent")
    assert code == 0
    assert out.startswith("seed 0: every property holds\n")
    assert "(silent)" in out


def test_several_seeds_are_summed_up_under_the_same_keys() -> None:
    code, out, err = invoke("run", "--nodes", "4", "--byzantine", "1", "--seeds", "2", "--json")
    summary = json.loads(out)
    assert (code, err) == (0, "")
    assert [each["seed"] for each in summary["runs"]] == [0, 1]
    assert summary["committed"] == min(each["committed"] for each in summary["runs"])
    assert {"trace_hash", "committed", "violations", "nodes", "seed", "actors", "views", "refused"} <= set(
        summary
    )
    _, words, _ = invoke("run", "--nodes", "4", "--byzantine", "1", "--seeds", "2")
    assert "seeds 0 to 1: every property holds" in words


def test_processes_that_share_the_seeds_change_nothing() -> None:
    words = ("run", "--nodes", "4", "--byzantine", "1", "--seeds", "2", "--json")
    assert invoke(*words, "--jobs", "2") == invoke(*words)


@pytest.mark.parametrize("seeds", ["1", "2"])
def test_a_violation_ends_with_1_and_is_told(seeds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(run(4, 0, 0), violations=(Violation("agreement", 1234, "two blocks"),))
    monkeypatch.setattr(sim, "play", lambda *_, **__: broken)
    code, out, _ = invoke("run", "--seeds", seeds)
    assert code == ExitCode.DOES_NOT_HOLD
    assert "BROKEN     agreement at 1.234 s: two blocks" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--nodes", "7", "--byzantine", "3"], "7 replicas bear 2, not"),
        (["--nodes", "4", "--byzantine", "4", "--beyond-f"], "must be correct"),
        (["--actor", "nobody"], "no actor 'nobody'"),
        (["--byzantine", "1", "--actor", "silent", "--actor", "crash"], "2 actors are named"),
        (["--chain", "4"], "'--chain'"),
        (["--crypto", "none"], "'none'"),
        (["--expensive"], "add --application pubsub"),
        (["--jobs", "0"], "'--jobs'"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], complaint: str) -> None:
    code, out, err = invoke("run", *words)
    assert (code, out) == (ExitCode.WRONG_USE, "")
    assert complaint in " ".join(err.replace("│", " ").split())


def test_more_liars_than_f_are_allowed_when_asked_for() -> None:
    code, out, _ = invoke(
        "run", "--nodes", "4", "--byzantine", "2", "--beyond-f", "--actor", "silent", "--json"
    )
    assert code in {ExitCode.HOLDS, ExitCode.DOES_NOT_HOLD}
    assert len(json.loads(out)["actors"]) == 2


def test_the_liars_are_listed() -> None:
    _, out, _ = invoke("actors", "--json")
    assert set(json.loads(out)["actors"]) == set(ACTORS)
    _, words, _ = invoke("actors")
    assert all(name in words for name in ACTORS)
