"""Stories too special for chance: long absence, a power cut for all, halves that cannot hear each other."""

import os
from functools import partial
from random import Random

import pytest

from parley.consensus.committee import faults
from parley.sim.faults import Trouble, links_between, stir
from parley.sim.scenario import Simulation

LONG = bool(os.environ.get("PARLEY_LONG"))


def healthy(simulation: Simulation) -> bool:
    simulation.heal()
    simulation.finish()
    return simulation.violations == ()


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("actor", ["lying-sync", "duplicate-signers"])
def test_a_replica_that_was_away_for_long_catches_up(actor: str, depth: int) -> None:
    simulation = Simulation(4, 1, 8, actors=[actor], depth=depth, clients=4, batches=400)
    away = simulation.world.correct[0]
    away.arm(50, downtime=10_000_000)
    simulation.start()
    simulation.world.run(120_000)
    assert not away.up
    assert simulation.world.correct[1].committed > away.committed + 70, "more than one answer can hold"
    assert healthy(simulation), simulation.violations


def test_a_replica_that_hears_nothing_for_long_catches_up() -> None:
    simulation = Simulation(4, 0, 9, batches=400)
    deaf = list(links_between([1, 2, 3], [0]))
    simulation.start()
    simulation.world.network.cut(deaf)
    simulation.world.run(40_000)
    assert simulation.world.hosts[0].committed == 0
    assert simulation.world.hosts[1].committed > 70
    assert healthy(simulation), simulation.violations


@pytest.mark.parametrize("seed", range(5))
def test_power_cuts_for_all_at_once_lose_nothing(seed: int) -> None:
    simulation = Simulation(4, 0, seed, batches=200)
    world = simulation.world
    simulation.start()
    for cut in range(1, 11):
        world.run(cut * 1000)
        for host in world.hosts:
            world.crash(host.index)
        for host in world.hosts:
            world.start(host.index)
    assert simulation.workload.answers.acknowledged > 10
    assert healthy(simulation), simulation.violations


def test_no_half_commits_alone_and_both_go_on_together() -> None:
    simulation = Simulation(4, 0, 11, batches=200)
    world = simulation.world
    simulation.start()
    world.run(3000)
    world.network.cut([*links_between([0, 1], [2, 3]), *links_between([2, 3], [0, 1])])
    world.run(4000)
    before = [host.committed for host in world.hosts]
    world.run(30_000)
    assert [host.committed for host in world.hosts] == before
    assert healthy(simulation), simulation.violations


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_may_crash_at_every_effect_of_its_restart(seed: int) -> None:
    simulation = Simulation(4, 0, seed, batches=200)
    world, host = simulation.world, simulation.world.hosts[seed % 4]
    simulation.start()
    world.run(2000)
    world.crash(host.index)
    for effect in range(12):
        host.arm(effect, downtime=1_000_000)
        world.start(host.index)
        assert world.run(world.now + 20_000, lambda: not host.up)
    assert healthy(simulation), simulation.violations


@pytest.mark.parametrize(("nodes", "depth"), [(1, 2), (4, 2), (4, 3), (7, 2)])
@pytest.mark.parametrize("seed", range(40 if LONG else 2))
def test_power_that_fails_everywhere_again_and_again_costs_nothing_but_time(
    nodes: int, depth: int, seed: int
) -> None:
    chance = Random(seed)
    simulation = Simulation(nodes, faults(nodes), seed, depth=depth, batches=200)
    world, at = simulation.world, 0
    stir(world, seed, Trouble(duration=20_000, crashes=0))
    while (at := at + chance.choice((60, 200, 500, 1000, 2500))) < 20_000:  # none after the faults have ended
        within, downtime = chance.choice((1, 5, 20, 60)), chance.choice((1, 20, 200))
        for host in world.correct:
            world.after(at, partial(host.arm, chance.randrange(within), downtime))
    simulation.start()
    world.run(20_000)
    for host in world.correct:
        if host.up:
            world.crash(host.index)
    assert healthy(simulation), simulation.violations
