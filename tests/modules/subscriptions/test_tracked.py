"""However many subscribe: Python's collector of cycles, which holds the loop, finds nothing of it to look at."""

from __future__ import annotations

import gc

import pytest
from tests.application.world import World, actor

from parley.model.expressions import Group, parse_constraint
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX, SubscriptionIndex
from parley.modules.subscriptions.operations import Subscribe

ALICE, BOB = actor("alice"), actor("bob")
CONSTRAINTS = 100


def tracked() -> int:
    # It lets go of tuples and dictionaries that can be part of no cycle, now and then the inner ones first.
    for _ in range(4):
        gc.collect()
    return len(gc.get_objects())


def subscribed(*constraints: str) -> World:
    world = World()
    world.topic("orders")
    for one in (ALICE, BOB):
        world.client(one.name)
        for constraint in constraints:
            world.do(one, Subscribe("orders", constraint))
    return world


@pytest.mark.parametrize(
    "shape",
    [
        "a == {}",
        "kind == 'trade' and symbol in [{}, -1]",
        "symbol == {} and (kind != 'trade' or zone not in ['a', 'b'])",
        "symbol == {} or account == {}",
    ],
)
def test_many_constraints_leave_the_collector_nothing_to_look_at(shape: str) -> None:
    world = subscribed(*(shape.replace("{}", str(number)) for number in range(CONSTRAINTS)))
    before = tracked()
    index = SUBSCRIPTION_INDEX.load(world.store)
    matching = index.of_topic("orders")
    assert matching is not None
    for number in range(CONSTRAINTS):  # evaluated, too: nothing is made only then
        matching.match({"a": number, "kind": "trade", "symbol": number, "account": number, "zone": "c"})
    assert (len(index), len(matching)) == (2 * CONSTRAINTS, CONSTRAINTS)
    assert tracked() - before < CONSTRAINTS / 2


def test_neither_a_subscription_nor_any_part_of_a_constraint_is_tracked() -> None:
    index: SubscriptionIndex = SUBSCRIPTION_INDEX.load(subscribed("a == 1 and b in [1, 2]").store)
    (subscription,) = index.of_client(ALICE.key)
    assert not gc.is_tracked(subscription)
    constraint = parse_constraint("a == 1 and b in [1, 2]")
    assert isinstance(constraint.formula, Group)
    parts = (constraint, constraint.predicate, constraint.formula, *constraint.formula.parts)
    assert not any(map(gc.is_tracked, parts))
