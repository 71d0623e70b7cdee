"""What was executed is counted for those who watch: by block, for a bounded number of topics."""

from __future__ import annotations

from tests.pubsub.world import World, actor, tagged

from parley.model.errors import Code
from parley.model.operations import Subscribe
from parley.model.receipts import BatchReceipt, Published
from parley.pubsub.executed import MAX_TOPICS, Executed

ALICE = actor("alice")


def test_batches_publications_bytes_matches_and_subscriptions_are_counted() -> None:
    world = World()
    executed = world.application.executed
    found = [world.application.subscriptions]  # nothing was executed yet
    world.topic("orders", partitions=1)
    world.client("alice")
    found.append(world.application.subscriptions)
    world.do(ALICE, Subscribe("orders", "kind == 1"))
    found.append(world.application.subscriptions)
    assert found == [None, 0, 1]
    before = executed.batches[Code.OK]
    batch = world.publication(ALICE, "orders", tagged(kind=1), tagged(kind=2), tagged(kind=1))
    world.order(batch)
    world.order(batch)
    world.publish(ALICE, "nothing", tagged(), tagged())
    assert (executed.publications, executed.bytes, executed.matches) == (3, len(batch.body), 2)
    assert executed.batches[Code.OK] == before + 1
    assert (executed.batches[Code.DUPLICATE], executed.batches[Code.UNKNOWN_TOPIC]) == (1, 1)
    assert executed.topics == {"orders": 3}


def test_a_staged_batch_is_one_batch_and_counts_as_published_when_it_is_numbered() -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    executed = world.application.executed
    batch = world.staged(ALICE, "orders", tagged(), tagged())
    before = executed.batches[Code.OK]
    world.order(batch)
    assert (executed.batches[Code.OK], executed.publications, executed.bytes) == (before + 1, 0, 0)
    world.order(world.commit(ALICE, "orders", 0, batch))
    assert executed.batches[Code.OK] == before + 2
    assert (executed.publications, executed.bytes, executed.topics) == (2, len(batch.body), {"orders": 2})


def test_topics_beyond_the_limit_are_counted_together() -> None:
    executed = Executed()
    for topic in range(MAX_TOPICS + 5):
        for _ in range(2):
            receipt = BatchReceipt(bytes(32), bytes(32), "a/b", f"t-{topic}", 0, 3, Published(0))
            executed.block([receipt], {bytes(32): 10})
    assert len(executed.topics) == MAX_TOPICS
    assert executed.of_other_topics == 5 * 2 * 3
    assert executed.topics.total() + executed.of_other_topics == executed.publications
