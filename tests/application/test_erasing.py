"""Which bodies are to be kept and which are to be erased: all that a log has left behind, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.histories import History
from tests.application.world import ADMIN, Signed, World, actor, mount, tagged

from parley.application.keeping import RECEIPTS, TO_ERASE
from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.ledger.bodies import GRACE, REFUSED_KEPT, kept_batches
from parley.model.receipts import BatchReceipt, encode_leaf
from parley.model.refusals import DUPLICATE, OK, Expired
from parley.modules.publishing.receipts import first_offset
from parley.modules.publishing.tables import OFFSETS
from parley.modules.retention.tables import LOGS_TO_ERASE, LogToErase
from parley.modules.staging.receipts import is_staged
from parley.modules.staging.refusals import StageOver
from parley.modules.staging.tables import STAGED
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import DeleteTopic
from parley.modules.topics.tables import HEADS
from parley.store.memory import MemoryStore

ALICE = actor("alice")
LISTS = (TO_ERASE.places(), LOGS_TO_ERASE.places())


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2, retention=1_000)
    world.client("alice")
    return world


def publish(world: World, count: int = 1, *, partition: int = 0) -> list[Signed]:
    """Batches of two messages, in a block each, a granule apart."""
    batches = [
        world.publication(ALICE, "orders", tagged(n=i), tagged(), partition=partition) for i in range(count)
    ]
    for batch in batches:
        world.apply(batch, time=world.time + 100)
    return batches


def erase(world: World, limit: int = 100) -> list[bytes]:
    """What one round of a caretaker erases."""
    erasure = world.keeper.erase(world.store, world.height, limit)
    assert len(erasure.batches) <= limit
    assert all(key.startswith(LISTS) for key, _ in erasure.writes)
    world.store.write(erasure.writes)
    return list(erasure.batches)


def to_do(world: World) -> list[bytes]:
    return [key for prefix in LISTS for key, _ in world.store.scan(prefix)]


def names(batches: list[Signed]) -> list[bytes]:
    return [batch.digest for batch in batches]


def kept(world: World) -> set[bytes]:
    """The batches of which some receipt says that their body is to be kept."""
    leaves = [leaf for outcome in world.outcomes for leaf in outcome.leaves]
    found = [(DATA_SHARD.decode_leaf(leaf), world.keeper.keeps(leaf, world.store)) for leaf in leaves]
    assert not any(keep for leaf, keep in found if not isinstance(leaf, BatchReceipt))
    return {leaf.digest for leaf, keep in found if isinstance(leaf, BatchReceipt) and keep}


def test_nothing_is_erased_before_its_log_starts_behind_it(world: World) -> None:
    publish(world, 3)
    world.wait(2 * GRACE)
    assert not to_do(world)
    assert not erase(world)


def test_what_a_log_leaves_behind_is_erased_some_blocks_later(world: World) -> None:
    batches = publish(world, 3)
    first = publish(world, 1, partition=1)
    world.apply(time=batches_end(world) - 200)
    world.wait(GRACE - 1)
    assert not erase(world)
    world.wait(1)
    assert erase(world) == names(batches[:2])
    world.apply(time=world.time + 1_000)
    world.wait(GRACE)
    assert erase(world) == names([*batches[2:], *first])
    assert not erase(world)
    assert not to_do(world)


def batches_end(world: World) -> int:
    """When everything that was published until now has ended."""
    return world.time + 1_000 + 63


def test_repeated_calls_finish_whatever_the_limit(world: World) -> None:
    batches = [*publish(world, 5), *publish(world, 4, partition=1)]
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    erased = []
    while found := erase(world, 3):
        erased += found
    assert erased == names(batches)
    assert not to_do(world)


def test_a_log_that_moves_on_while_it_is_listed_is_erased_to_its_end(world: World) -> None:
    batches = publish(world, 30)
    for _ in range(3 * GRACE):
        world.apply(time=world.time + 100)
    erased = erase(world)
    assert 0 < len(erased) < 30
    assert len(to_do(world)) == 1
    world.wait(GRACE - 1)
    assert not erase(world)  # what came since waits in its turn
    world.wait(1)
    erased += erase(world)
    assert erased == names(batches)
    assert not to_do(world)


def test_the_bodies_of_a_deleted_topic_are_erased(world: World) -> None:
    world.topic("notes")
    batch = world.publication(ALICE, "notes")
    world.order(batch)
    control = world.control(ADMIN, DeleteTopic("notes"))
    world.order(control)
    world.wait(GRACE)
    assert erase(world) == [batch.digest]
    assert control.digest in kept(world)
    assert batch.digest not in kept(world)


def test_a_broker_that_has_just_started_erases_what_it_would_have_erased(world: World) -> None:
    batches = publish(world)
    world.apply(time=batches_end(world))
    world.wait(GRACE - 1)
    world.machine, world.keeper = mount(world.genesis)
    assert not erase(world)
    world.wait(1)
    world.machine, world.keeper = mount(world.genesis)
    assert erase(world) == names(batches)


def test_what_the_index_lacks_is_waited_for(world: World) -> None:
    """As at a broker that fills in old blocks after a snapshot."""
    batches = publish(world, 3)
    other = publish(world, 1, partition=1)
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    key = OFFSETS.place("orders", 0, 2)
    value = world.store.get(key)
    world.store.write([(key, None)])
    assert erase(world) == names([batches[0], *other])
    assert not erase(world)
    world.store.write([(key, value)])
    assert erase(world) == names(batches[1:])
    assert not to_do(world)


def test_a_batch_that_is_kept_in_part_is_kept(world: World) -> None:
    publish(world)
    listed = (LOGS_TO_ERASE.place("orders", 0), encode_value(LogToErase(0, 1, 0)))
    world.store.write([listed])
    assert not erase(world)
    assert list(world.store.scan(LOGS_TO_ERASE.places())) == [listed]


def test_a_list_that_cannot_be_read_begins_anew(world: World) -> None:
    batches = publish(world, 3)
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    erase(world, 1)
    world.store.write([(LOGS_TO_ERASE.place("orders", 0), b"\xc1")])
    assert erase(world) == names(batches)
    assert not to_do(world)


def test_a_damaged_list_erases_nothing_that_the_log_still_has(world: World) -> None:
    batches = publish(world, 3)
    world.apply(time=batches_end(world) - 100)
    world.wait(GRACE)
    world.store.write([(LOGS_TO_ERASE.place("orders", 0), encode_value(LogToErase(0, 2**40, 0)))])
    assert erase(world) == names(batches[:2])
    assert not erase(world)
    assert batches[2].digest in kept(world)


def test_a_body_is_kept_for_the_receipt_that_decided_and_not_for_repeats(world: World) -> None:
    """When it may go is told by one block, or a body that is gone for one would be missing for the other."""
    refused = world.publication(ALICE, "nowhere", not_after=world.height + 5)
    first, again = world.order_one(refused), world.order_one(refused)
    world.wait(10)
    late = world.order_one(refused)
    assert (again.code, late.code) == (DUPLICATE, Expired.code)
    keeps = [world.keeper.keeps(encode_leaf(receipt), world.store) for receipt in (first, again, late)]
    assert keeps == [True, False, False]
    world.store.write([(RECEIPTS.place(refused.digest), None)])  # until it is known which one that is
    assert world.keeper.keeps(encode_leaf(late), world.store)


def test_a_body_that_comes_again_is_erased_again(world: World) -> None:
    (batch,) = publish(world)
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    assert erase(world) == [batch.digest]
    assert world.order_one(batch).code == DUPLICATE
    assert not erase(world)
    world.wait(GRACE)
    assert erase(world) == [batch.digest]
    assert not erase(world)
    assert batch.digest not in kept(world)


def test_bodies_that_come_again_and_again_do_not_keep_others_from_being_erased(world: World) -> None:
    first, second = sorted(publish(world, 2), key=lambda batch: batch.digest)
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    erase(world)
    world.order(first, second)
    world.wait(GRACE - 1)
    world.order(first)
    assert erase(world, 1) == [second.digest]


def test_a_body_that_comes_again_after_its_last_height_is_erased_again(world: World) -> None:
    batch = world.publication(ALICE, "orders", not_after=world.height + 1)
    world.order(batch)
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    assert erase(world) == [batch.digest]
    assert world.order_one(batch).code == Expired.code
    world.wait(GRACE)
    assert erase(world) == [batch.digest]


def test_only_what_was_published_and_is_over_need_not_be_kept(world: World) -> None:
    world.do(ALICE, Subscribe("orders", ""))
    early = world.publication(ALICE, "orders", sequence=1)
    world.order(early)
    refused = world.publication(ALICE, "orders", partition=7)
    stranger = world.publication(actor("mallory"), "orders")
    world.order(refused, stranger)
    published = [world.publication(ALICE, "orders", sequence=0), early]
    world.order(*published)
    everything = {batch.digest for _, batches in world.blocks for batch in batches}
    assert kept(world) == everything
    world.apply(time=batches_end(world))
    # The refusal of the one that came too early does not keep its body either.
    assert kept(world) == everything - set(names(published))


def test_what_was_staged_in_vain_is_erased_and_what_waits_or_was_numbered_is_not(world: World) -> None:
    batches = [
        world.staged(ALICE, "orders", tagged(n=n), stage=n // 2, not_after=world.height + 10)
        for n in range(6)
    ]
    world.order(*batches)
    assert kept(world) >= set(names(batches))
    world.order(world.commit(ALICE, "orders", 0, batches[0]))  # which drops the second
    world.order(world.commit(ALICE, "orders", 1, *batches[2:4]))
    world.wait(GRACE)
    assert erase(world) == [batches[1].digest]
    world.wait(20)  # the last two have expired
    assert set(erase(world)) == set(names(batches[4:]))
    assert kept(world).intersection(names(batches)) == {*names(batches[:1]), *names(batches[2:4])}
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    assert erase(world) == [batches[0].digest, *names(batches[2:4])]
    assert not kept(world).intersection(names(batches))
    assert not to_do(world)


def test_a_staged_body_that_comes_again_is_erased_again(world: World) -> None:
    lost, numbered = world.staged(ALICE, "orders"), world.staged(ALICE, "orders", tagged(n=1))
    world.order(lost, numbered)
    world.order(world.commit(ALICE, "orders", 0, numbered))
    world.apply(time=batches_end(world))
    world.wait(GRACE)
    assert set(erase(world)) == {lost.digest, numbered.digest}
    assert [receipt.code for receipt in world.order(lost, numbered)] == [StageOver.code] * 2
    world.wait(GRACE)
    assert set(erase(world)) == {lost.digest, numbered.digest}


@pytest.mark.parametrize("late", [False, True])
def test_a_staged_batch_that_comes_again_in_the_block_that_numbers_it_keeps_its_body(
    world: World, late: bool
) -> None:
    """A lying leader can order it again; the receipt of that says nothing about the body, however old it is."""
    batch = world.staged(ALICE, "orders")
    world.order(batch)
    commit = world.commit(ALICE, "orders", 0, batch)
    codes = [one.code for one in world.order(*((commit, batch) if late else (batch, commit)))]
    assert codes == ([OK, StageOver.code, OK] if late else [DUPLICATE, OK, OK])
    (block, _), outcome = world.blocks[-1], world.outcomes[-1]

    def is_kept() -> bool:
        highest = world.height + REFUSED_KEPT + 1
        return batch.digest in kept_batches(block, outcome.leaves, world.keeper, world.store, highest=highest)

    assert is_kept()
    world.apply(time=batches_end(world))
    assert not is_kept()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(1, 5))
def test_in_every_history_exactly_the_bodies_behind_the_start_are_erased(seed: int, limit: int) -> None:
    history = History(seed)
    world = history.world
    bodies: set[bytes] = set()
    for batches, time in history.blocks(25):
        bodies |= {batch.digest for batch in batches}
        world.apply(*batches, time=time)
        bodies -= set(erase(world, limit))
    for _ in range(40 * GRACE):  # as long as logs move on in the meantime
        if not to_do(world):
            break
        world.wait(1)
        bodies -= set(erase(world, limit))
    assert not to_do(world)
    behind = {receipt.digest for receipt in published(world) if is_behind(world, receipt)}
    over = behind | in_vain(world)
    assert bodies == {batch.digest for _, batches in world.blocks for batch in batches} - over
    assert kept(world) == bodies


def receipts(world: World) -> list[BatchReceipt]:
    leaves = [leaf for height in range(1, world.height + 1) for leaf in world.leaves(height)]
    return [leaf for leaf in leaves if isinstance(leaf, BatchReceipt)]


def published(world: World) -> list[BatchReceipt]:
    return [receipt for receipt in receipts(world) if first_offset(receipt) is not None]


def in_vain(world: World) -> set[bytes]:
    """What was staged, is not staged any more, and was never published."""
    staged = {receipt.digest for receipt in receipts(world) if is_staged(receipt)}
    still = {digest for (digest,) in world.table(STAGED)}
    return staged - still - {receipt.digest for receipt in published(world)}


def is_behind(world: World, receipt: BatchReceipt) -> bool:
    first = first_offset(receipt)
    head = world.record(HEADS, receipt.topic, receipt.partition)
    assert head is not None
    assert first is not None
    return first + receipt.count <= head.log_start_offset


def test_what_is_to_be_erased_is_no_part_of_the_state(world: World) -> None:
    publish(world, 2)
    world.apply(time=batches_end(world))
    assert to_do(world)
    without = MemoryStore()
    without.write((key, value) for key, value in world.store.scan(b"") if not key.startswith(LISTS))
    block = world.next_block([])
    other = mount(world.genesis)[0].apply(block, [], without)
    world.apply()
    assert other.state_root == world.root
