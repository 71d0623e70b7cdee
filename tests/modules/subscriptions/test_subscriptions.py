"""Subscriptions and the orders of P6: gap-free, shared by whoever asks for the same, closed with a certified end."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN, START, World, actor, closings, matches, tagged

from parley.application.quotas import HELD
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.expressions import parse_constraint
from parley.model.genesis import Limits, Timeouts
from parley.model.names import Position
from parley.model.receipts import BatchReceipt
from parley.model.refusals import OK, LimitExceeded, PermissionDenied, Revoked
from parley.modules.registry.operations import AlterClient, RevokeClient
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Closed, Match, PartitionStart, Subscribed
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.subscriptions.tables import (
    CONSTRAINTS,
    ORDER_HEADS,
    SUBSCRIPTIONS,
    OrderHead,
    SubscriptionRecord,
)
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.refusals import UnknownTopic

ALICE, BOB = actor("alice"), actor("bob")
A = parse_constraint("a = 1").id


@pytest.fixture
def world() -> World:
    world = World(timeouts=Timeouts(lease=1_000))
    world.topic("orders")
    world.client("alice", role="nurse")
    world.client("bob")
    return world


def subscribed(receipt: BatchReceipt) -> Subscribed:
    outcome = receipt.given(Subscribed)
    assert outcome is not None
    return outcome


def head(world: World, constraint: bytes = A, partition: int = 0) -> OrderHead | None:
    return world.record(ORDER_HEADS, "orders", partition, constraint)


def test_the_receipt_says_where_the_order_begins(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", 2, None, None, None))
    world.publish(ALICE, "orders", tagged(a=1), tagged())
    receipt = subscribed(world.do(ALICE, Subscribe("orders", "a = 1")))
    incarnation = (world.height, 0)
    assert receipt == Subscribed(
        A,
        (PartitionStart(0, incarnation, 0, 2), PartitionStart(1, incarnation, 0, 0)),
        world.time + 1_000,
    )
    assert head(world) == OrderHead("a == 1", incarnation, 0)


def test_an_incarnation_is_the_place_of_the_first_subscriptions_receipt(world: World) -> None:
    world.order(
        world.publication(BOB, "orders"),
        world.control(BOB, Unsubscribe("orders", "a = 1")),
        world.control(ALICE, Subscribe("orders", "a = 1")),
    )
    record = head(world)
    assert record is not None
    assert record.incarnation == (world.height, 2)


def test_spellings_of_one_constraint_share_one_order(world: World) -> None:
    first = subscribed(world.do(ALICE, Subscribe("orders", "a = 1 and b != 'x'")))
    world.publish(BOB, "orders", tagged(a=1))
    second = subscribed(world.do(BOB, Subscribe("orders", 'not (b == "x" || !(a == 1))')))
    assert first.constraint == second.constraint
    (start,) = second.partitions
    assert start == PartitionStart(0, first.partitions[0].incarnation, 1, 1)
    (live,) = world.table(CONSTRAINTS).values()
    assert live.subscribers == 2


def test_each_order_is_gap_free_over_blocks_and_batches(world: World) -> None:
    for text in ("a = 1", "b", "a = 1 and b", ""):
        world.do(ALICE, Subscribe("orders", text))
    sent = [tagged(a=1), tagged(b=True), tagged(a=1, b=True), tagged(c=0)]
    orders: dict[bytes, list[tuple[int, bytes]]] = {}
    for _ in range(3):
        leaves = world.apply(
            world.publication(BOB, "orders", *sent), world.publication(ALICE, "orders", *sent)
        )
        found = matches(leaves)
        assert [leaf.constraint for leaf in found] == sorted(leaf.constraint for leaf in found)
        for leaf in found:
            assert leaf.first_ps == len(orders.setdefault(leaf.constraint, []))
            orders[leaf.constraint].extend(leaf.items)
    expected = {
        text: [(i, sent[i % 4].leaf()) for i in range(24) if i % 4 in matching]
        for text, matching in (("a = 1", (0, 2)), ("b", (1, 2)), ("a = 1 and b", (2,)), ("", (0, 1, 2, 3)))
    }
    assert orders == {parse_constraint(text).id: items for text, items in expected.items()}


def test_tags_are_not_needed_where_nobody_asks_for_any(world: World) -> None:
    world.do(ALICE, Subscribe("orders", "true"))
    world.do(ALICE, Subscribe("orders", "false"))
    (leaf,) = matches(world.apply(world.publication(BOB, "orders", tagged(a=1), tagged())))
    assert (leaf.constraint, len(leaf.items)) == (parse_constraint("true").id, 2)


def test_leaves_are_receipts_then_matches_then_closings(world: World) -> None:
    world.topic("notes", partitions=2)
    for topic in ("orders", "notes"):
        world.do(ALICE, Subscribe(topic, "a = 1"))
    leaves = world.apply(
        world.publication(BOB, "orders", tagged(a=1)),
        world.publication(BOB, "notes", tagged(a=1), partition=1),
        world.publication(BOB, "notes", tagged(a=1)),
        world.control(ALICE, Unsubscribe("orders", "a = 1")),
        world.control(ALICE, Unsubscribe("notes", "a = 1")),
    )
    kinds = [type(leaf) for leaf in leaves]
    assert kinds == [BatchReceipt] * 5 + [Match] * 3 + [Closed] * 3
    for found in (matches(leaves), closings(leaves)):
        assert [(leaf.topic, leaf.partition) for leaf in found] == [("notes", 0), ("notes", 1), ("orders", 0)]


def test_repeating_a_subscription_renews_its_lease(world: World) -> None:
    first = subscribed(world.do(ALICE, Subscribe("orders", "a = 1")))
    world.apply(time=first.lease_until - 1)
    second = subscribed(world.do(ALICE, Subscribe("orders", "a == 1")))
    assert second.lease_until == world.time + 1_000
    assert second.partitions[0].incarnation == first.partitions[0].incarnation
    world.apply(time=first.lease_until + 1)
    record = world.record(SUBSCRIPTIONS, "orders", A, ALICE.key)
    assert record == SubscriptionRecord("a == 1", second.lease_until)
    assert world.record(HELD, "subscriptions", ALICE.key) == 1


def test_a_lease_ends_after_its_last_millisecond(world: World) -> None:
    lease = subscribed(world.do(ALICE, Subscribe("orders", "a = 1"))).lease_until
    assert not closings(world.apply(time=lease))
    incarnation = _incarnation(world)
    assert world.apply(time=lease + 1) == [Closed("orders", 0, A, incarnation, 0)]
    assert not world.table(SUBSCRIPTIONS)
    assert world.do(ALICE, Unsubscribe("orders", "a = 1")).code == NotSubscribed.code


def test_an_order_ends_before_the_block_in_which_its_lease_is_over(world: World) -> None:
    lease = subscribed(world.do(ALICE, Subscribe("orders", "a = 1"))).lease_until
    old = _incarnation(world)
    leaves = world.apply(
        world.publication(BOB, "orders", tagged(a=1)),
        world.control(ALICE, Subscribe("orders", "a = 1")),
        world.publication(BOB, "orders", tagged(a=1)),
        time=lease + 1,
    )
    (match,), (closed,) = matches(leaves), closings(leaves)
    assert (closed.incarnation, closed.final_ps) == (old, 0)
    assert (match.incarnation, match.first_ps, len(match.items)) == ((world.height, 1), 0, 1)


def test_the_last_unsubscribe_closes_the_order_and_a_new_one_begins_at_zero(world: World) -> None:
    world.do(ALICE, Subscribe("orders", "a = 1"))
    world.do(BOB, Subscribe("orders", "a = 1"))
    first = _incarnation(world)
    world.publish(BOB, "orders", tagged(a=1), tagged(a=1))
    world.do(ALICE, Unsubscribe("orders", "a = 1"))
    assert not closings(world.leaves(world.height))
    world.publish(BOB, "orders", tagged(a=1))
    world.do(BOB, Unsubscribe("orders", "a = 1"))
    assert closings(world.leaves(world.height)) == [Closed("orders", 0, A, first, 3)]
    assert head(world) is None
    assert not matches(world.apply(world.publication(BOB, "orders", tagged(a=1))))
    again = subscribed(world.do(ALICE, Subscribe("orders", "a = 1")))
    assert again.partitions == (PartitionStart(0, (world.height, 0), 0, 4),)


def test_an_order_may_end_and_begin_again_within_a_block(world: World) -> None:
    world.do(ALICE, Subscribe("orders", "a = 1"))
    old = _incarnation(world)
    leaves = world.apply(
        world.publication(BOB, "orders", tagged(a=1)),
        world.control(ALICE, Unsubscribe("orders", "a = 1")),
        world.control(ALICE, Subscribe("orders", "a = 1")),
        world.publication(BOB, "orders", tagged(a=1), tagged(a=1)),
    )
    new = (world.height, 2)
    assert [(leaf.incarnation, leaf.first_ps, len(leaf.items)) for leaf in matches(leaves)] == [
        (old, 0, 1),
        (new, 0, 2),
    ]
    assert closings(leaves) == [Closed("orders", 0, A, old, 1)]


def test_unsubscribing_needs_a_subscription(world: World) -> None:
    receipt = world.do(ALICE, Unsubscribe("orders", "a = 1"))
    assert receipt.code == NotSubscribed.code
    world.do(BOB, Subscribe("orders", "a = 1"))
    assert world.do(ALICE, Unsubscribe("orders", "a = 1")).code == NotSubscribed.code
    assert world.do(ALICE, Unsubscribe("nothing", "a = 1")).code == UnknownTopic.code


def test_the_topics_rule_decides_who_subscribes(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", None, None, None, 'role = "nurse"'))
    assert world.do(ALICE, Subscribe("orders", "")).code == OK
    receipt = world.do(BOB, Subscribe("orders", ""))
    assert receipt.rejected is not None
    assert (receipt.code, receipt.rejected.detail) == (
        PermissionDenied.code,
        "rule 'subscribe' of topic orders: role == \"nurse\"",
    )
    world.do(ADMIN, AlterClient("alice", (), ("role",)))
    assert world.do(ALICE, Subscribe("orders", "")).code == PermissionDenied.code  # no renewal either


def test_subscribing_needs_a_topic(world: World) -> None:
    assert world.do(ALICE, Subscribe("nothing", "")).code == UnknownTopic.code


def test_a_client_has_at_most_as_many_subscriptions_as_the_genesis_allows() -> None:
    world = World(Limits(subscriptions_per_client=2))
    world.topic("orders")
    world.client("alice")
    for text in ("a = 1", "a = 2", "a == 1"):
        assert world.do(ALICE, Subscribe("orders", text)).code == OK
    assert world.do(ALICE, Subscribe("orders", "a = 3")).code == LimitExceeded.code
    world.do(ALICE, Unsubscribe("orders", "a = 1"))
    assert world.do(ALICE, Subscribe("orders", "a = 3")).code == OK


def test_revoking_a_client_ends_its_subscriptions_and_nobody_elses(world: World) -> None:
    world.topic("notes")
    for topic in ("orders", "notes"):
        world.do(ALICE, Subscribe(topic, "a = 1"))
    world.do(BOB, Subscribe("orders", "a = 1"))
    world.do(ADMIN, RevokeClient("alice"))
    assert not closings(world.leaves(world.height))
    assert [leaf.topic for leaf in closings(world.apply())] == ["notes"]
    (left,) = world.table(SUBSCRIPTIONS)
    assert left == ("orders", A, BOB.key)
    assert world.do(ALICE, Subscribe("orders", "a = 1")).code == Revoked.code


def test_after_a_standstill_leases_end_over_several_blocks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.topic("notes", partitions=3)
    world.do(BOB, Subscribe("notes", "a = 0"))
    for i in range(6):
        world.do(ALICE, Subscribe("orders", f"a = {i}"))
    # Half is for leases, which take four and one for each order.
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=22))
    ended: list[int] = []
    for _ in range(4):
        leaves = closings(world.apply(time=world.time + 2_000 if not ended else None))
        ended.append(len(leaves))
    assert ended == [3 + 1, 3, 2, 0]  # the oldest first
    assert world.rebuilt_root() == world.root


def test_times_are_those_of_the_blocks(world: World) -> None:
    lease = subscribed(world.do(ALICE, Subscribe("orders", ""))).lease_until
    assert lease == START + world.height + 1_000


def _incarnation(world: World) -> Position:
    record = head(world)
    assert record is not None
    return record.incarnation
