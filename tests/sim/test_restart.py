"""Restart anywhere: a recorded run of 30 blocks, crashed at every effect of a replica in turn (T16-T19)."""

import os

import pytest

from parley.sim.host import Host
from parley.sim.scenario import Simulation

REPLICAS = 4
BLOCKS = 30
SHARES = 10  # each test takes every tenth effect, so that they spread over processes
LONG = bool(os.environ.get("PARLEY_LONG"))
CRASHING = range(REPLICAS)
VARIANTS = 5 if LONG else 1  # ways in which the disk may tear
PATIENCE = 60_000


def new_run(variant: int = 0) -> Simulation:
    simulation = Simulation(REPLICAS, 0, 30, clients=3, batches=100)
    for host in simulation.world.hosts:
        host.chance.seed(variant)
    return simulation


def everyone_reaches(simulation: Simulation, height: int) -> bool:
    hosts = simulation.world.hosts
    now = simulation.world.now
    return simulation.world.run(now + PATIENCE, lambda: all(host.committed >= height for host in hosts))


def recorded_effects(replica: int) -> int:
    simulation = new_run()
    simulation.start()
    assert everyone_reaches(simulation, BLOCKS)
    return simulation.world.hosts[replica].executed


def crash_and_go_on(replica: int, index: int, variant: int) -> None:
    simulation = new_run(variant)
    host = simulation.world.hosts[replica]
    host.arm(index, downtime=host.chance.randint(1, 1000))
    simulation.start()
    assert simulation.world.run(PATIENCE, lambda: _is_back(host)), f"no crash at effect {index}"
    assert everyone_reaches(simulation, max(other.committed for other in simulation.world.hosts) + 3)
    # Two different proposals, votes or timeouts for one view would be a violation of "one signature per view".
    assert simulation.violations == (), f"crash of replica {replica} at effect {index}, variant {variant}"


def _is_back(host: Host) -> bool:
    return host.crashes == 1 and host.up


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("replica", CRASHING)
def test_a_replica_may_crash_at_every_effect(replica: int, share: int) -> None:
    effects = recorded_effects(replica)
    assert effects > BLOCKS, "a block is more than one effect"
    for index in range(share, effects, SHARES):
        for variant in range(VARIANTS):
            crash_and_go_on(replica, index, variant)
