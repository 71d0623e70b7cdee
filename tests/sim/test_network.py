"""Links lose, repeat, delay and are cut, each in one direction."""

from parley.sim.clock import Clock
from parley.sim.network import Network, Weather

CALM = Weather(min_latency=5, max_latency=5)


def test_a_calm_link_delivers_once_within_its_latency() -> None:
    network = Network(1, 2, Weather(min_latency=3, max_latency=9))
    delays = [network.delays(0, 1) for _ in range(200)]
    assert all(len(delay) == 1 for delay in delays)
    assert {delay[0] for delay in delays} == set(range(3, 10))


def test_a_cut_has_a_direction_and_cuts_add_up() -> None:
    network = Network(1, 2, CALM)
    network.cut([(0, 1)])
    network.cut([(0, 1)])
    assert (network.delays(0, 1), network.delays(1, 0)) == ((), (5,))
    network.mend([(0, 1)])
    assert network.delays(0, 1) == ()
    network.mend([(0, 1)])
    assert network.delays(0, 1) == (5,)
    assert (network.sent, network.lost) == (4, 2)


def test_healing_mends_every_cut_for_good() -> None:
    network = Network(1, 3, Weather(loss=1.0))
    network.cut([(0, 1), (1, 0)])
    network.heal()
    network.mend([(0, 1), (1, 0)])
    assert all(network.delays(a, b) for a in range(3) for b in range(3))


def test_loss_and_duplication_come_as_often_as_the_weather_says() -> None:
    network = Network(1, 2, Weather(loss=0.3, duplication=0.5))
    arrivals = [len(network.delays(0, 1)) for _ in range(4000)]
    assert 0.27 < arrivals.count(0) / 4000 < 0.33
    assert 0.31 < arrivals.count(2) / 4000 < 0.39


def test_stragglers_are_overtaken() -> None:
    network = Network(1, 2, Weather(max_latency=10, straggling=0.2, straggle=1000))
    delays = [network.delays(0, 1)[0] for _ in range(500)]
    assert any(delay > 500 for delay in delays)
    assert sum(delay > 10 for delay in delays) < 200


def test_a_link_does_not_change_when_another_is_used_more() -> None:
    quiet, busy = Network(7, 3), Network(7, 3)
    for _ in range(10):
        busy.delays(0, 2)
    assert [quiet.delays(0, 1) for _ in range(50)] == [busy.delays(0, 1) for _ in range(50)]


def test_the_clock_keeps_the_order_of_events_of_one_time() -> None:
    clock: Clock[str] = Clock()
    for delay, event in ((5, "c"), (3, "a"), (5, "d"), (3, "b")):
        clock.schedule(delay, event)
    assert [clock.next(10) for _ in range(5)] == ["a", "b", "c", "d", None]
    assert clock.now == 10


def test_the_clock_does_not_pass_events_that_are_due_later() -> None:
    clock: Clock[str] = Clock()
    clock.schedule(20, "later")
    assert (clock.next(10), clock.now) == (None, 10)
    assert (clock.next(20), clock.now) == ("later", 20)
