"""Topics: whose they are, what may be changed, and what a deleted one leaves behind."""

from __future__ import annotations

import pytest
from tests.pubsub.world import ADMIN, ADMINS, World, actor, closings, tagged

from parley.model.errors import Code
from parley.model.genesis import Limits
from parley.model.operations import (
    Advertise,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Operation,
    Policy,
    RevokeClient,
    Subscribe,
    Unsubscribe,
)
from parley.model.receipts import BatchReceipt, Published, Refused
from parley.model.records import (
    ConstraintRecord,
    PartitionRecord,
    SubscriptionRecord,
    TopicRecord,
    constraint_key,
    partition_key,
    subscription_key,
    topic_key,
)
from parley.pubsub import subscriptions
from parley.pubsub.application import PubSub

OTHER = ADMINS["insurer"]
ALICE = actor("alice")


def create(name: str = "orders", partitions: int = 1, policy: Policy | None = None) -> CreateTopic:
    return CreateTopic(name, partitions, policy or Policy(), "", "")


def detail(receipt: BatchReceipt) -> str:
    assert isinstance(receipt.outcome, Refused)
    return receipt.outcome.detail


def topic(world: World, name: str = "orders") -> TopicRecord:
    record = world.record(TopicRecord, topic_key(name))
    assert record is not None
    return record


def test_a_topic_belongs_to_its_creators_organisation() -> None:
    world = World()
    operation = CreateTopic("orders", 2, Policy(retention=5), "role = 'nurse'", "level>=2 || admin")
    assert world.do(OTHER, operation).code == Code.OK
    assert topic(world) == TopicRecord(
        "orders",
        "insurer",
        2,
        Policy(retention=5),
        'role == "nurse"',
        "level >= 2 or admin == true",
        (1, 0),
        deleted=False,
    )
    for partition in range(2):
        assert world.record(PartitionRecord, partition_key("orders", partition)) == PartitionRecord(0, 0)


def test_two_spellings_of_a_rule_are_stored_alike() -> None:
    world = World()
    world.do(ADMIN, CreateTopic("one", 1, Policy(), "role = 'nurse' && !off", ""))
    world.do(ADMIN, CreateTopic("two", 1, Policy(), 'role == "nurse" and not off', "true"))
    one, two = topic(world, "one"), topic(world, "two")
    assert (one.publish, one.subscribe) == (two.publish, two.subscribe)


def test_a_name_is_taken_once() -> None:
    world = World()
    world.topic("orders")
    for admin in (ADMIN, OTHER):
        assert world.do(admin, create()).code == Code.TOPIC_EXISTS


@pytest.mark.parametrize(
    "policy", [Policy(matching="sse"), Policy(matching="split"), Policy(payload="hybrid")]
)
def test_settings_that_brokers_do_not_have_are_refused(policy: Policy) -> None:
    world = World()
    receipt = world.do(ADMIN, create(policy=policy))
    assert receipt.code == Code.UNSUPPORTED
    assert "brokers of this version" in detail(receipt)


@pytest.mark.parametrize(
    "operation",
    [create("other"), AlterTopic("orders", None, None, None, None), DeleteTopic("orders")],
)
def test_clients_do_not_change_topics(operation: Operation) -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    receipt = world.do(ALICE, operation)
    assert receipt.code == Code.PERMISSION_DENIED
    assert detail(receipt).startswith("only an administrator of hospital-a may")


@pytest.mark.parametrize("operation", [AlterTopic("orders", 2, None, None, None), DeleteTopic("orders")])
def test_only_its_own_organisation_changes_a_topic(operation: Operation) -> None:
    world = World()
    world.topic("orders")
    receipt = world.do(OTHER, operation)
    assert receipt.code == Code.PERMISSION_DENIED
    assert "only an administrator of hospital-a may" in detail(receipt)
    assert world.do(ADMIN, operation).code == Code.OK


@pytest.mark.parametrize("operation", [AlterTopic("orders", 2, None, None, None), DeleteTopic("orders")])
def test_what_does_not_exist_is_not_changed(operation: Operation) -> None:
    world = World()
    assert world.do(ADMIN, operation).code == Code.UNKNOWN_TOPIC
    world.topic("orders")
    world.do(ADMIN, DeleteTopic("orders"))
    assert world.do(ADMIN, operation).code == Code.UNKNOWN_TOPIC


