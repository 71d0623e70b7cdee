"""Seeds with everything at once: liars, crashes at random effects, loss up to 30 %, partitions. Nothing may break."""

import os

import pytest

from parley.sim.byzantine import ACTORS
from parley.sim.scenario import run

LONG = bool(os.environ.get("PARLEY_LONG"))
SEEDS = range(200 if LONG else 20)
FEW = range(40 if LONG else 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_seven_replicas_bear_two_liars(seed: int) -> None:
    report = run(7, 2, seed)
    assert report.violations == ()
    assert report.crashes > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_seven_replicas_bear_two_liars_with_real_signatures(seed: int) -> None:
    assert run(7, 2, seed, crypto="real").violations == ()


@pytest.mark.parametrize("nodes", [4, 7])
@pytest.mark.parametrize("seed", range(60 if LONG else 6))
def test_commit_depth_three_holds_too(nodes: int, seed: int) -> None:
    report = run(nodes, (nodes - 1) // 3, seed, depth=3)
    assert report.violations == ()
    assert report.depth == 3


@pytest.mark.parametrize("actor", list(ACTORS))
@pytest.mark.parametrize("nodes", [4, 7])
@pytest.mark.parametrize("seed", FEW)
def test_no_liar_breaks_anything(actor: str, nodes: int, seed: int) -> None:
    liars = (nodes - 1) // 3
    report = run(nodes, liars, seed, actors=[actor] * liars)
    assert report.violations == ()
    assert list(report.actors.values()) == [actor] * liars


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 6, 8, 10])
def test_every_size_moves(nodes: int) -> None:
    report = run(nodes, (nodes - 1) // 3, nodes)
    assert report.violations == ()
    assert report.committed > 0
