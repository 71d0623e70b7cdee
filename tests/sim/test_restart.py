"""Restart anywhere: a recorded run of 30 blocks, crashed at every effect of a replica in turn (T16-T19)."""

import os

import pytest

from parley.sim.host import Host
from parley.sim.scenario import Simulation

REPLICAS = 4
BLOCKS = 30
SHARES = 10  # each test takes every tenth effect, so that they spread over processes
LONG = bool(os.environ.get("PARLEY_LONG"))
CRASHING = range(REPLICAS if LONG else 1)  # they differ only in when they lead
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


def crash_twice(first: int, second: int, variant: int) -> None:
    """The power fails, comes back, and fails again while the replica is starting or has just started."""
    simulation = new_run(variant)
    world, host = simulation.world, simulation.world.hosts[0]
    host.arm(first, downtime=100)
    simulation.start()
    assert world.run(PATIENCE, lambda: host.crashes == 1)
    host.arm(second, downtime=100)
    assert world.run(world.now + PATIENCE, lambda: host.crashes == 2 and host.up)
    assert everyone_reaches(simulation, max(other.committed for other in world.hosts) + 3)
    assert simulation.violations == (), (
        f"crashes at effects {first} and {second} after that, variant {variant}"
    )


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


@pytest.mark.parametrize("share", range(SHARES))
def test_a_replica_may_crash_again_soon_after_a_crash(share: int) -> None:
    """A safety record half written, then another half written over it, once stopped a replica for good."""
    effects = recorded_effects(0)
    step = 1 if LONG else 20
    for first in range(share, effects, step * SHARES):
        for second in range(16 if LONG else 8):
            crash_twice(first, second, variant=first + second)
