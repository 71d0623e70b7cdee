"""The application against the reference model, over random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.histories import History
from tests.application.reference import OrderName, Reference, stage_of
from tests.application.world import World, closings, matches

from parley.application.quotas import COUNTS
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.batches import Batch, open_batch
from parley.model.expressions import parse_rule
from parley.model.names import sorted_pairs
from parley.model.receipts import BatchReceipt, Duplicate, Leaf
from parley.modules.publishing.receipts import Published
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.retention.tables import AGES
from parley.modules.staging import numbering
from parley.modules.staging.operations import digests_hash
from parley.modules.staging.staged import charge
from parley.modules.staging.tables import (
    CONTENTS,
    OVER,
    PENDING,
    PENDING_BATCHES,
    STAGED,
    STAGES,
    STAGING,
    StageRecord,
)
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS, OrderHead
from parley.modules.topics.tables import HEADS, TOPICS, PartitionRecord


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), numbered=st.sampled_from((1, 2, 1_000)))
def test_every_history_has_the_outcome_that_the_reference_gives_it(seed: int, numbered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "MAX_NUMBERED", numbered)
        patch.setattr(numbering, "cost_of", lambda *_: 1)
        patch.setattr(DATA_SHARD, "budget", Budget(4_096, 1_024))  # so that everything has room
        _compare(History(seed), numbered)


def _compare(history: History, numbered: int) -> None:
    world, reference = history.world, Reference(history.world.genesis, numbered)
    orders, opened = _Orders(), dict[bytes, Batch]()
    for batches, time in history.blocks(30):
        leaves = world.apply(*batches, time=time)
        receipts = [leaf for leaf in leaves if isinstance(leaf, BatchReceipt)]
        block = dict(open_batch(batch.body, world.chain, 0) for batch in batches)
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
    assert world.table(CLIENTS).keys() == {(key,) for key in reference.clients}
    for key, client in reference.clients.items():
        record = world.record(CLIENTS, key)
        assert record is not None
        assert (record.organisation, record.name, record.key) == (client.organisation, client.name, key)
        assert (record.attributes, record.revoked) == (sorted_pairs(client.attributes), client.revoked)
    live = {
        (client.organisation, client.name): key
        for key, client in reference.clients.items()
        if not client.revoked
    }
    assert world.table(NAMES) == live


def _compare_topics(world: World, reference: Reference) -> None:
    assert world.table(TOPICS).keys() == {(name,) for name in reference.topics}
    for name, topic in reference.topics.items():
        record = world.record(TOPICS, name)
        assert record is not None
        assert (record.organisation, record.partitions) == (topic.organisation, topic.partitions)
        assert (record.publish, record.subscribe) == (
            parse_rule(topic.publish).text,
            parse_rule(topic.subscribe).text,
        )
        assert (record.policy.retention, record.deleted) == (topic.retention, topic.deleted)
    for model in reference.models:
        model.compare(world)


def _compare_stages(world: World, reference: Reference) -> None:
    pending = Counter(stage_of(batch)[:4] for _, batch, _ in reference.queue)
    assert world.table(STAGES) == {
        (topic, topic_id, publisher, writer): StageRecord(
            one.stage,
            one.at,
            digests_hash(one.digests),
            pending[publisher, topic, topic_id, writer],
            one.source,
        )
        for (publisher, topic, topic_id, writer), one in reference.stages.items()
    }
    # What a commit has left behind is dropped when all is numbered that its writer has committed.
    records = world.table(STAGED)
    held, waiting = {digest for (digest,) in records}, {name for name, _, _ in reference.queue}
    stages, over = reference.stages, set[bytes]()
    for (digest,), record in records.items():
        whose = (record.publisher, record.topic, record.topic_id, record.writer)
        last = stages.get(whose)
        if last is not None and record.stage <= last.stage and digest not in waiting:
            over.add(digest)
            assert world.table(OVER) or pending[whose]
    left = {name for name, batch in reference.staged.items() if not _is_over(batch, reference)}
    assert held - over == left | waiting
    assert {digest for digest, _ in world.table(CONTENTS)} == held
    assert {digest for *_, digest in world.table(STAGING)} == held
    sizes = sum(charge(record.size, record.count) for record in records.values())
    assert (world.record(COUNTS, "staged", "") or 0) == sizes
    assert (world.record(PENDING_BATCHES) or 0) == len(waiting)
    assert world.table(PENDING).keys() == {(batch.header.topic,) for _, batch, _ in reference.queue}


def _is_over(batch: Batch, reference: Reference) -> bool:
    last = reference.stages.get(stage_of(batch)[:4])
    return last is not None and batch.header.sequence <= last.stage


def _compare_logs(world: World, reference: Reference) -> None:
    assert world.table(HEADS) == {
        place: PartitionRecord(len(log), reference.start[place]) for place, log in reference.log.items()
    }
    # Ages are kept of what a retention will end, and of nothing else.
    ageing = {
        place
        for place, log in reference.log.items()
        if reference.topics[place[0]].retention and reference.start[place] < len(log)
    }
    assert world.table(AGES).keys() == ageing


def _compare_orders(world: World, reference: Reference) -> None:
    leases = {key: record.lease_until for key, record in world.table(SUBSCRIPTIONS).items()}
    assert leases == reference.subscriptions
    live = {name: order for name, order in reference.orders.items() if not order.closed}
    heads = {}
    for (topic, partition, constraint, incarnation), order in live.items():
        heads[topic, partition, constraint] = OrderHead(
            reference.texts[constraint], incarnation, len(order.items)
        )
    assert world.table(ORDER_HEADS) == heads
