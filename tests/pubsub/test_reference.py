"""The application against the reference model, over random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pubsub.histories import History
from tests.pubsub.reference import OrderName, Reference, stage_of
from tests.pubsub.world import World, closings, matches

from parley.model.batches import Batch, open_batch
from parley.model.expressions import parse_rule
from parley.model.names import sorted_pairs
from parley.model.receipts import BatchReceipt, Duplicate, Leaf, Published
from parley.model.records import (
    AdvertisementRecord,
    ClientRecord,
    ConstraintRecord,
    PartitionRecord,
    StageRecord,
    SubscriptionRecord,
    TopicRecord,
    advertisement_key,
    client_key,
    constraint_key,
    digests_hash,
    partition_key,
    stage_key,
    subscription_key,
    topic_key,
)
from parley.pubsub import numbering
from parley.pubsub.records import PENDING, STAGED_BYTES, StagedRecord, ages_key, staged_key
from parley.pubsub.staged import charge


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), numbered=st.sampled_from((1, 2, 1_000)))
def test_every_history_has_the_outcome_that_the_reference_gives_it(seed: int, numbered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "MAX_NUMBERED", numbered)
        _compare(History(seed), numbered)


def _compare(history: History, numbered: int) -> None:
    world, reference = history.world, Reference(history.world.genesis, numbered)
    orders, opened = _Orders(), dict[bytes, Batch]()
    for batches, time in history.blocks(30):
        leaves = world.apply(*batches, time=time)
        receipts = [leaf for leaf in leaves if isinstance(leaf, BatchReceipt)]
        block = dict(open_batch(batch.body, world.chain) for batch in batches)
        opened |= block
        expected = reference.apply(world.height, time, list(block.items()))
        assert [(receipt.digest, receipt.code) for receipt in receipts] == expected
        _check_outcomes(receipts, opened, reference)
        _compare_stages(world, reference)
        orders.extend(leaves)
        _compare_logs(world, reference)
    orders.compare(reference)
    _compare_registry(world, reference)
    _compare_topics(world, reference)
    _compare_orders(world, reference)
    assert world.rebuilt_root() == world.root


def _check_outcomes(
    receipts: Iterable[BatchReceipt], opened: dict[bytes, Batch], reference: Reference
) -> None:
    for receipt in receipts:
        match receipt.outcome:
            case Duplicate(original):
                assert original == reference.original[receipt.digest]
            case Published(first):
                log = reference.log[receipt.topic, receipt.partition]
                sent = [message.leaf() for message in opened[receipt.digest].messages]
                assert log[first : first + receipt.count] == sent
            case _:
                pass


class _Orders:
    """What a subscriber of everything would put together from the leaves, checking that there is no gap."""

    def __init__(self) -> None:
        self._items: dict[OrderName, list[tuple[int, bytes]]] = {}
        self._closed: set[OrderName] = set()

    def extend(self, leaves: list[Leaf]) -> None:
        for leaf in matches(leaves):
            name = (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation)
            items = self._items.setdefault(name, [])
            assert name not in self._closed
            assert leaf.first_ps == len(items)
            items.extend(leaf.items)
        for end in closings(leaves):
            name = (end.topic, end.partition, end.constraint, end.incarnation)
            assert name not in self._closed
            assert end.final_ps == len(self._items.get(name, ()))
            self._closed.add(name)

    def compare(self, reference: Reference) -> None:
        orders = reference.orders.items()
        assert self._items == {name: order.items for name, order in orders if order.items}
        assert self._closed == {name for name, order in orders if order.closed}


def _compare_registry(world: World, reference: Reference) -> None:
    assert len(world.entries(b"client/")) == len(reference.clients)
    for key, client in reference.clients.items():
        record = world.record(ClientRecord, client_key(key))
        assert record is not None
        assert (record.organisation, record.name, record.key) == (client.organisation, client.name, key)
        assert (record.attributes, record.revoked) == (sorted_pairs(client.attributes), client.revoked)
    live = {
        f"name/{client.organisation}/{client.name}".encode(): key
        for key, client in reference.clients.items()
        if not client.revoked
    }
    assert world.entries(b"name/") == live


def _compare_topics(world: World, reference: Reference) -> None:
    assert len(world.entries(b"topic/")) == len(reference.topics)
    for name, topic in reference.topics.items():
        record = world.record(TopicRecord, topic_key(name))
        assert record is not None
        assert (record.organisation, record.partitions) == (topic.organisation, topic.partitions)
        assert (record.publish, record.subscribe) == (
            parse_rule(topic.publish).text,
            parse_rule(topic.subscribe).text,
        )
        assert (record.policy.retention, record.deleted) == (topic.retention, topic.deleted)
    texts = {advertisement_key(*ad): text for ad, text in reference.advertisements.items()}
    assert texts.keys() == world.entries(b"ad/").keys()
    for key, text in texts.items():
        record_ = world.record(AdvertisementRecord, key)
        assert record_ is not None
        assert record_.text == text


def _compare_stages(world: World, reference: Reference) -> None:
    writers = {
        stage_key(publisher, topic, by): one for (publisher, topic, by), one in reference.stages.items()
    }
    assert world.entries(b"stage/").keys() == writers.keys()
    pending = Counter(stage_key(*stage_of(batch)[:3]) for _, batch, _ in reference.queue)
    for key, one in writers.items():
        said = StageRecord(one.stage, one.at, digests_hash(one.digests), pending[key])
        assert world.record(StageRecord, key) == said
    # What a commit has left behind is dropped in the next block.
    stages = reference.stages
    over = {
        name
        for name, batch in reference.staged.items()
        if (last := stages.get(stage_of(batch)[:3])) is not None and batch.header.sequence <= last.stage
    }
    held = {key[-32:] for key in world.entries(b"staged/")}
    waiting = {name for name, _, _ in reference.queue}
    assert held - over == reference.staged.keys() - over | waiting
    assert not held & over or world.entries(b"over/")
    assert {key[-36:-4] for key in world.entries(b"content/")} == held
    assert {key[-32:] for key in world.entries(b"staging/")} == held - waiting
    records = [world.record(StagedRecord, staged_key(name)) for name in held]
    sizes = sum(charge(record.size, record.count) for record in records if record is not None)
    assert int.from_bytes(world.entries(b"count/staged bytes").get(STAGED_BYTES, b""), "big") == sizes
    assert int.from_bytes(world.entries(b"count/pending").get(PENDING, b""), "big") == len(waiting)
    assert len(world.entries(b"pending/")) == len({batch.header.topic for _, batch, _ in reference.queue})


def _compare_logs(world: World, reference: Reference) -> None:
    heads = {
        partition_key(*place): (len(log), reference.start[place]) for place, log in reference.log.items()
    }
    assert heads.keys() == world.entries(b"head/").keys()
    for key, (end, start) in heads.items():
        assert world.record(PartitionRecord, key) == PartitionRecord(end, start)
    # Ages are kept of what a retention will end, and of nothing else.
    ageing = {
        ages_key(*place)
        for place, log in reference.log.items()
        if reference.topics[place[0]].retention and reference.start[place] < len(log)
    }
    assert world.entries(b"age/").keys() == ageing


def _compare_orders(world: World, reference: Reference) -> None:
    leases = {subscription_key(*held): lease for held, lease in reference.subscriptions.items()}
    assert leases.keys() == world.entries(b"sub/").keys()
    for key, lease in leases.items():
        subscription = world.record(SubscriptionRecord, key)
        assert subscription is not None
        assert subscription.lease_until == lease
    live = {name: order for name, order in reference.orders.items() if not order.closed}
    assert len(world.entries(b"ps/")) == len(live)
    for (topic, partition, constraint, incarnation), order in live.items():
        subscribers = sum(held[:2] == (topic, constraint) for held in reference.subscriptions)
        head = world.record(ConstraintRecord, constraint_key(topic, partition, constraint))
        text = reference.texts[constraint]
        assert head == ConstraintRecord(text, incarnation, len(order.items), subscribers)
