"""Whole networks under each leader scheme: liars, crashes, restarts and catching up, and everybody knows who leads."""

import os

import pytest

from parley.cli.sim import Leaders
from parley.consensus.leader import cwa_plus
from parley.consensus.leader.schemes import SCHEMES
from parley.sim.faults import Trouble
from parley.sim.scenario import Simulation, run

SEEDS = range(60 if os.environ.get("PARLEY_LONG") else 2)


@pytest.mark.parametrize("leaders", ["cwa", "cwa+"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_breaks_whoever_is_elected(leaders: str, seed: int) -> None:
    report = run(7, 2, seed, leaders=leaders)
    assert report.violations == ()
    assert report.leaders == leaders
    assert report.crashes > 0
    assert report.trace_hash != run(7, 2, seed).trace_hash


@pytest.mark.parametrize("leaders", ["cwa", "cwa+"])
@pytest.mark.parametrize("nodes", [1, 4, 10])
def test_every_size_moves(leaders: str, nodes: int) -> None:
    report = run(nodes, (nodes - 1) // 3, 9, depth=3, leaders=leaders)
    assert report.violations == ()
    assert report.committed > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_records_start_anew_while_replicas_crash(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cwa_plus, "PERIOD", 16)
    report = run(4, 1, seed, leaders="cwa+", trouble=Trouble(duration=120_000))
    assert report.violations == ()
    assert report.committed > 16 * 4


def test_a_replica_restarts_behind_its_own_chain() -> None:
    """In this run a vote is sent again for a block that has been committed since: no leader can be told below the root."""
    assert run(7, 2, 10, leaders="cwa").violations == ()


@pytest.mark.parametrize("nodes", [4, 7])
@pytest.mark.parametrize(
    ("leaders", "depth"), [("round-robin", 2), ("round-robin", 3), ("cwa", 2), ("cwa+", 2), ("cwa+", 3)]
)
def test_collectors_that_keep_the_votes_stop_nobody(nodes: int, leaders: str, depth: int) -> None:
    """T9, T15: f of them, who also help every view to end before the votes in the others' timeouts are heard."""
    liars = (nodes - 1) // 3
    simulation = Simulation(nodes, liars, 7, leaders=leaders, depth=depth, actors=["hoarder"] * liars)
    simulation.start()
    simulation.world.run(30_000)
    assert min(host.committed for host in simulation.world.correct) > 50
    assert simulation.violations == ()


def test_the_command_knows_every_scheme() -> None:
    assert [leaders.value for leaders in Leaders] == list(SCHEMES)
