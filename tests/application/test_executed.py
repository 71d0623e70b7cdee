"""What was executed is counted for those who watch: by block, for a bounded number of topics."""

from __future__ import annotations

import gc

from tests.application.world import World, actor, tagged

from parley.application.executed import MAX_LABELS, Executed
from parley.model.refusals import DUPLICATE, OK
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.modules.subscriptions.matching import HEAD, LEAST
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.refusals import UnknownTopic

ALICE = actor("alice")


def test_batches_publications_bytes_matches_and_subscriptions_are_counted() -> None:
    world = World()
    executed = world.machine.executed
    found = [subscriptions(world)]  # nothing was executed yet
    world.topic("orders", partitions=1)
    world.client("alice")
    found.append(subscriptions(world))
    world.do(ALICE, Subscribe("orders", "kind == 1"))
    found.append(subscriptions(world))
    assert found == [None, 0, 1]
    before = executed.batches[OK]
    batch = world.publication(ALICE, "orders", tagged(kind=1), tagged(kind=2), tagged(kind=1))
    world.order(batch)
    world.order(batch)
    world.publish(ALICE, "nothing", tagged(), tagged())
    assert executed.totals == {
        "publications": 3,
        "publication_bytes": len(batch.body),
        "matches": 2,
        "comparisons": 2 * LEAST + HEAD,
    }
    assert executed.batches[OK] == before + 1
    assert (executed.batches[DUPLICATE], executed.batches[UnknownTopic.code]) == (1, 1)
    assert executed.labelled == {"publications": {"orders": 3}}


def test_a_staged_batch_is_one_batch_and_counts_as_published_when_it_is_numbered() -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    executed = world.machine.executed
    batch = world.staged(ALICE, "orders", tagged(), tagged())
    before = executed.batches[OK]
    world.order(batch)
    assert executed.batches[OK] == before + 1
    assert (executed.totals["publications"], executed.totals["publication_bytes"]) == (0, 0)
    world.order(world.commit(ALICE, "orders", 0, batch))
    assert executed.batches[OK] == before + 2
    assert executed.totals == {"publications": 2, "publication_bytes": len(batch.body), "matches": 0}
    assert executed.labelled == {"publications": {"orders": 2}}


def test_topics_beyond_the_limit_are_counted_together() -> None:
    executed = Executed()
    for topic in range(MAX_LABELS + 5):
        for _ in range(2):
            executed.add("publications", 3)
            executed.add_labelled("publications", f"t-{topic}", 3)
    topics = executed.labelled["publications"]
    assert len(topics) == MAX_LABELS
    assert executed.others["publications"] == 5 * 2 * 3
    assert topics.total() + executed.others["publications"] == executed.totals["publications"]


def subscriptions(world: World) -> int | None:
    """How many there are, as far as the broker knows."""
    derived = world.machine.derived
    return None if derived is None else len(derived[SUBSCRIPTION_INDEX])


def test_a_block_leaves_nothing_behind_for_the_collector_of_cycles() -> None:
    """A collection holds the loop, for as long as it takes to free all that blocks have left since the last one."""
    world = World()
    world.topic("orders")
    alice = world.client("alice")
    world.do(alice, Subscribe("orders", "a == 1"))
    staged = world.staged(alice, "orders", tagged(a=1))
    batches = [
        staged,
        world.commit(alice, "orders", 0, staged),
        world.publication(alice, "orders", tagged(a=1)),
    ]
    for batch in batches:
        world.machine.admit(batch.body)
    gc.collect()
    gc.disable()
    try:
        for batch in batches:
            world.apply_admitted(batch)
        assert gc.collect() == 0
    finally:
        gc.enable()
