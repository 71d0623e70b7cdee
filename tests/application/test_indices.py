"""What brokers look up: every place that the indices name holds what they say, and none of it is in the state root."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.histories import History
from tests.application.world import ADMIN, World, actor, registration, tagged

from parley.application.keeping import RECEIPTS, TO_ERASE, ReceiptPlace, places
from parley.applications import DATA_SHARD
from parley.ledger.derived import in_parts
from parley.ledger.layout import INDICES
from parley.model.receipts import BatchReceipt, Leaf
from parley.model.refusals import DUPLICATE, OK, Expired, OutOfSequence
from parley.modules.publishing.receipts import published
from parley.modules.publishing.tables import OFFSETS, BatchPlace
from parley.modules.registry.operations import RevokeClient
from parley.modules.retention.tables import LOGS_TO_ERASE
from parley.modules.staging.receipts import is_staged
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Match, order_leaf
from parley.modules.subscriptions.tables import ORDER_LEAVES, SUBSCRIPTIONS, LeafPlace
from parley.store.memory import MemoryStore

ALICE = actor("alice")


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders")
    world.client("alice")
    return world


def place(world: World, digest: bytes) -> ReceiptPlace | None:
    return world.record(RECEIPTS, digest)


def published_at(height: int, position: int, offset: int) -> ReceiptPlace:
    return ReceiptPlace(height, position, True, 3, "published", offset)


def staged_at(height: int, position: int) -> ReceiptPlace:
    return ReceiptPlace(height, position, True, 2, "staged")


def refused_at(height: int, position: int) -> ReceiptPlace:
    return ReceiptPlace(height, position, True, 1, "refused")


def undecided_at(height: int, position: int, outcome: str) -> ReceiptPlace:
    return ReceiptPlace(height, position, False, 0, outcome)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_leaf_of_every_history_is_found(seed: int) -> None:
    history = History(seed)
    world = history.world
    final: dict[bytes, ReceiptPlace] = {}
    for batches, time in history.blocks(20):
        for position, leaf in enumerate(world.apply(*batches, time=time)):
            here = (world.height, position)
            if (found := published(leaf)) is not None:
                receipt, first = found
                there = BatchPlace(*here, receipt.digest, receipt.count)
                assert world.record(OFFSETS, receipt.topic, receipt.partition, first) == there
            if (order := order_leaf(leaf)) is not None:
                ps = order.first_ps if isinstance(order, Match) else order.final_ps
                name = (order.topic, order.partition, order.constraint, order.incarnation)
                assert world.record(ORDER_LEAVES, *name, ps) == LeafPlace(*here)
            if isinstance(leaf, BatchReceipt) and leaf.code not in (
                OutOfSequence.code,
                Expired.code,
                DUPLICATE,
            ):
                expected = expected_at(*here, leaf)
                before = final.setdefault(leaf.digest, expected)
                # A staged batch may have been refused before, and is numbered later.
                if leaf.code == OK and (before.outcome, expected.outcome) != ("staged", "staged"):
                    final[leaf.digest] = expected
    for digest, expected in final.items():
        assert place(world, digest) == expected


def expected_at(height: int, position: int, receipt: BatchReceipt) -> ReceiptPlace:
    if (found := published(receipt)) is not None:
        return published_at(height, position, found[1])
    if is_staged(receipt):
        return staged_at(height, position)
    return ReceiptPlace(height, position, True, 1, receipt.outcome_name)


def test_offsets_and_orders_are_in_key_order(world: World) -> None:
    world.do(ALICE, Subscribe("orders", ""))
    incarnation = (world.height, 0)
    for _ in range(300):
        world.publish(ALICE, "orders", tagged(), tagged())
    ((_, constraint, _),) = world.table(SUBSCRIPTIONS)
    for prefix in (
        OFFSETS.places("orders", 0),
        ORDER_LEAVES.places("orders", 0, constraint, incarnation),
    ):
        firsts = [int.from_bytes(key[len(prefix) :], "big") for key, _ in world.store.scan(prefix)]
        assert firsts == list(range(0, 600, 2))


def test_a_place_changes_until_it_is_final(world: World) -> None:
    later = world.publication(ALICE, "orders", sequence=1)
    for _ in range(2):
        world.order(later)
        assert place(world, later.digest) == undecided_at(world.height, 0, "refused")
    world.order(world.publication(ALICE, "orders", sequence=0))
    world.order(later)
    here = published_at(world.height, 0, 1)
    world.order(later)
    assert place(world, later.digest) == here


def test_what_was_final_does_not_expire(world: World) -> None:
    batch = world.publication(ALICE, "orders", not_after=world.height + 1)
    world.order(batch)
    here = place(world, batch.digest)
    assert world.order_one(batch).code == Expired.code
    assert place(world, batch.digest) == here


def test_the_first_refusal_is_the_one_that_is_found(world: World) -> None:
    world.order(world.publication(ALICE, "orders"))
    reused = world.publication(ALICE, "orders", tagged(x=1), sequence=0)
    stranger = world.publication(actor("mallory"), "orders")
    world.client("bob")
    world.do(ADMIN, RevokeClient("bob"))
    revoked = world.publication(actor("bob"), "orders")
    world.order(reused, stranger, revoked)
    found = [place(world, batch.digest) for batch in (reused, stranger, revoked)]
    assert found == [refused_at(world.height, i) for i in range(3)]
    world.order(revoked, stranger, reused)
    assert [place(world, batch.digest) for batch in (reused, stranger, revoked)] == found


def test_of_a_staged_batch_the_receipt_that_numbers_it_is_found_then_the_one_that_stages_it(
    world: World,
) -> None:
    batch = world.staged(ALICE, "late", topic_id=(world.height + 2, 0))
    world.order(batch)
    assert place(world, batch.digest) == refused_at(world.height, 0)
    world.topic("late")
    world.order(batch)
    here = staged_at(world.height, 0)
    world.order(batch)
    assert place(world, batch.digest) == here
    world.order(world.commit(ALICE, "late", 0, batch))
    numbered = published_at(world.height, 1, 0)
    world.order(batch)
    assert place(world, batch.digest) == numbered


class Walked(list[Leaf]):
    """Counts how often somebody goes through it."""

    walks = 0

    def __iter__(self) -> Iterator[Leaf]:
        self.walks += 1
        return super().__iter__()


def test_the_leaves_of_a_block_are_gone_through_no_more_often_the_more_of_them_are_staged(
    world: World,
) -> None:
    for count in (1, 40):
        batches = [world.staged(ALICE, "orders", tagged(n=n), stage=count) for n in range(count)]
        leaves = Walked(world.apply(*batches))
        assert len(list(places(DATA_SHARD, world.height, leaves, MemoryStore()))) == count
        assert leaves.walks <= 2


def test_a_commit_that_repeats_another_finds_its_own_receipt(world: World) -> None:
    world.order(world.commit(ALICE, "orders", 0))
    again = world.commit(ALICE, "orders", 0)
    assert world.order_one(again).code == DUPLICATE
    assert place(world, again.digest) == undecided_at(world.height, 0, "duplicate")


def test_an_order_that_begins_again_is_indexed_apart(world: World) -> None:
    world.do(ALICE, Subscribe("orders", ""))
    world.do(ALICE, Unsubscribe("orders", ""))
    world.do(ALICE, Subscribe("orders", ""))
    world.publish(ALICE, "orders")
    assert len(list(world.store.scan(ORDER_LEAVES.places()))) == 2


def test_indices_are_no_part_of_the_state(world: World) -> None:
    world.do(ADMIN, registration(world.chain, actor("bob")))
    world.publish(ALICE, "orders")
    without = world.store.frozen()
    without.write([(key, None) for key, _ in world.store.scan(INDICES)])
    batch = world.publication(ALICE, "orders")
    block = world.next_block([batch])
    first = world.machine.apply(block, [(batch.digest, batch.body)], without)
    world.machine.admit(batch.body)
    world.order(batch)
    assert first.state_root == world.root


def indices(world: World, height: int, store: MemoryStore) -> list[tuple[bytes, bytes | None]]:
    """What a block gives to a store that has not executed it, a part after another."""
    steps = in_parts(world.keeper.indexing(height, store), world.outcomes[height - 1].leaves)
    return [step for step in steps if not isinstance(step, int)]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_a_broker_that_gets_old_blocks_late_has_the_same_places(seed: int, order: Random) -> None:
    history = History(seed)
    world = history.world
    for batches, time in history.blocks(15):
        world.apply(*batches, time=time)
    heights = list(range(1, world.height + 1))
    order.shuffle(heights)
    late = MemoryStore()
    for height in heights:
        late.write(indices(world, height, late))
    assert dict(late.scan(INDICES)) == {
        key: value
        for key, value in world.store.scan(INDICES)
        if not key.startswith((TO_ERASE.places(), LOGS_TO_ERASE.places()))
    }


def test_a_place_that_cannot_be_read_is_written_anew(world: World) -> None:
    stranger = world.publication(actor("mallory"), "orders")
    world.order(stranger)
    right = place(world, stranger.digest)
    world.store.write([(RECEIPTS.place(stranger.digest), b"\xc1")])
    world.store.write(indices(world, world.height, world.store))
    assert place(world, stranger.digest) == right
