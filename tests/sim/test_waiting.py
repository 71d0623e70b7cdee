"""What one cut link, a gap in a client's sequence or a batch kept from the leader may not cost: a view (P29)."""

from itertools import combinations

import pytest

from parley.consensus.committee import faults
from parley.sim import scenario
from parley.sim.counter import encode_batch
from parley.sim.scenario import Simulation

SECONDS = 1_000


def idle(nodes: int = 4, leaders: str = "round-robin") -> Simulation:
    """A network without clients, which has run for a while."""
    simulation = Simulation(nodes, 0, 1, leaders=leaders, clients=0)
    simulation.start()
    simulation.world.run(10 * SECONDS)
    return simulation


@pytest.mark.parametrize("ends", list(combinations(range(3), 2)))
@pytest.mark.parametrize(
    ("nodes", "leaders"), [(4, "round-robin"), (4, "cwa+"), (7, "round-robin"), (7, "cwa+")]
)
@pytest.mark.parametrize("batches", [0, 1_000])
def test_one_cut_link_and_hasty_liars_do_not_fail_the_views_of_honest_leaders(
    nodes: int, leaders: str, batches: int, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does cwa+ charge them. What one end of the link should collect comes to it through the others."""
    monkeypatch.setattr(scenario, "SHORTEST_TIMEOUT", 320)
    monkeypatch.setattr(scenario, "VIEW_TIMEOUT", 2_000)
    liars = faults(nodes)
    simulation = Simulation(nodes, liars, 3, actors=["hasty"] * liars, leaders=leaders, batches=batches)
    world = simulation.world
    one, other = (world.correct[end].index for end in ends)
    simulation.start()
    world.network.cut([(one, other), (other, one)])
    world.run(5 * SECONDS)  # it is noticed
    world.failed_views.clear()
    world.run(30 * SECONDS)
    assert world.hosts[one].committed > 80
    assert not world.failed_views


@pytest.mark.parametrize("unheard", [(0, 1), (0, 2), (1, 0)])
@pytest.mark.parametrize("leaders", ["round-robin", "cwa+"])
@pytest.mark.parametrize("batches", [0, 1_000])
def test_a_member_to_whom_one_other_no_longer_listens_costs_no_view(
    unheard: tuple[int, int], leaders: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers do for half a minute with one that has sent garbage."""
    monkeypatch.setattr(scenario, "SHORTEST_TIMEOUT", 320)
    monkeypatch.setattr(scenario, "VIEW_TIMEOUT", 2_000)
    simulation = Simulation(4, 0, 3, leaders=leaders, batches=batches)
    world = simulation.world
    simulation.start()
    world.network.cut([unheard])
    world.run(5 * SECONDS)  # it is noticed
    world.failed_views.clear()
    world.run(30 * SECONDS)
    assert world.hosts[0].committed > 80
    assert not world.failed_views


@pytest.mark.parametrize(("nodes", "leaders"), [(4, "round-robin"), (4, "cwa+"), (7, "cwa+")])
@pytest.mark.parametrize("every", [500, 1_500])
def test_a_gap_in_a_clients_sequence_causes_no_view_changes(
    nodes: int, leaders: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if the client sends it to f+1 brokers again and again, which then try it sooner than the others."""
    monkeypatch.setattr(scenario, "SHORTEST_TIMEOUT", 320)
    monkeypatch.setattr(scenario, "VIEW_TIMEOUT", 2_000)
    monkeypatch.setattr(scenario, "HEARTBEAT", 1_000)
    simulation = idle(nodes, leaders)
    world, end = simulation.world, simulation.world.now + 60 * SECONDS
    while world.now < end:
        for replica in range(0, 2 * (faults(nodes) + 1), 2):
            for sequence in (5, 6):
                world.submit(replica, encode_batch(1, sequence, b"too early"))
        world.run(world.now + every)
    assert not world.failed_views


@pytest.mark.parametrize("leader", range(4))
def test_a_batch_kept_from_the_leader_costs_no_view(leader: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others offer it to the leader before they give up, and it proposes it long before its heartbeat."""
    monkeypatch.setattr(scenario, "HEARTBEAT", 5 * SECONDS)
    simulation = idle()
    world = simulation.world
    assert world.run(100 * SECONDS, lambda: all(host.view % 4 == leader for host in world.hosts))
    view, entry = world.hosts[0].view, (leader + 1) % 4
    world.network.cut([(entry, leader)])
    world.submit(entry, encode_batch(1, 0, b"kept from the leader"))
    world.network.mend([(entry, leader)])
    began = world.now
    assert world.run(began + 5 * SECONDS, lambda: all(host.view > view for host in world.hosts))
    assert world.now - began < SECONDS, "it did not wait for the heartbeat"
    world.run(world.now + 30 * SECONDS)
    assert not world.failed_views
