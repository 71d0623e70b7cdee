"""What matching may cost: a batch is refused for its own cost only, and a full block decides nothing about the rest."""

from __future__ import annotations

from random import Random

import pytest
from tests.application.world import ADMIN, World, actor, mount, tagged

from parley.application.quotas import HELD
from parley.application.sequences import SEQUENCES
from parley.model.receipts import BatchReceipt, Rejected
from parley.model.refusals import OK, Busy, LimitExceeded, OutOfSequence
from parley.modules.publishing import budget
from parley.modules.publishing.receipts import Published
from parley.modules.subscriptions import matching
from parley.modules.subscriptions import rules as subscriptions
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX, SubscriptionIndex
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.tables import GUARDS, ORDER_HEADS
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.tables import HEADS

ALICE, BOB = actor("alice"), actor("bob")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(budget, "MAX_COMPARED_PER_BATCH", 30)
    monkeypatch.setattr(budget, "MAX_COMPARED_PER_BLOCK", 45)
    world = World()
    world.topic("orders")
    world.client("alice")
    world.client("bob")
    world.do(ALICE, Subscribe("orders", "a = 1 and b != 1"))
    world.do(ALICE, Subscribe("orders", "c != 1"))
    return world


def refused(receipt: BatchReceipt) -> Rejected:
    assert receipt.rejected is not None
    return receipt.rejected


def test_a_batch_that_asks_too_much_is_refused_for_good(world: World) -> None:
    before = world.table(ORDER_HEADS), world.table(HEADS)
    batch = world.publication(BOB, "orders", *[tagged(a=1, b=1, c=1)] * 6)  # matches nothing
    receipt = world.order_one(batch)
    assert (receipt.code, refused(receipt).next_sequence) == (LimitExceeded.code, 6)
    assert "split the batch" in refused(receipt).detail
    assert (world.table(ORDER_HEADS), world.table(HEADS)) == before
    assert batch.digest in world.outcomes[-1].settled


def test_a_batch_that_others_leave_no_room_for_is_put_off_and_applied_later(world: World) -> None:
    first = world.publication(ALICE, "orders", *[tagged(a=1)] * 5)
    late, next_of_late = (world.publication(BOB, "orders", *[tagged(a=1)] * size) for size in (3, 1))
    small = world.publication(ALICE, "orders", *[tagged(a=2)] * 5)
    before = len(world.table(SEQUENCES))
    receipts = world.order(first, late, next_of_late, small)
    assert [receipt.code for receipt in receipts] == [OK, Busy.code, OutOfSequence.code, OK]
    assert refused(receipts[1]).next_sequence == 0
    assert world.outcomes[-1].settled == {first.digest, small.digest}
    assert len(world.table(SEQUENCES)) == before + 1  # alice's
    assert [receipt.outcome for receipt in world.order(late, next_of_late)] == [Published(10), Published(13)]


def test_the_first_batch_of_a_block_has_room(world: World) -> None:
    batches = [world.publication(BOB, "orders", *[tagged(a=1)] * 5) for _ in range(4)]
    for position in range(4):
        codes = [receipt.code for receipt in world.order(*batches[position:])]
        assert codes == [OK, Busy.code, OutOfSequence.code, OutOfSequence.code][: 4 - position]


def test_a_put_off_batch_leaves_nothing_in_the_state(world: World) -> None:
    world.publish(BOB, "orders", tagged(z=1))
    fills = [world.publication(ALICE, "orders", *[tagged(a=1)] * size) for size in (5, 2)]
    late = world.publication(BOB, "orders", tagged(a=1))
    copy = world.store.copy()
    block = world.next_block(fills)
    without = mount(world.genesis)[0].apply(block, [(batch.digest, batch.body) for batch in fills], copy)
    assert [receipt.code for receipt in world.order(*fills, late)] == [OK, OK, Busy.code]
    assert world.root == without.state_root


def test_a_batch_costs_the_same_at_a_broker_that_was_restarted() -> None:
    world, random = World(), Random(7)
    world.topic("orders", partitions=2)
    world.client("alice")
    texts = [
        f"a == {random.randrange(3)} and b in [{random.randrange(9)}, {random.randrange(9)}] and c == {number}"
        for number in range(40)
    ]
    live = set[str]()
    for _ in range(150):
        text = random.choice(texts)
        operation = Unsubscribe("orders", text) if text in live else Subscribe("orders", text)
        assert world.do(ALICE, operation).code == OK
        live ^= {text}
    assert world.machine.derived is not None
    lived = world.machine.derived[SUBSCRIPTION_INDEX].of_topic("orders")
    loaded = SubscriptionIndex.load(world.store).of_topic("orders")
    assert lived is not None
    assert loaded is not None
    assert lived._guards == loaded._guards
    for _ in range(50):
        tags = {name: random.randrange(40) for name in "abc"}
        assert lived.cost(tags) == loaded.cost(tags)
        assert lived.match(tags) == loaded.match(tags)
    assert len(world.table(GUARDS)) == len(live)
    assert world.do(ADMIN, AlterTopic("orders", 3, None, None, None)).code == OK
    for text in sorted(live):
        world.do(ALICE, Unsubscribe("orders", text))
    assert not world.table(GUARDS)


def test_a_topic_has_limited_room_for_constraints_that_many_messages_must_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (matching, subscriptions):
        monkeypatch.setattr(module, "MAX_UNGUARDED", 2)
        monkeypatch.setattr(module, "MAX_WAITING", 3)
    world = World()
    world.topic("orders")
    world.client("alice")
    world.client("bob")
    for text in ("a != 1", "a != 2", "a = 1", "a = 1 and b != 1", "a = 1 and b != 2"):
        assert world.do(ALICE, Subscribe("orders", text)).code == OK
    before = world.table(ORDER_HEADS), world.table(GUARDS), world.table(HELD)
    for text, what in (("a != 3", "without an equality"), ("a in [1, 2]", "the same tag")):
        receipt = world.do(BOB, Subscribe("orders", text))
        assert (receipt.code, what in refused(receipt).detail) == (LimitExceeded.code, True)
    assert (world.table(ORDER_HEADS), world.table(GUARDS), world.table(HELD)) == before
    for text in ("a != 1", "a = 1", "a = 1 and b = 1"):  # one that is there costs nothing; another tag helps
        assert world.do(BOB, Subscribe("orders", text)).code == OK
