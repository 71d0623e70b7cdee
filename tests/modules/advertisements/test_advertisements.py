"""Advertisements: whoever may publish on a topic may say so, and they go with their topic and their client."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN, World, actor, closings

from parley.application.quotas import HELD
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.refusals import OK, LimitExceeded, PermissionDenied, UnknownClient
from parley.modules.advertisements import rules as advertisements
from parley.modules.advertisements.operations import Advertise
from parley.modules.advertisements.tables import ADVERTISEMENTS, ADVERTISERS, AdvertisementRecord
from parley.modules.registry.operations import RevokeClient
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.subscriptions.tables import CONSTRAINTS, ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import AlterTopic, DeleteTopic
from parley.modules.topics.refusals import UnknownTopic
from parley.modules.topics.tables import ENDING

ALICE, BOB = actor("alice"), actor("bob")


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice", role="nurse")
    world.client("bob")
    return world


def test_publishers_advertise_and_withdraw(world: World) -> None:
    assert world.do(ALICE, Advertise("orders", "beds")).code == OK
    assert world.do(ALICE, Advertise("orders", "spare beds")).code == OK
    assert world.record(ADVERTISEMENTS, "orders", ALICE.key) == AdvertisementRecord(
        "hospital-a/alice", "spare beds"
    )
    for _ in range(2):
        assert world.do(ALICE, Advertise("orders", "")).code == OK
        assert world.record(ADVERTISEMENTS, "orders", ALICE.key) is None
    assert not world.table(ADVERTISERS)


def test_advertising_needs_the_right_to_publish(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", None, None, 'role == "nurse"', None))
    assert world.do(BOB, Advertise("orders", "beds")).code == PermissionDenied.code
    assert world.do(ALICE, Advertise("nothing", "beds")).code == UnknownTopic.code
    assert world.do(ADMIN, Advertise("orders", "beds")).code == UnknownClient.code


def test_whoever_lost_the_right_may_still_withdraw(world: World) -> None:
    world.do(BOB, Advertise("orders", "beds"))
    world.do(ADMIN, AlterTopic("orders", None, None, "false", None))
    assert world.do(BOB, Advertise("orders", "")).code == OK
    assert not world.table(ADVERTISEMENTS)


def test_a_client_advertises_on_a_limited_number_of_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertisements, "MAX_ADVERTISED", 2)
    for name in ("one", "two"):
        world.topic(name)
        assert world.do(ALICE, Advertise(name, "beds")).code == OK
    assert world.do(ALICE, Advertise("orders", "beds")).code == LimitExceeded.code
    assert world.do(ALICE, Advertise("one", "more beds")).code == OK
    world.do(ALICE, Advertise("one", ""))
    assert world.do(ALICE, Advertise("orders", "beds")).code == OK


def test_advertisements_go_with_their_topic_and_with_their_client(world: World) -> None:
    world.topic("notes")
    for client in (ALICE, BOB):
        for name in ("orders", "notes"):
            world.do(client, Advertise(name, "beds"))
    world.do(ADMIN, RevokeClient("alice"))
    world.wait(1)
    assert set(world.table(ADVERTISEMENTS)) == {(name, BOB.key) for name in ("orders", "notes")}
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    assert set(world.table(ADVERTISEMENTS)) == {("notes", BOB.key)}
    world.do(ADMIN, DeleteTopic("notes"))
    world.wait(1)
    assert not world.table(ADVERTISERS)


def test_those_of_a_deleted_topic_go_over_several_blocks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=3))  # one for the height
    for name in ("carol", "dave", "erin"):
        world.do(world.client(name), Advertise("orders", "beds"))
    world.do(ADMIN, DeleteTopic("orders"))
    left = []
    while world.table(ENDING):
        world.wait(1)
        left.append(len(world.table(ADVERTISEMENTS)))
    assert left == [1, 0]
    assert not world.table(ADVERTISERS)
    assert world.rebuilt_root() == world.root


def test_they_take_their_part_of_what_a_block_may_clear_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One for the height, five for a subscription.
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=11))
    world.topic("other")
    for i in range(3):
        world.do(ALICE, Subscribe("orders", f"a = {i}"))
    world.do(ALICE, Subscribe("other", ""))
    world.do(ALICE, Advertise("orders", "beds"))
    world.apply(world.control(ADMIN, DeleteTopic("orders")), world.control(ADMIN, DeleteTopic("other")))
    ended = [len(closings(world.apply())) for _ in range(3)]
    assert ended == [4, 3, 0]  # in two blocks, with the advertisement; then the other topic
    for table in (SUBSCRIPTIONS, ORDER_HEADS, ADVERTISEMENTS, ADVERTISERS, CONSTRAINTS, ENDING):
        assert not world.entries(table.prefix())
    assert not world.entries(HELD.prefix("subscriptions"))
    assert world.rebuilt_root() == world.root
