"""Publishing: contiguous offsets, and who may. Advertising, which needs the same right."""

from __future__ import annotations

import pytest
from tests.pubsub.world import ADMIN, World, actor, tagged

from parley.model.errors import Code
from parley.model.operations import Advertise, AlterClient, AlterTopic, DeleteTopic, RevokeClient
from parley.model.receipts import BatchReceipt, Published, Refused
from parley.model.records import AdvertisementRecord, PartitionRecord, advertisement_key, partition_key
from parley.pubsub import advertisements

ALICE, BOB = actor("alice"), actor("bob")


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice", role="nurse")
    world.client("bob")
    return world


def detail(receipt: BatchReceipt) -> str:
    assert isinstance(receipt.outcome, Refused)
    return receipt.outcome.detail


def test_offsets_are_contiguous_in_each_partition(world: World) -> None:
    ends = [0, 0]
    for size, partition, author in ((3, 0, ALICE), (1, 1, BOB), (2, 0, BOB), (5, 1, ALICE), (1, 0, ALICE)):
        receipt = world.publish(author, "orders", *[tagged()] * size, partition=partition)
        assert receipt.outcome == Published(ends[partition])
        ends[partition] += size
    for partition in range(2):
        head = world.record(PartitionRecord, partition_key("orders", partition))
        assert head == PartitionRecord(ends[partition], 0)


def test_the_receipt_names_batch_and_client(world: World) -> None:
    batch = world.publication(ALICE, "orders", tagged(), tagged(), partition=1)
    assert world.order_one(batch) == BatchReceipt(
        batch.digest, ALICE.key, "hospital-a/alice", "orders", 1, 2, Published(0)
    )


def test_topics_and_partitions_must_exist(world: World) -> None:
    for name in ("nothing", "", "no\0such\ntopic"):
        assert world.publish(ALICE, name).code == Code.UNKNOWN_TOPIC
    receipt = world.publish(ALICE, "orders", partition=2)
    assert (receipt.code, detail(receipt)) == (
        Code.UNKNOWN_PARTITION,
        "topic orders has partitions 0 to 1 only",
    )


def test_the_topics_rule_decides_who_publishes(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", None, None, 'role == "nurse"', None))
    assert world.publish(ALICE, "orders").code == Code.OK
    receipt = world.publish(BOB, "orders")
    assert receipt.code == Code.PERMISSION_DENIED
    assert detail(receipt) == "rule 'publish' of topic orders: role == \"nurse\""
    world.do(ADMIN, AlterClient("bob", (("role", "nurse"),), ()))
    assert world.publish(BOB, "orders").code == Code.OK


def test_rules_see_organisation_and_name(world: World) -> None:
    world.client("carol", "insurer")
    world.do(ADMIN, AlterTopic("orders", None, None, "org = 'insurer' and client = 'carol'", None))
    assert world.publish(actor("carol", "insurer"), "orders").code == Code.OK
    assert world.publish(ALICE, "orders").code == Code.PERMISSION_DENIED


def test_a_long_rule_is_cut_to_what_a_receipt_holds(world: World) -> None:
    rule = f"role in [{', '.join(repr('r' * 30 + str(i)) for i in range(24))}]"
    world.do(ADMIN, AlterTopic("orders", None, None, rule, None))
    receipt = world.publish(ALICE, "orders")
    assert len(detail(receipt)) == 512
    assert detail(receipt).endswith("...")


def test_a_publication_without_subscribers_is_one_leaf_and_few_entries(world: World) -> None:
    world.publish(ALICE, "orders")
    before = world.entries()
    leaves = world.apply(world.publication(ALICE, "orders", *[tagged(a=1)] * 100))
    assert len(leaves) == 1
    changed = {key for key, value in world.entries().items() if before.get(key) != value}
    assert sorted(key.split(b"/")[0] for key in changed) == [b"head", b"line"]


# -- advertising ------------------------------------------------------------------------------------------------------


def test_publishers_advertise_and_withdraw(world: World) -> None:
    key = advertisement_key("orders", ALICE.key)
    assert world.do(ALICE, Advertise("orders", "beds")).code == Code.OK
    assert world.do(ALICE, Advertise("orders", "spare beds")).code == Code.OK
    assert world.record(AdvertisementRecord, key) == AdvertisementRecord("hospital-a/alice", "spare beds")
    for _ in range(2):
        assert world.do(ALICE, Advertise("orders", "")).code == Code.OK
        assert world.record(AdvertisementRecord, key) is None
    assert not world.entries(b"use/")


def test_advertising_needs_the_right_to_publish(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", None, None, 'role == "nurse"', None))
    assert world.do(BOB, Advertise("orders", "beds")).code == Code.PERMISSION_DENIED
    assert world.do(ALICE, Advertise("nothing", "beds")).code == Code.UNKNOWN_TOPIC
    assert world.do(ADMIN, Advertise("orders", "beds")).code == Code.UNKNOWN_CLIENT


def test_whoever_lost_the_right_may_still_withdraw(world: World) -> None:
    world.do(BOB, Advertise("orders", "beds"))
    world.do(ADMIN, AlterTopic("orders", None, None, "false", None))
    assert world.do(BOB, Advertise("orders", "")).code == Code.OK
    assert not world.entries(b"ad/")


def test_a_client_advertises_on_a_limited_number_of_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertisements, "MAX_ADVERTISED", 2)
    for name in ("one", "two"):
        world.topic(name)
        assert world.do(ALICE, Advertise(name, "beds")).code == Code.OK
    assert world.do(ALICE, Advertise("orders", "beds")).code == Code.LIMIT_EXCEEDED
    assert world.do(ALICE, Advertise("one", "more beds")).code == Code.OK
    world.do(ALICE, Advertise("one", ""))
    assert world.do(ALICE, Advertise("orders", "beds")).code == Code.OK


def test_advertisements_go_with_their_topic_and_with_their_client(world: World) -> None:
    world.topic("notes")
    for client in (ALICE, BOB):
        for name in ("orders", "notes"):
            world.do(client, Advertise(name, "beds"))
    world.do(ADMIN, RevokeClient("alice"))
    assert set(world.entries(b"ad/")) == {advertisement_key(name, BOB.key) for name in ("orders", "notes")}
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    assert set(world.entries(b"ad/")) == {advertisement_key("notes", BOB.key)}
    world.do(ADMIN, DeleteTopic("notes"))
    world.wait(1)
    assert not world.entries(b"use/")
