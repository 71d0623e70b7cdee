"""The loop executes effects in order, and a crash at effect k cuts exactly there."""

from collections.abc import Callable
from functools import partial

import pytest

from parley.consensus.events import ViewTimer
from parley.consensus.record import SafetyState
from parley.consensus.types import Instance
from parley.replica.beginning import ReplicaConfig, provision
from parley.replica.ports import (
    AdmittedBatch,
    Broadcast,
    Effect,
    Halt,
    Send,
    SetTimer,
    Submission,
    Timer,
    Write,
)
from parley.sim.chance import stream
from parley.sim.counter import Counter
from parley.sim.disk import Disk
from parley.sim.host import Host, Running
from parley.sim.network import Network, Weather
from parley.sim.observations import Failed, Observation, Sent
from parley.sim.world import World
from parley.store.interface import StoreReader

INSTANCE = Instance(bytes(32), 0, 0, 3, 1)
TIMER = ViewTimer(1, 1)


class Scripted:
    """Says the same at every start and timer, and remembers what it hears."""

    view = 0
    committed_height = 0
    executed_height = 0

    def __init__(self, script: list[Effect], heard: list[bytes]) -> None:
        self._script = script
        self._heard = heard

    def start(self, now: int) -> list[Effect]:  # noqa: ARG002
        return self._script

    def receive(self, now: int, sender: int, *messages: bytes) -> list[Effect]:  # noqa: ARG002
        self._heard.extend(messages)
        return []

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:  # noqa: ARG002
        raise RuntimeError("a bad input")

    def fire(self, now: int, timer: Timer) -> list[Effect]:  # noqa: ARG002
        return [Broadcast(b"fired")]

    def connected(self, now: int, member: int, *, up: bool) -> list[Effect]:  # noqa: ARG002
        return []


def new_disk(index: int, *, abstaining: bool = False) -> Disk:
    return Disk(*provision(ReplicaConfig(INSTANCE, index), Counter(), abstaining=abstaining))


def world_of(script: list[Effect]) -> tuple[World, list[list[bytes]], list[Observation]]:
    heard: list[list[bytes]] = [[], [], []]
    seen: list[Observation] = []
    hosts = []
    for index in range(3):
        launch = _launcher(script if index == 0 else [], heard[index])
        hosts.append(Host(index, partial(new_disk, index), launch, stream(1, index), correct=True))
    network = Network(1, 3, Weather(min_latency=1, max_latency=1))
    return World(hosts, network, lambda _, event: seen.append(event)), heard, seen


def _launcher(
    script: list[Effect], heard: list[bytes]
) -> Callable[[tuple[int, SafetyState], StoreReader], Running]:
    return lambda _record, _store: Running(Scripted(script, heard), Counter())


def started(world: World) -> World:
    for host in world.hosts:
        world.start(host.index)
    return world


SCRIPT: list[Effect] = [Send(1, b"a"), Write(((b"k", b"v"),), sync=True), Send(2, b"b"), Send(1, b"c")]


@pytest.mark.parametrize("index", range(5))
def test_a_crash_happens_between_what_was_done_and_what_was_not(index: int) -> None:
    world, heard, _ = world_of(SCRIPT)
    world.hosts[0].arm(index, downtime=1_000_000)
    started(world).run(100)
    sent = [effect.data for effect in SCRIPT[:index] if isinstance(effect, Send)]
    assert sorted(heard[1] + heard[2]) == sent
    assert world.hosts[0].up == (index > 3)
    if index != 1:  # in the middle of the write it may be there or not
        assert (world.hosts[0].disk.get(b"k") is not None) == (index > 1)


def test_a_crashed_broadcast_reaches_some() -> None:
    reached = set()
    for seed in range(30):
        world, heard, seen = world_of([Broadcast(b"x")])
        world.hosts[0].chance.seed(seed)
        world.hosts[0].arm(0, downtime=1_000_000)
        started(world).run(100)
        count = len(heard[1]) + len(heard[2])
        reached.add(count)
        assert any(isinstance(event, Sent) for event in seen) == (count > 0)
    assert reached == {0, 1, 2}


def test_timers_fire_once_and_not_after_a_restart() -> None:
    world, heard, _ = world_of([SetTimer(TIMER, 50)])
    started(world).run(20)
    world.crash(0)
    world.start(0)
    world.run(200)
    assert heard[1] == [b"fired"]


def test_messages_to_a_replica_that_is_down_are_lost() -> None:
    world, heard, _ = world_of([Send(1, b"a")])
    world.start(0)
    world.run(100)
    assert heard[1] == []


def test_an_exception_stops_the_replica_and_is_reported() -> None:
    world, _, seen = world_of([])
    started(world).submit(0, b"a batch")
    assert not world.hosts[0].up
    (failure,) = (event for event in seen if isinstance(event, Failed))
    assert "RuntimeError in submit" in failure.why
    assert "a bad input" in failure.why


def test_a_replica_that_halts_is_reported() -> None:
    world, _, seen = world_of([Halt("broken disk")])
    started(world)
    assert Failed(0, "broken disk") in seen


def test_an_error_of_a_liar_is_an_error_of_the_simulator() -> None:
    world, _, _ = world_of([])
    started(world).hosts[0].correct = False
    with pytest.raises(RuntimeError, match="a bad input"):
        world.submit(0, b"a batch")
