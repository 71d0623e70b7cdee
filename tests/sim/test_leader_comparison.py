"""What each leader scheme is worth under faults, at small sizes; the full size runs in the long suite (R6, R7)."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parley.cli import sim_leaders
from parley.cli.output import ExitCode
from parley.sim.leader_faults import Distances, Fault, Network, Plan
from parley.sim.leaders import VARIANTS, calibrate, compare

runner = CliRunner()
app = typer.Typer()
app.command()(sim_leaders.leaders)

PLAIN = ("round-robin", "cwa", "cwa+")


def invoke(*words: str) -> tuple[int, str, str]:
    result = runner.invoke(app, [*words, "--jobs", "1"])
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


# -- what the schemes are worth --------------------------------------------------------------------------------------


def test_dead_leaders_cost_round_robin_most_of_its_throughput() -> None:
    result = compare(Plan(7, 2, Fault.CRASH, 1, 300), PLAIN)
    assert min(result.ratio["cwa"], result.ratio["cwa+"]) > 2
    assert result.failed_view_share["round-robin"] == pytest.approx(2 / 7, abs=0.01)
    assert max(result.failed_view_share["cwa"], result.failed_view_share["cwa+"]) < 0.1


def test_leaders_that_vote_but_never_propose_are_found_out_by_their_failures() -> None:
    result = compare(Plan(7, 2, Fault.WITHHOLD, 1, 300), ("round-robin", "cwa+"))
    assert result.ratio["cwa+"] > 2
    assert result.failed_view_share["cwa+"] < 0.1


def test_without_faults_no_scheme_costs_more_than_a_tenth_and_cwa_plus_shuts_nobody_out() -> None:
    """R6: cwa elects among the voters of one certificate, so slow members never lead; cwa+ leaves all a chance."""
    result = compare(Plan(7, 2, Fault.NONE, 1, 300), PLAIN)
    assert min(result.ratio.values()) > 0.9
    assert result.ratio["cwa+"] < 1.1
    assert set(result.failed_view_share.values()) == {0}
    assert result.fair_share == 0
    assert result.proposers["cwa"] < result.proposers["cwa+"] == 7


def test_omitted_votes_give_nobody_more_than_a_fair_share() -> None:
    """R7: who leaves the votes of others out of certificates wins nothing by it under cwa+."""
    result = compare(Plan(7, 2, Fault.OMIT, 1, 1_500), ("round-robin", "cwa+"))
    assert result.byzantine_share["round-robin"] == pytest.approx(2 / 7, abs=0.01)
    assert abs(result.byzantine_share["cwa+"] - result.fair_share) < 0.03


@pytest.mark.long
@pytest.mark.parametrize("fault", list(Fault))
def test_the_goals_at_full_size(fault: Fault) -> None:
    """Galaxy's Figs. 8 and 9, R6 and R7: 32 members, 10 of them faulty."""
    result = compare(Plan(32, 10, fault, 0), PLAIN)
    match fault:
        case Fault.CRASH:
            assert min(result.ratio["cwa"], result.ratio["cwa+"]) >= 6
            assert max(result.failed_view_share["cwa"], result.failed_view_share["cwa+"]) <= 0.02
        case Fault.WITHHOLD:
            assert result.ratio["cwa+"] >= 4
            assert result.failed_view_share["cwa+"] <= 0.08
        case Fault.NONE:
            assert all(0.9 <= ratio <= 1.1 for ratio in result.ratio.values())
        case Fault.OMIT:
            assert abs(result.byzantine_share["cwa+"] - result.fair_share) <= 0.03


# -- the experiment --------------------------------------------------------------------------------------------------


def test_a_seed_gives_one_result_in_any_number_of_processes() -> None:
    plan = Plan(4, 1, Fault.CRASH, 5, 30)
    first = compare(plan, PLAIN)
    assert compare(plan, PLAIN) == first
    assert compare(plan, PLAIN, jobs=2) == first
    assert compare(replace(plan, seed=6), PLAIN) != first


def test_all_schemes_meet_the_same_network_and_the_same_faults() -> None:
    plan = Plan(7, 2, Fault.OMIT, 1)
    assert len(plan.members) == len(plan.victims) == 2
    assert not set(plan.members) & set(plan.victims)
    assert Plan(7, 2, Fault.CRASH, 1).members == plan.members
    assert Plan(7, 2, Fault.NONE, 1).members == ()
    assert calibrate(plan) == calibrate(Plan(7, 2, Fault.CRASH, 1))


@pytest.mark.parametrize("network", Network)
def test_distances_are_those_of_the_seed(network: Network) -> None:
    first, again, other = (Distances(network, seed, 32)._distance for seed in (3, 3, 4))
    assert first == again != other
    assert all(first[a][b] == first[b][a] for a in range(32) for b in range(32))


def test_regions_have_neighbours_and_a_wide_area_has_none() -> None:
    near = {
        network: min(d for a, row in enumerate(Distances(network, 1, 32)._distance) for d in row[:a])
        for network in Network
    }
    assert near == {Network.WAN: 40, Network.REGIONS: 5}


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_result_as_json_and_as_a_chart(tmp_path: Path) -> None:
    chart = tmp_path / "chart.png"
    code, out, err = invoke(
        "--nodes", "4", "--blocks", "20", "--schemes", ",".join(VARIANTS), "--json", "--plot", str(chart)
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    for key in ("throughput", "failed_view_share", "byzantine_share", "ratio", "timeouts", "proposers"):
        assert set(result[key]) == set(VARIANTS)
    assert result["view_timeout_ms"] == 15 * result["median_view_ms"]
    assert (result["fault"], result["faulty"], result["fair_share"]) == ("crash", 1, 0.25)
    assert {"blocks", "warm_up", "seed", "seconds", "vote_grace_ms", "faulty_members"} <= set(result)
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_the_result_in_words() -> None:
    code, out, err = invoke("--nodes", "4", "--faulty", "1", "--fault", "none", "--blocks", "20")
    assert code == 0
    assert "--faulty is ignored" in err
    assert "4 members across a wide area, nobody faulty, seed 0, 20 blocks" in out
    assert all(name in out for name in PLAIN)


def test_without_round_robin_there_is_nothing_to_compare_with() -> None:
    words = ("--nodes", "4", "--schemes", "cwa+", "--blocks", "20", "--network", "regions", "--json")
    code, out, _ = invoke(*words)
    assert code == 0
    assert (json.loads(out)["ratio"], json.loads(out)["network"]) == ({}, "regions")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--schemes", "cwa,dice"], "no scheme 'dice'; choose from round-robin, cwa, cwa (grace), cwa+"),
        (["--fault", "sulk"], "'sulk'"),
        (["--nodes", "7", "--faulty", "3"], "7 members bear 2 faulty ones, not"),
        (["--plot", "chart.pdf"], "does not end in .png"),
        (["--plot", "/nowhere/chart.png"], "no folder /nowhere"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], complaint: str) -> None:
    code, out, err = invoke(*words)
    assert (code, out) == (ExitCode.WRONG_USE, "")
    assert complaint in err


def test_a_chart_without_matplotlib_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = invoke("--plot", "chart.png")
    assert (code, out) == (ExitCode.WRONG_USE, "")
    assert 'pip install "parley[bench]"' in err