def test_altering_leaves_alone_what_it_does_not_name() -> None:
    world = World()
    world.topic("orders", partitions=2, publish="a", subscribe="b")
    before = topic(world)
    world.do(ADMIN, AlterTopic("orders", None, None, None, None))
    assert topic(world) == before
    world.do(ADMIN, AlterTopic("orders", 3, 77, None, "c"))
    after = topic(world)
    assert (after.partitions, after.policy) == (3, Policy(retention=77))
    assert (after.publish, after.subscribe) == (before.publish, "c == true")
    world.do(ADMIN, AlterTopic("orders", None, None, "", ""))
    assert (topic(world).publish, topic(world).subscribe) == ("true", "true")


def test_partitions_only_grow() -> None:
    world = World()
    world.topic("orders", partitions=3)
    assert world.do(ADMIN, AlterTopic("orders", 2, None, None, None)).code == Code.INVALID
    assert world.do(ADMIN, AlterTopic("orders", 3, None, None, None)).code == Code.OK
    world.do(ADMIN, AlterTopic("orders", 5, None, None, None))
    assert len(world.entries(b"head/orders\0")) == 5


def test_new_partitions_have_the_orders_of_the_live_constraints() -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    world.do(ALICE, Subscribe("orders", "a = 1"))
    world.publish(ALICE, "orders", tagged(a=1))
    world.do(ADMIN, AlterTopic("orders", 2, None, None, None))
    ((old_key, old), (new_key, new)) = [
        (key, world.record(ConstraintRecord, key)) for key in world.entries(b"ps/orders\0")
    ]
    assert old is not None
    assert new is not None
    assert (old.next_ps, new.next_ps) == (1, 0)
    assert old.incarnation == new.incarnation
    assert old_key[-32:] == new_key[-32:]
    world.publish(ALICE, "orders", tagged(a=1), partition=1)
    altered = world.record(ConstraintRecord, new_key)
    assert altered is not None
    assert altered.next_ps == 1


def test_a_deleted_topic_ends_its_log_its_subscriptions_and_its_orders() -> None:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice")
    world.do(ALICE, Subscribe("orders", "a = 1"))
    world.publish(ALICE, "orders", tagged(a=1), tagged())
    world.do(ADMIN, DeleteTopic("orders"))
    assert topic(world).deleted
    assert [(end.partition, end.final_ps) for end in closings(world.apply())] == [(0, 1), (1, 0)]
    assert world.record(PartitionRecord, partition_key("orders", 0)) == PartitionRecord(2, 2)
    assert not world.entries(b"sub/")
    assert not world.entries(b"ps/")
    assert not world.entries(b"use/")
    assert not world.entries(b"guard/")
    assert not world.entries(b"ending/")
    assert world.publish(ALICE, "orders").code == Code.UNKNOWN_TOPIC
    assert world.do(ALICE, Subscribe("orders", "")).code == Code.UNKNOWN_TOPIC


def test_a_name_used_again_continues_its_offsets() -> None:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice")
    world.publish(ALICE, "orders", tagged(), tagged())
    world.publish(ALICE, "orders", tagged(), partition=1)
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    world.topic("orders")
    assert world.publish(ALICE, "orders").outcome == Published(2)
    assert world.publish(ALICE, "orders", partition=1).code == Code.UNKNOWN_PARTITION
    world.do(ADMIN, AlterTopic("orders", 2, None, None, None))
    assert world.publish(ALICE, "orders", partition=1).outcome == Published(1)
    assert world.record(PartitionRecord, partition_key("orders", 1)) == PartitionRecord(2, 1)


def test_the_name_of_a_deleted_topic_stays_its_organisations() -> None:
    world = World()
    world.topic("orders")
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    assert world.do(OTHER, create()).code == Code.PERMISSION_DENIED
    assert world.do(ADMIN, create()).code == Code.OK


