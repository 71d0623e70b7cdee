"""What brokers look up: every place that the indices name holds what they say, and none of it is in the state root."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pubsub.histories import History
from tests.pubsub.world import ADMIN, Memory, World, actor, registration, tagged

from parley.ledger.indices import (
    TO_ERASE,
    BatchPlace,
    LeafPlace,
    ReceiptPlace,
    decode_place,
    offset_key,
    offset_prefix,
    order_key,
    order_prefix,
    receipt_key,
)
from parley.model.errors import Code
from parley.model.operations import RevokeClient, Subscribe, Unsubscribe
from parley.model.receipts import BatchReceipt, Closed, Leaf, Match, Published, Staged
from parley.pubsub.indexing import places

ALICE = actor("alice")


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders")
    world.client("alice")
    return world


def place(world: World, digest: bytes) -> ReceiptPlace | None:
    value = world.store.get(receipt_key(digest))
    return None if value is None else decode_place(ReceiptPlace, value)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_leaf_of_every_history_is_found(seed: int) -> None:
    history = History(seed)
    world = history.world
    final: dict[bytes, ReceiptPlace] = {}
    for batches, time in history.blocks(20):
        for position, leaf in enumerate(world.apply(*batches, time=time)):
            here = (world.height, position)
            match leaf:
                case BatchReceipt(outcome=Published(first)):
                    value = world.store.get(offset_key(leaf.topic, leaf.partition, first))
                    assert value is not None
                    assert decode_place(BatchPlace, value) == BatchPlace(*here, leaf.digest, leaf.count)
                case Match() | Closed():
                    ps = leaf.first_ps if isinstance(leaf, Match) else leaf.final_ps
                    name = (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation)
                    value = world.store.get(order_key(*name, ps))
                    assert value is not None
                    assert decode_place(LeafPlace, value) == LeafPlace(*here)
                case _:
                    pass
            if isinstance(leaf, BatchReceipt) and leaf.code not in (
                Code.OUT_OF_SEQUENCE,
                Code.EXPIRED,
                Code.DUPLICATE,
            ):
                outcome = leaf.outcome
                offset = outcome.first_offset if isinstance(outcome, Published) else None
                staged = isinstance(outcome, Staged)
                found = ReceiptPlace(*here, final=True, first_offset=offset, staged=staged)
                before = final.setdefault(leaf.digest, found)
                # A staged batch may have been refused before, and is numbered later.
                if leaf.code is Code.OK and (before.staged, staged) != (True, True):
                    final[leaf.digest] = found
    for digest, expected in final.items():
        assert place(world, digest) == expected


def test_offsets_and_orders_are_in_key_order(world: World) -> None:
    world.do(ALICE, Subscribe("orders", ""))
    incarnation = (world.height, 0)
    for _ in range(300):
        world.publish(ALICE, "orders", tagged(), tagged())
    constraint = next(iter(world.entries(b"sub/")))[-64:-32]
    for prefix in (offset_prefix("orders", 0), order_prefix("orders", 0, constraint, incarnation)):
        firsts = [int.from_bytes(key[len(prefix) :], "big") for key, _ in world.store.scan(prefix)]
        assert firsts == list(range(0, 600, 2))


def test_a_place_changes_until_it_is_final(world: World) -> None:
    later = world.publication(ALICE, "orders", sequence=1)
    for _ in range(2):
        world.order(later)
        assert place(world, later.digest) == ReceiptPlace(world.height, 0, final=False)
    world.order(world.publication(ALICE, "orders", sequence=0))
    world.order(later)
    here = ReceiptPlace(world.height, 0, final=True, first_offset=1)
    world.order(later)
    assert place(world, later.digest) == here


def test_what_was_final_does_not_expire(world: World) -> None:
    batch = world.publication(ALICE, "orders", not_after=world.height + 1)
    world.order(batch)
    here = place(world, batch.digest)
    assert world.order_one(batch).code == Code.EXPIRED
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
    assert found == [ReceiptPlace(world.height, i, final=True) for i in range(3)]
    world.order(revoked, stranger, reused)
    assert [place(world, batch.digest) for batch in (reused, stranger, revoked)] == found


def test_of_a_staged_batch_the_receipt_that_numbers_it_is_found_then_the_one_that_stages_it(
    world: World,
) -> None:
    batch = world.staged(ALICE, "late")
    world.order(batch)
    assert place(world, batch.digest) == ReceiptPlace(world.height, 0, final=True)
    world.topic("late")
    world.order(batch)
    here = ReceiptPlace(world.height, 0, final=True, staged=True)
    world.order(batch)
    assert place(world, batch.digest) == here
    world.order(world.commit(ALICE, "late", 0, batch))
    numbered = ReceiptPlace(world.height, 1, final=True, first_offset=0)
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
        assert len(list(places(world.height, leaves, Memory()))) == count
        assert leaves.walks <= 2


def test_a_commit_that_repeats_another_finds_its_own_receipt(world: World) -> None:
    world.order(world.commit(ALICE, "orders", 0))
    again = world.commit(ALICE, "orders", 0)
    assert world.order_one(again).code is Code.DUPLICATE
    assert place(world, again.digest) == ReceiptPlace(world.height, 0, final=False)


def test_an_order_that_begins_again_is_indexed_apart(world: World) -> None:
    world.do(ALICE, Subscribe("orders", ""))
    world.do(ALICE, Unsubscribe("orders", ""))
    world.do(ALICE, Subscribe("orders", ""))
    world.publish(ALICE, "orders")
    assert len(list(world.store.scan(b"ip"))) == 2


def test_indices_are_no_part_of_the_state(world: World) -> None:
    world.do(ADMIN, registration(world.chain, actor("bob")))
    world.publish(ALICE, "orders")
    without = world.store.copy()
    without.write([(key, None) for key, _ in world.store.scan(b"i")])
    batch = world.publication(ALICE, "orders")
    block = world.next_block([batch])
    first = world.application.apply(block, [(batch.digest, batch.body)], without)
    world.application.admit(batch.body)
    world.order(batch)
    assert first.state_root == world.root


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_a_broker_that_gets_old_blocks_late_has_the_same_places(seed: int, order: Random) -> None:
    history = History(seed)
    world = history.world
    for batches, time in history.blocks(15):
        world.apply(*batches, time=time)
    heights = list(range(1, world.height + 1))
    order.shuffle(heights)
    late = Memory()
    for height in heights:
        late.write(world.application.indices(height, world.outcomes[height - 1].leaves, late))
    assert dict(late.scan(b"i")) == {
        key: value for key, value in world.store.scan(b"i") if not key.startswith(TO_ERASE)
    }


def test_a_place_that_cannot_be_read_is_written_anew(world: World) -> None:
    stranger = world.publication(actor("mallory"), "orders")
    world.order(stranger)
    right = place(world, stranger.digest)
    world.store.write([(receipt_key(stranger.digest), b"\xc1")])
    world.store.write(world.application.indices(world.height, world.outcomes[-1].leaves, world.store))
    assert place(world, stranger.digest) == right
