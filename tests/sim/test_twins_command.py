"""`parley sim twins`: the same for people and for scripts."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parley.cli import sim, sim_twins
from parley.cli.output import ExitCode
from parley.sim.twins import campaign
from parley.sim.twins.executor import Outcome, Verdict
from parley.sim.twins.generator import Shape, sample
from parley.sim.twins.mutants import Mutant
from parley.sim.twins.scenario import save

runner = CliRunner()
LONG = bool(os.environ.get("PARLEY_LONG"))
KEPT = Path(campaign.__file__).parent / "regressions"
FIVE = ["parent-only-commit", "fast-hotstuff-v1", "no-persistence", "duplicate-signers", "two-twins-of-four"]


def invoke(*words: str) -> tuple[int, str, str]:
    result = runner.invoke(sim.app, ["twins", *words])
    return result.exit_code, result.stdout, result.stderr


def test_a_campaign_as_json() -> None:
    code, out, err = invoke("--scenarios", "30", "--seed", "7", "--chain", "3", "--jobs", "1", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert (result["scenarios"], result["safety_failures"], result["liveness_failures"]) == (30, 0, 0)
    assert result["seconds"] > 0
    assert sum(result["recovery_views"].values()) == 30
    assert set(result["regressions"].values()) == {"holds"}


def test_a_campaign_in_words() -> None:
    code, out, _ = invoke("--scenarios", "10", "--jobs", "1", "--nodes", "7")
    assert code == 0
    assert "10 scenarios: 7 members, 2 with a twin" in out
    assert "safety     no failures" in out


def test_shards_share_a_campaign_out() -> None:
    sizes = []
    for shard in ("0/3", "1/3", "2/3"):
        _, out, _ = invoke("--scenarios", "10", "--jobs", "1", "--shard", shard, "--json")
        sizes.append(json.loads(out)["scenarios"])
    assert sizes == [4, 3, 3]


def test_an_exhaustive_campaign_has_no_seed() -> None:
    code, out, _ = invoke("--exhaustive", "--views", "1", "--jobs", "1", "--json")
    result = json.loads(out)
    assert (code, result["seed"], result["views"]) == (0, None, 1)
    assert result["scenarios"] == campaign.Campaign(Shape(views=1)).size()


def test_the_five_mutants_are_listed() -> None:
    code, out, _ = invoke("--mutants", "--json")
    assert (code, json.loads(out)["mutants"]) == (0, FIVE)
    _, words, _ = invoke("--mutants")
    assert all(name in words for name in FIVE)


# All five are also caught without the command, in test_twins.
@pytest.mark.parametrize("mutant", FIVE if LONG else ["no-persistence", "two-twins-of-four"])
def test_a_mutant_is_caught_and_the_output_names_by_what(mutant: str) -> None:
    code, out, _ = invoke("--mutant", mutant, "--seed", "7", "--jobs", "1", "--json")
    result = json.loads(out)
    assert (code, result["caught"]) == (0, True)
    assert any(by.startswith("sampled scenario") for by in result["by"])
    assert any(by.startswith("kept scenario") for by in result["by"])
    assert result["smallest"]["trace"]


def test_a_mutant_that_breaks_nothing_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mutant, "applied", lambda _mutant: nullcontext())
    code, out, _ = invoke("--mutant", "parent-only-commit", "--scenarios", "5", "--jobs", "1")
    assert (code, "NOT CAUGHT" in out) == (ExitCode.DOES_NOT_HOLD, True)


def test_a_failure_is_shrunk_saved_and_replayed(tmp_path: Path) -> None:
    """Two twins of four are beyond f, so there is something to find."""
    words = ("--twins", "2", "--scenarios", "20", "--seed", "7", "--jobs", "1", "--save", str(tmp_path))
    code, out, _ = invoke(*words)
    assert code == ExitCode.DOES_NOT_HOLD
    assert "safety FAILS" in out
    saved = sorted(tmp_path.iterdir())
    assert saved
    assert f"--replay {saved[0]}" in out
    code, out, _ = invoke("--replay", str(saved[0]), "--json")
    assert (code, json.loads(out)["verdict"]) == (ExitCode.DOES_NOT_HOLD, "safety")


def test_a_kept_scenario_is_replayed_with_and_without_its_mutant() -> None:
    kept = str(KEPT / "relab-249-fork.json")
    code, out, _ = invoke("--replay", kept)
    assert (code, "holds" in out) == (0, True)
    assert "saved for --mutant parent-only-commit" in out
    code, out, _ = invoke("--replay", kept, "--mutant", "parent-only-commit")
    assert code == ExitCode.DOES_NOT_HOLD
    assert "D committed 1A and B committed 2A' at height 1" in out


def test_a_broken_kept_scenario_ends_a_campaign_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_twins, "execute", lambda _scenario: Outcome(Verdict.LIVENESS))
    code, out, _ = invoke("--scenarios", "1", "--jobs", "1")
    assert (code, "broken: " in out) == (ExitCode.DOES_NOT_HOLD, True)


def test_a_chart_is_written(tmp_path: Path) -> None:
    chart = tmp_path / "twins.png"
    code, _, _ = invoke("--scenarios", "3", "--jobs", "1", "--plot", str(chart))
    assert (code, chart.read_bytes()[:4]) == (0, b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--mutant", "nonsense"), "choose from parent-only-commit"),
        (("--shard", "4/4"), "0 to N-1"),
        (("--shard", "x"), "for example 0/4"),
        (("--twins", "4"), "at most 3 can run twice"),
        (("--nodes", "1"), "--nodes"),
        (("--plot", "twins.pdf"), "PNG"),
    ],
)
def test_wrong_use_is_explained(words: tuple[str, ...], hint: str) -> None:
    code, _, err = invoke(*words)
    assert code == ExitCode.WRONG_USE
    assert hint in " ".join(err.replace("│", " ").split())


def test_a_file_that_is_no_scenario_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    code, _, err = invoke("--replay", str(path))
    assert (code, "is no Twins scenario" in err) == (ExitCode.WRONG_USE, True)


def test_a_missing_file_is_an_error_of_use(tmp_path: Path) -> None:
    save(tmp_path / "there.json", sample(Shape(), 0, 0))
    assert invoke("--replay", str(tmp_path / "there.json"))[0] == 0
    assert isinstance(
        runner.invoke(sim.app, ["twins", "--replay", str(tmp_path / "not.json")]).exception, OSError
    )