def test_topics_are_limited_in_the_network_and_for_each_organisation_and_deleted_ones_count() -> None:
    world = World(Limits(topics=5))  # 2 for each of 4 organisations
    world.topic("one")
    world.topic("two")
    receipt = world.do(ADMIN, create("three"))
    assert (receipt.code, "hospital-a" in detail(receipt)) == (Code.LIMIT_EXCEEDED, True)
    world.do(ADMIN, DeleteTopic("one"))
    world.wait(1)
    assert world.do(ADMIN, create("three")).code == Code.LIMIT_EXCEEDED
    assert world.do(ADMIN, create("one")).code == Code.OK
    for name, organisation in (("a", "insurer"), ("b", "insurer"), ("c", "laboratory")):
        world.topic(name, organisation=organisation)
    receipt = world.do(ADMINS["laboratory"], create("d"))
    assert (receipt.code, "the network" in detail(receipt)) == (Code.LIMIT_EXCEEDED, True)


def test_a_deleted_topic_is_cleared_away_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_ENDED", 4)
    world = World()
    world.topic("orders", partitions=2)
    world.topic("other")
    world.client("alice")
    for i in range(3):
        world.do(ALICE, Subscribe("orders", f"a = {i}"))
    world.do(ALICE, Subscribe("other", ""))
    world.do(ALICE, Advertise("orders", "beds"))
    world.apply(world.control(ADMIN, DeleteTopic("orders")), world.control(ADMIN, DeleteTopic("other")))
    assert not closings(world.leaves(world.height))
    receipt = world.do(ADMIN, create())
    assert (receipt.code, "still being deleted" in detail(receipt)) == (Code.LIMIT_EXCEEDED, True)
    assert world.do(ALICE, Unsubscribe("orders", "a = 2")).code == Code.UNKNOWN_TOPIC
    world.wait(1)
    ended = [len(closings(world.leaves(height))) for height in range(world.height - 2, world.height + 1)]
    assert ended == [4, 2, 1]  # in two blocks, with the advertisement; then the other topic
    for kind in (b"sub/", b"ps/", b"ad/", b"use/", b"guard/", b"ending/"):
        assert not world.entries(kind)
    assert world.do(ADMIN, create()).code == Code.OK
    assert world.rebuilt_root() == world.root


def test_a_restarted_broker_clears_away_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_ENDED", 2)
    world = World()
    world.topic("orders")
    world.client("alice")
    world.client("bob")
    for i in range(5):
        world.do(ALICE, Subscribe("orders", f"a = {i}"))
        world.do(actor("bob"), Subscribe("orders", f"a = {i}"))
    world.do(ADMIN, DeleteTopic("orders"))
    world.do(ADMIN, RevokeClient("bob"))
    while world.entries(b"ending/"):
        other = PubSub(world.genesis).apply(world.next_block([]), [], world.store)
        world.wait(1)
        assert other.leaves == world.outcomes[-1].leaves
        assert other.state_root == world.root
    assert not world.entries(b"sub/")


def test_a_topic_has_a_limited_number_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_ORDERS", 6)
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice")
    for i in range(3):
        assert world.do(ALICE, Subscribe("orders", f"a = {i}")).code == Code.OK
    assert world.do(ALICE, Subscribe("orders", "a = 3")).code == Code.LIMIT_EXCEEDED
    assert world.do(ALICE, Subscribe("orders", "a == 2")).code == Code.OK
    world.client("bob")
    assert world.do(actor("bob"), Subscribe("orders", "a = 0")).code == Code.OK
    assert world.do(ADMIN, AlterTopic("orders", 3, None, None, None)).code == Code.LIMIT_EXCEEDED
    assert topic(world).partitions == 2


def test_topics_whose_names_begin_alike_do_not_mix() -> None:
    world = World()
    world.topic("orders")
    world.topic("orders/urgent")
    world.client("alice")
    for name in ("orders", "orders/urgent"):
        world.do(ALICE, Subscribe(name, ""))
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    (left,) = world.entries(b"sub/")
    assert left.startswith(b"sub/orders/urgent\0")
    constraint = left[-64:-32]
    assert (
        world.record(SubscriptionRecord, subscription_key("orders/urgent", constraint, ALICE.key)) is not None
    )
    assert world.record(ConstraintRecord, constraint_key("orders/urgent", 0, constraint)) is not None
