"""Execution takes simulated time: what it costs, and that a replica handles nothing else meanwhile."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.sim.test_checkers import GENESIS
from tests.sim.test_world import SCRIPT, TIMER, started, world_of

from parley.consensus.types import Block
from parley.replica.ports import Effect, Send, SetTimer, Timer
from parley.sim.charge import Charged, Meter, Prices
from parley.sim.pubsub.people import People
from parley.sim.pubsub.setting import SHARD
from parley.sim.world import World
from parley.store.memory import MemoryStore


def block(height: int) -> Block:
    return Block(replace(GENESIS.header, height=height), ())


def charged(prices: Prices) -> tuple[Charged, Meter]:
    meter = Meter()
    return Charged(SHARD.mount(People(1, 4).genesis).machine, prices, meter), meter


def test_what_is_shorter_than_the_clock_can_tell_is_not_lost() -> None:
    meter = Meter()
    meter.charge(1, 1_700)
    assert meter.due() == 1
    meter.charge(2, 400)
    assert (meter.due(), meter.took(1), meter.took(2), meter.took(2)) == (1, 1_700, 400, 0)


def test_a_slower_machine_takes_as_many_times_longer() -> None:
    (fast, its), (slow, theirs) = charged(Prices()), charged(Prices().slower(16))
    assert fast.apply(block(1), [], MemoryStore()) == slow.apply(block(1), [], MemoryStore())
    assert theirs.took(1) == 16 * its.took(1) > 0


def test_what_a_start_loads_into_memory_is_not_the_price_of_a_block() -> None:
    machine, meter = charged(Prices(0, 0, 0, 1, 0, 0, 0))
    state = MemoryStore()
    for height in (1, 2):
        machine.apply(block(height), [], state)
    assert meter.took(1) == 0
    assert meter.took(2) > 0


# -- in the world --------------------------------------------------------------------------------------------------


def executing(world: World, milliseconds: int) -> None:
    """The first replica executes for so long whenever a message comes."""
    running, meter = world.hosts[0].running, world.hosts[0].meter
    assert running is not None
    receive: Callable[..., list[Effect]] = running.participant.receive

    def execute(now: int, sender: int, *messages: bytes) -> list[Effect]:
        meter.charge(1, 1_000 * milliseconds)
        return [*receive(now, sender, *messages), Send(2, b"%d at %d" % (len(messages), now))]

    running.participant.receive = execute  # type: ignore[method-assign]


def test_a_replica_that_executes_is_silent_and_takes_its_inputs_one_after_the_other() -> None:
    world, heard, _ = world_of([])
    executing(started(world), 100)
    for at in (0, 10, 20):
        world.after(at, lambda: world._deliver(0, 1, b"x"))
    world.run(99)
    assert (heard[0], heard[2]) == ([b"x"], [])
    world.run(500)
    assert heard[0] == [b"x"] * 3
    assert heard[2] == [b"1 at 0", b"1 at 100", b"1 at 200"]


def test_timers_wait_for_the_end_of_an_execution_in_their_order() -> None:
    world, heard, _ = world_of([SetTimer(TIMER, 50)])
    executing(started(world), 100)
    fired: list[int] = []
    running = world.hosts[0].running
    assert running is not None
    fire = running.participant.fire

    def noted(now: int, timer: Timer) -> list[Effect]:
        fired.append(now)
        return fire(now, timer)

    running.participant.fire = noted  # type: ignore[method-assign]
    world.after(0, lambda: world._deliver(0, 1, b"x"))
    world.run(300)
    assert fired == [100]
    assert sorted(heard[2]) == [b"1 at 0", b"fired"]


@pytest.mark.parametrize("crashes", [True, False])
def test_a_crash_in_the_middle_of_an_execution_leaves_nothing_of_it(crashes: bool) -> None:
    world, heard, _ = world_of([])
    executing(started(world), 100)
    for at in (0, 10):
        world.after(at, lambda: world._deliver(0, 1, b"x"))
    world.run(50)
    if crashes:
        world.crash(0)
        world.start(0)
    world.run(500)
    assert heard[2] == ([] if crashes else [b"1 at 0", b"1 at 100"])
    assert world.hosts[0].backlog is None


def test_without_a_charge_effects_come_at_once() -> None:
    world, heard, _ = world_of(SCRIPT)
    started(world).run(1)
    assert sorted(heard[1] + heard[2]) == [b"a", b"b", b"c"]
