"""What matching may cost: a batch is refused for its own cost only, and a full block decides nothing about the rest."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from tests.application.world import ADMIN, World, actor, mount, tagged

from parley.application import exceeding
from parley.application.quotas import HELD
from parley.application.sequences import SEQUENCES
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.receipts import BatchReceipt, Rejected
from parley.model.refusals import OK, Busy, LimitExceeded
from parley.modules.publishing import budget
from parley.modules.publishing.receipts import Published
from parley.modules.subscriptions import matching
from parley.modules.subscriptions import rules as subscriptions
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX, SubscriptionIndex
from parley.modules.subscriptions.matching import HEAD, LEAST
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.tables import CONSTRAINTS, ORDER_HEADS
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.tables import HEADS

ALICE, BOB, CAROL = actor("alice"), actor("bob"), actor("carol")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(budget, "MAX_COMPARED", 2 * HEAD + 10 * LEAST)
    world = World()
    world.topic("orders")
    world.client("alice")
    world.client("bob")
    world.do(ALICE, Subscribe("orders", "a = 1 and b != 1"))
    world.do(ALICE, Subscribe("orders", "c != 1"))
    world.topic("quiet")
    world.client("carol")
    world.publish(CAROL, "quiet")
    for client in (ALICE, BOB):
        world.publish(client, "orders")
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(13))  # one for housekeeping, four for each of the three
    return world


def refused(receipt: BatchReceipt) -> Rejected:
    assert receipt.rejected is not None
    return receipt.rejected


def test_a_batch_that_asks_too_much_is_refused_for_good(world: World) -> None:
    before = world.table(ORDER_HEADS), world.table(HEADS)
    batch = world.publication(BOB, "orders", *[tagged(a=1, b=1, c=1)] * 6)  # matches nothing
    receipt = world.order_one(batch)
    assert (receipt.code, refused(receipt).next_sequence) == (LimitExceeded.code, 7)
    assert "split the batch" in refused(receipt).detail
    assert (world.table(ORDER_HEADS), world.table(HEADS)) == before
    assert batch.digest in world.outcomes[-1].settled


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch may take more than its share."""
    monkeypatch.setattr(
        exceeding, "allowed_from", lambda _, organisations: dict.fromkeys(organisations, 2**64 - 1)
    )


@pytest.mark.usefixtures("strict")
def test_a_batch_that_others_leave_no_room_for_is_put_off_and_applied_later(world: World) -> None:
    first = world.publication(ALICE, "orders", *[tagged(a=1)] * 5)
    late, next_of_late = (world.publication(BOB, "orders", *[tagged(a=1)] * size) for size in (3, 1))
    small = world.publication(ALICE, "orders", *[tagged(a=2)] * 5)
    before = world.table(SEQUENCES)
    quiet = world.publication(CAROL, "quiet")
    receipts = world.order(first, late, next_of_late, small, quiet)
    assert [(receipt.digest, receipt.code) for receipt in receipts] == [
        (quiet.digest, OK),  # within its client's share, the others within the organisation's
        (first.digest, OK),
        (small.digest, OK),
        (late.digest, Busy.code),
        (next_of_late.digest, Busy.code),
    ]
    assert refused(receipts[3]).next_sequence == refused(receipts[4]).next_sequence == 1
    assert world.outcomes[-1].settled == {first.digest, small.digest, quiet.digest}
    changed = dict(world.table(SEQUENCES).items() - before.items())
    assert {record.publisher for record in changed.values()} == {ALICE.key, CAROL.key}
    assert [receipt.outcome for receipt in world.order(late, next_of_late)] == [Published(12), Published(15)]


def test_what_takes_more_than_a_block_has_gets_through_as_often_as_the_share_of_its_organisation_allows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(2))
    batches, heights = [world.publication(BOB, "orders", *[tagged(a=1)] * 5) for _ in range(4)], list[int]()
    while batches:
        codes = [receipt.code for receipt in world.order(*batches)]
        assert set(codes[1:]) <= {Busy.code}
        if codes[0] == OK:
            heights.append(world.height)
            del batches[0]
    cost, share = 4, 1  # a share counts for one at least
    assert [after - before for before, after in pairwise(heights)] == [cost // share] * 3


@pytest.mark.usefixtures("strict")
def test_a_put_off_batch_leaves_nothing_in_the_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(12))
    fills = [world.publication(ALICE, "orders", *[tagged(a=1)] * 5), world.publication(CAROL, "quiet")]
    late = world.publication(BOB, "orders", *[tagged(a=1)] * 5)
    copy = world.store.frozen()
    block = world.next_block(fills)
    without = mount(world.genesis)[0].apply(block, [(batch.digest, batch.body) for batch in fills], copy)
    receipts = world.order(fills[0], late, fills[1])
    assert {receipt.digest for receipt in receipts if receipt.code == OK} == {one.digest for one in fills}
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
        assert lived.cost([(1, tags)]) == loaded.cost([(1, tags)])
        assert lived.match(tags) == loaded.match(tags)
    assert len(world.table(CONSTRAINTS)) == len(live)
    assert world.do(ADMIN, AlterTopic("orders", 3, None, None, None)).code == OK
    for text in sorted(live):
        world.do(ALICE, Unsubscribe("orders", text))
    assert not world.table(CONSTRAINTS)


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
    before = world.table(ORDER_HEADS), world.table(CONSTRAINTS), world.entries(HELD.prefix("subscriptions"))
    for text, what in (("a != 3", "without an equality"), ("a in [1, 2]", "the same tag")):
        receipt = world.do(BOB, Subscribe("orders", text))
        assert (receipt.code, what in refused(receipt).detail) == (LimitExceeded.code, True)
    assert (
        world.table(ORDER_HEADS),
        world.table(CONSTRAINTS),
        world.entries(HELD.prefix("subscriptions")),
    ) == before
    for text in ("a != 1", "a = 1", "a = 1 and b = 1"):  # one that is there costs nothing; another tag helps
        assert world.do(BOB, Subscribe("orders", text)).code == OK
