"""Topics: whose they are, what may be changed, and what a deleted one leaves behind."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN, ADMINS, World, actor, closings, mount, tagged

from parley.application.operations import Operation
from parley.application.quotas import HELD
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.genesis import Limits
from parley.model.receipts import BatchReceipt
from parley.model.refusals import OK, Invalid, LimitExceeded, PermissionDenied, Unsupported
from parley.modules.publishing.receipts import Published
from parley.modules.registry.operations import RevokeClient
from parley.modules.subscriptions import rules as subscriptions
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.tables import CONSTRAINTS, ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import TopicExists, UnknownPartition, UnknownTopic
from parley.modules.topics.tables import ENDING, HEADS, TOPICS, PartitionRecord, TopicRecord

OTHER = ADMINS["insurer"]
ALICE = actor("alice")


def create(name: str = "orders", partitions: int = 1, policy: Policy | None = None) -> CreateTopic:
    return CreateTopic(name, partitions, policy or Policy(), "", "")


def detail(receipt: BatchReceipt) -> str:
    assert receipt.rejected is not None
    return receipt.rejected.detail


def topic(world: World, name: str = "orders") -> TopicRecord:
    record = world.record(TOPICS, name)
    assert record is not None
    return record


def test_a_topic_belongs_to_its_creators_organisation() -> None:
    world = World()
    operation = CreateTopic("orders", 2, Policy(retention=5), "role = 'nurse'", "level>=2 || admin")
    assert world.do(OTHER, operation).code == OK
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
        assert world.record(HEADS, "orders", partition) == PartitionRecord(0, 0)


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
        assert world.do(admin, create()).code == TopicExists.code


@pytest.mark.parametrize(
    "policy", [Policy(matching="sse"), Policy(matching="split"), Policy(payload="hybrid")]
)
def test_settings_that_brokers_do_not_have_are_refused(policy: Policy) -> None:
    world = World()
    receipt = world.do(ADMIN, create(policy=policy))
    assert receipt.code == Unsupported.code
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
    assert receipt.code == PermissionDenied.code
    assert detail(receipt).startswith("only an administrator of hospital-a may")


@pytest.mark.parametrize("operation", [AlterTopic("orders", 2, None, None, None), DeleteTopic("orders")])
def test_only_its_own_organisation_changes_a_topic(operation: Operation) -> None:
    world = World()
    world.topic("orders")
    assert world.do(OTHER, operation).code == UnknownTopic.code  # a key that is no client's describes nothing
    world.client(OTHER.name, OTHER.organisation)
    receipt = world.do(OTHER, operation)
    assert receipt.code == PermissionDenied.code
    assert "only an administrator of hospital-a may" in detail(receipt)
    assert world.do(ADMIN, operation).code == OK


@pytest.mark.parametrize("operation", [AlterTopic("orders", 2, None, None, None), DeleteTopic("orders")])
def test_what_does_not_exist_is_not_changed(operation: Operation) -> None:
    world = World()
    assert world.do(ADMIN, operation).code == UnknownTopic.code
    world.topic("orders")
    world.do(ADMIN, DeleteTopic("orders"))
    assert world.do(ADMIN, operation).code == UnknownTopic.code


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
    assert world.do(ADMIN, AlterTopic("orders", 2, None, None, None)).code == Invalid.code
    assert world.do(ADMIN, AlterTopic("orders", 3, None, None, None)).code == OK
    world.do(ADMIN, AlterTopic("orders", 5, None, None, None))
    assert len(world.entries(HEADS.prefix("orders"))) == 5


def test_new_partitions_have_the_orders_of_the_live_constraints() -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    world.do(ALICE, Subscribe("orders", "a = 1"))
    world.publish(ALICE, "orders", tagged(a=1))
    world.do(ADMIN, AlterTopic("orders", 2, None, None, None))
    ((old_key, old), (new_key, new)) = world.table(ORDER_HEADS).items()
    assert (old.next_ps, new.next_ps) == (1, 0)
    assert old.incarnation == new.incarnation
    assert (old_key[:2], new_key[:2]) == (("orders", 0), ("orders", 1))
    assert old_key[2] == new_key[2]
    world.publish(ALICE, "orders", tagged(a=1), partition=1)
    altered = world.record(ORDER_HEADS, *new_key)
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
    assert world.record(HEADS, "orders", 0) == PartitionRecord(2, 2)
    for table in (SUBSCRIPTIONS, ORDER_HEADS, CONSTRAINTS, ENDING):
        assert not world.entries(table.prefix())
    assert not world.entries(HELD.prefix("subscriptions"))
    assert world.publish(ALICE, "orders").code == UnknownTopic.code
    assert world.do(ALICE, Subscribe("orders", "")).code == UnknownTopic.code


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
    assert world.publish(ALICE, "orders", partition=1).code == UnknownPartition.code
    world.do(ADMIN, AlterTopic("orders", 2, None, None, None))
    assert world.publish(ALICE, "orders", partition=1).outcome == Published(1)
    assert world.record(HEADS, "orders", 1) == PartitionRecord(2, 1)


def test_the_name_of_a_deleted_topic_stays_its_organisations() -> None:
    world = World()
    world.topic("orders")
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    assert world.do(OTHER, create()).code == TopicExists.code
    world.client(OTHER.name, OTHER.organisation)
    assert world.do(OTHER, create()).code == PermissionDenied.code
    assert world.do(ADMIN, create()).code == OK


def test_topics_are_limited_in_the_network_and_for_each_organisation_and_deleted_ones_count() -> None:
    world = World(Limits(topics=5))  # 2 for each of 4 organisations
    world.topic("one")
    world.topic("two")
    receipt = world.do(ADMIN, create("three"))
    assert (receipt.code, "hospital-a" in detail(receipt)) == (LimitExceeded.code, True)
    world.do(ADMIN, DeleteTopic("one"))
    world.wait(1)
    assert world.do(ADMIN, create("three")).code == LimitExceeded.code
    assert world.do(ADMIN, create("one")).code == OK
    for name, organisation in (("a", "insurer"), ("b", "insurer"), ("c", "laboratory")):
        world.topic(name, organisation=organisation)
    receipt = world.do(ADMINS["laboratory"], create("d"))
    assert (receipt.code, "the network" in detail(receipt)) == (LimitExceeded.code, True)


def test_a_deleted_topic_is_cleared_away_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # One for the height, six for a subscription in two partitions.
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=8))
    world = World()
    world.topic("orders", partitions=2)
    world.topic("other")
    world.client("alice")
    for i in range(3):
        world.do(ALICE, Subscribe("orders", f"a = {i}"))
    world.do(ALICE, Subscribe("other", ""))
    world.apply(world.control(ADMIN, DeleteTopic("orders")), world.control(ADMIN, DeleteTopic("other")))
    assert not closings(world.leaves(world.height))
    receipt = world.do(ADMIN, create())
    assert (receipt.code, "still being deleted" in detail(receipt)) == (LimitExceeded.code, True)
    assert world.do(ALICE, Unsubscribe("orders", "a = 2")).code == UnknownTopic.code
    world.wait(1)
    ended = [len(closings(world.leaves(height))) for height in range(world.height - 2, world.height + 1)]
    assert ended == [4, 2, 1]  # in two blocks; then the other topic
    for table in (SUBSCRIPTIONS, ORDER_HEADS, CONSTRAINTS, ENDING):
        assert not world.entries(table.prefix())
    assert not world.entries(HELD.prefix("subscriptions"))
    assert world.do(ADMIN, create()).code == OK
    assert world.rebuilt_root() == world.root


def test_a_restarted_broker_clears_away_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=2))
    world = World()
    world.topic("orders")
    world.client("alice")
    world.client("bob")
    for i in range(5):
        world.do(ALICE, Subscribe("orders", f"a = {i}"))
        world.do(actor("bob"), Subscribe("orders", f"a = {i}"))
    world.do(ADMIN, DeleteTopic("orders"))
    world.do(ADMIN, RevokeClient("bob"))
    while world.table(ENDING):
        other = mount(world.genesis)[0].apply(world.next_block([]), [], world.store)
        world.wait(1)
        assert other.leaves == world.outcomes[-1].leaves
        assert other.state_root == world.root
    assert not world.table(SUBSCRIPTIONS)


def test_a_topic_has_a_limited_number_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_ORDERS", 6)
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice")
    for i in range(3):
        assert world.do(ALICE, Subscribe("orders", f"a = {i}")).code == OK
    assert world.do(ALICE, Subscribe("orders", "a = 3")).code == LimitExceeded.code
    assert world.do(ALICE, Subscribe("orders", "a == 2")).code == OK
    world.client("bob")
    assert world.do(actor("bob"), Subscribe("orders", "a = 0")).code == OK
    assert world.do(ADMIN, AlterTopic("orders", 3, None, None, None)).code == LimitExceeded.code
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
    ((topic_name, constraint, client),) = world.table(SUBSCRIPTIONS)
    assert (topic_name, client) == ("orders/urgent", ALICE.key)
    assert world.record(ORDER_HEADS, "orders/urgent", 0, constraint) is not None
