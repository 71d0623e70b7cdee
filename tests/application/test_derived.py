"""What is kept in memory between blocks follows from the state alone: it can be made again at any time (T24)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.application.histories import LEASE, History
from tests.application.world import World, actor, mount, tagged

from parley.application.block import Derived
from parley.applications import DATA_SHARD
from parley.modules.retention.deadlines import DEADLINES, Deadlines
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX, SubscriptionIndex
from parley.modules.subscriptions.operations import Subscribe

ALICE = actor("alice")


def rebuilt(world: World) -> dict[Derived[Any], Any]:
    return {one: one.load(world.store) for one in DATA_SHARD.derived}


def kept(world: World) -> dict[Derived[Any], Any]:
    assert world.machine.derived is not None
    return world.machine.derived


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), restarts=st.sets(st.integers(2, 29), max_size=3))
def test_after_every_block_it_equals_what_is_made_of_the_store(seed: int, restarts: set[int]) -> None:
    history = History(seed)
    world = history.world
    for batches, time in history.blocks(30):
        world.apply(*batches, time=time)
        assert kept(world) == rebuilt(world)
        for table, first in world.machine._first_keys.known.items():
            assert first == min((table.key(*key) for key in world.table(table)), default=None)
        if world.height in restarts:
            world.machine, world.keeper = mount(world.genesis)
            assert world.machine.derived is None
    for _ in range(4):  # until no lease and no retention is left that could end
        world.apply(time=world.time + 2 * LEASE)
        assert kept(world) == rebuilt(world)


def end(index: SubscriptionIndex) -> None:
    (subscription,) = index.of_client(ALICE.key)
    index.leave(subscription, last=True)


def renew(index: SubscriptionIndex) -> None:
    (subscription,) = index.of_client(ALICE.key)
    index.join(subscription, 2**60)


def begin(index: SubscriptionIndex) -> None:
    (subscription,) = index.of_client(ALICE.key)
    index.join(replace(subscription, client=actor("bob").key), 2**60)


def guard_otherwise(index: SubscriptionIndex) -> None:
    matching = index.of_topic("orders")
    assert matching is not None
    (constraint,) = matching._constraints.values()
    matching.remove(constraint.id)
    matching.add(constraint, None)


def open_later(index: SubscriptionIndex) -> None:
    matching = index.of_topic("orders")
    assert matching is not None
    (constraint,) = matching._constraints.values()
    guard = matching._guards[constraint.id]
    matching.remove(constraint.id)
    matching.add(constraint, guard, 7)


@pytest.mark.parametrize("change", [end, renew, begin, guard_otherwise, open_later])
def test_subscriptions_that_differ_are_not_equal(change: Callable[[SubscriptionIndex], None]) -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    world.do(ALICE, Subscribe("orders", "a = 1"))
    change(kept(world)[SUBSCRIPTION_INDEX])
    assert kept(world) != rebuilt(world)
    assert kept(world)[SUBSCRIPTION_INDEX] != "something else"


def another_time(deadlines: Deadlines) -> None:
    deadlines.set(("orders", 0), 7)


def none(deadlines: Deadlines) -> None:
    deadlines.remove(("orders", 0))


def another_log(deadlines: Deadlines) -> None:
    deadlines.set(("orders", 1), 7)


@pytest.mark.parametrize("change", [another_time, none, another_log])
def test_deadlines_that_differ_are_not_equal(change: Callable[[Deadlines], None]) -> None:
    world = World()
    world.topic("orders", partitions=2, retention=1_000)
    world.client("alice")
    world.publish(ALICE, "orders", tagged(a=1))
    change(kept(world)[DEADLINES])
    assert kept(world) != rebuilt(world)
    assert kept(world)[DEADLINES] != "something else"


def test_the_way_to_a_state_makes_no_difference() -> None:
    """What was set and left behind on the way is not compared."""
    one, other = Deadlines(), Deadlines()
    for time in (5, 9, 3):
        one.set(("orders", 0), time)
        one.set(("orders", 1), time)
    one.remove(("orders", 1))
    other.set(("orders", 0), 3)
    assert one == other


def test_every_module_that_keeps_something_is_looked_at() -> None:
    assert set(DATA_SHARD.derived) == {SUBSCRIPTION_INDEX, DEADLINES}
