"""Publishing: contiguous offsets, and who may."""

from __future__ import annotations

from typing import Any

import pytest
from tests.application.world import ADMIN, World, actor, tagged

from parley.application.sequences import SEQUENCES
from parley.model.expressions import ExpressionError, parse_constraint, parse_rule
from parley.model.receipts import BatchReceipt, Rejected
from parley.model.refusals import OK, PermissionDenied
from parley.modules.publishing.receipts import Published
from parley.modules.registry.operations import AlterClient
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.refusals import UnknownPartition, UnknownTopic
from parley.modules.topics.tables import HEADS, PartitionRecord

ALICE, BOB = actor("alice"), actor("bob")


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice", role="nurse")
    world.client("bob")
    return world


def rejected(receipt: BatchReceipt) -> Rejected:
    assert receipt.rejected is not None
    return receipt.rejected


def test_offsets_are_contiguous_in_each_partition(world: World) -> None:
    ends = [0, 0]
    for size, partition, author in ((3, 0, ALICE), (1, 1, BOB), (2, 0, BOB), (5, 1, ALICE), (1, 0, ALICE)):
        receipt = world.publish(author, "orders", *[tagged()] * size, partition=partition)
        assert receipt.outcome == Published(ends[partition])
        ends[partition] += size
    for partition in range(2):
        head = world.record(HEADS, "orders", partition)
        assert head == PartitionRecord(ends[partition], 0)


def test_the_receipt_names_batch_and_client(world: World) -> None:
    batch = world.publication(ALICE, "orders", tagged(), tagged(), partition=1)
    assert world.order_one(batch) == BatchReceipt(
        batch.digest, ALICE.key, "hospital-a/alice", "orders", world.topic_id("orders"), 1, 2, Published(0)
    )


def test_a_word_of_the_language_as_a_tag_is_published_and_matches_nothing(world: World) -> None:
    """Clients refuse it, because it is a mistake; to the ledger it is a tag that no constraint can name."""
    words: dict[str, Any] = {"and": True, "not": 1}
    said = tagged(**words)
    assert world.publish(ALICE, "orders", said).outcome == Published(0)
    for word in ("and", "not"):
        with pytest.raises(ExpressionError):
            parse_constraint(f"{word} == 1")


def test_topics_and_partitions_must_exist(world: World) -> None:
    for name in ("nothing", "", "no\0such\ntopic"):
        assert world.publish(ALICE, name).code == UnknownTopic.code
    receipt = world.publish(ALICE, "orders", partition=2)
    assert (receipt.code, rejected(receipt).detail) == (
        UnknownPartition.code,
        "topic orders has partitions 0 to 1 only",
    )


def test_the_topics_rule_decides_who_publishes(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", None, None, 'role == "nurse"', None))
    assert world.publish(ALICE, "orders").code == OK
    receipt = world.publish(BOB, "orders")
    assert receipt.code == PermissionDenied.code
    assert rejected(receipt).reason == "rule"
    assert rejected(receipt).fields == (
        ("action", "publish"),
        ("rule", 'role == "nurse"'),
        ("topic", "orders"),
    )
    assert rejected(receipt).detail == "rule 'publish' of topic orders: role == \"nurse\""
    world.do(ADMIN, AlterClient("bob", (("role", "nurse"),), ()))
    assert world.publish(BOB, "orders").code == OK


def test_rules_see_organisation_and_name(world: World) -> None:
    world.client("carol", "insurer")
    world.do(ADMIN, AlterTopic("orders", None, None, "org = 'insurer' and client = 'carol'", None))
    assert world.publish(actor("carol", "insurer"), "orders").code == OK
    assert world.publish(ALICE, "orders").code == PermissionDenied.code


def test_the_longest_rule_stands_whole_in_a_receipt(world: World) -> None:
    rule = f"role in [{', '.join(repr('r' * 30 + str(i)) for i in range(24))}]"
    assert len(rule) > 512
    world.do(ADMIN, AlterTopic("orders", None, None, rule, None))
    receipt = world.publish(ALICE, "orders")
    assert rejected(receipt).refusal.error().fields["rule"] == parse_rule(rule).text
    assert rejected(receipt).detail.endswith(parse_rule(rule).text)


def test_a_publication_without_subscribers_is_one_leaf_and_few_entries(world: World) -> None:
    world.publish(ALICE, "orders")
    before = world.entries()
    leaves = world.apply(world.publication(ALICE, "orders", *[tagged(a=1)] * 100))
    assert len(leaves) == 1
    changed = {key for key, value in world.entries().items() if before.get(key) != value}
    (head, sequence) = sorted(changed)
    assert head == HEADS.key("orders", 0)
    assert sequence.startswith(SEQUENCES.prefix())
