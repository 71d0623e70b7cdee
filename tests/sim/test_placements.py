"""T9: whether consensus commits must not depend on where the crashed members sit."""

import json

import pytest
import typer
from typer.testing import CliRunner

from parley.cli import sim_leaders
from parley.cli.output import ExitCode
from parley.consensus.safety import SafetyRules
from parley.sim.placements import Placements, every, modelled, try_all, without_repair

runner = CliRunner()
app = typer.Typer()
app.command()(sim_leaders.placements)


@pytest.mark.parametrize(("depth", "without"), [(2, 4), (3, 0)])
def test_t9_four_members_commit_in_every_placement_because_votes_are_sent_again(
    depth: int, without: int
) -> None:
    """T9, T15: with one crash among four, depth 3 never commits unless votes are sent again with timeouts."""
    result = try_all(4, depth)
    assert (result.placements, result.with_repair, result.without_repair) == (4, 4, without)
    assert len(result.stuck_without_repair) == 4 - without


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "depth", "stuck", "placements"),
    [(7, 2, 0, 21), (7, 3, 7, 21), (10, 2, 0, 120), (10, 3, 20, 120)],
)
def test_t9_counts_of_larger_committees(nodes: int, depth: int, stuck: int, placements: int) -> None:
    """T9: the counts of the model, found with real machines."""
    result = try_all(nodes, depth)
    assert (result.placements, result.stuck_with_repair) == (placements, ())
    assert len(result.stuck_without_repair) == stuck
    assert result.without_repair == modelled(nodes, depth)


@pytest.mark.parametrize(
    ("nodes", "depth", "stuck"), [(4, 2, 0), (4, 3, 4), (7, 2, 0), (7, 3, 7), (10, 2, 0), (10, 3, 20)]
)
def test_t9_model(nodes: int, depth: int, stuck: int) -> None:
    assert len(every(nodes)) - modelled(nodes, depth) == stuck


def test_the_rules_are_whole_again_after_the_experiment() -> None:
    before = SafetyRules.timeout
    with without_repair():
        assert SafetyRules.timeout is not before
    assert SafetyRules.timeout is before


def test_the_command_for_scripts_and_for_people() -> None:
    result = runner.invoke(app, ["--nodes", "4", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["nodes"], report["chain"], report["placements"]) == (4, 3, 4)
    assert (report["with_repair"], report["without_repair"]) == (4, 0)
    assert report["stuck_without_repair"] == [[0], [1], [2], [3]]
    words = runner.invoke(app, []).stdout
    assert "4 members, 1 crashed, round-robin, commit depth 3" in words
    assert "0/4" in words


def test_a_placement_that_does_not_commit_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Placements(4, 3, 4, 3, 0, ((2,),), ((0,), (1,), (2,), (3,)))
    monkeypatch.setattr(sim_leaders, "try_all", lambda *_: broken)
    assert runner.invoke(app, []).exit_code == ExitCode.DOES_NOT_HOLD
