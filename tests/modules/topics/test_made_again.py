"""What was meant for a topic that was deleted does nothing to another one that is made under its name (P3)."""

from __future__ import annotations

from itertools import product

import pytest
from tests.application.world import ADMIN, WRITER, World, actor, tagged

from parley.application.sequences import SEQUENCES
from parley.model.batches import NO_TOPIC
from parley.model.names import Position
from parley.model.receipts import Duplicate
from parley.model.refusals import OK, OutOfSequence, SequenceReused, class_of
from parley.modules.publishing.receipts import Published
from parley.modules.staging.operations import CommitStage
from parley.modules.staging.receipts import is_staged
from parley.modules.staging.refusals import NotStaged
from parley.modules.staging.tables import COMMITTING, STAGED, STAGES
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.subscriptions.tables import CONSTRAINTS, SUBSCRIPTIONS
from parley.modules.topics.operations import DeleteTopic
from parley.modules.topics.refusals import TopicReplaced, UnknownTopic
from parley.modules.topics.tables import HEADS

ALICE, BOB = actor("alice"), actor("bob")
SECRET = 'role == "nurse"'


@pytest.fixture
def world() -> World:
    world = World()
    world.client("alice")
    world.client("bob", role="nurse")
    world.topic("orders")
    return world


def make_again(world: World, rule: str = "") -> tuple[Position, Position]:
    """The ids of the old topic and the new one."""
    old = world.topic_id("orders")
    assert world.do(ADMIN, DeleteTopic("orders")).code == OK
    world.wait(1)
    world.topic("orders", publish=rule, subscribe=rule)
    return old, world.topic_id("orders")


def end(world: World) -> int:
    head = world.record(HEADS, "orders", 0)
    assert head is not None
    return head.next_offset


# -- publications --------------------------------------------------------------------------------------------------------


def test_a_publication_for_the_old_topic_is_refused_and_uses_up_nothing(world: World) -> None:
    first = world.publication(ALICE, "orders", tagged(a=1))
    assert world.order_one(first).code == OK
    late = world.publication(ALICE, "orders", tagged(a=2))
    old, new = make_again(world)
    before = world.table(SEQUENCES)
    receipt = world.order_one(late)
    assert receipt.code == TopicReplaced.code
    assert receipt.rejected is not None
    assert receipt.rejected.next_sequence == 1
    said = dict(receipt.rejected.fields)
    assert (said["topic_id"], said["present"]) == ("{}.{}".format(*old), "{}.{}".format(*new))
    assert (receipt.topic_id, end(world)) == (old, 1)
    assert world.table(SEQUENCES) == before
    assert world.order_one(world.publication(ALICE, "orders", tagged(a=2))).outcome == Published(1)


def test_it_is_refused_for_good_however_early_or_late_it_comes(world: World) -> None:
    """Nothing is kept to be ordered again: no state can make it valid."""
    for _ in range(2):
        world.publish(ALICE, "orders")
    old, _ = make_again(world)
    for sequence in (0, 2, 7):
        batch = world.publication(ALICE, "orders", tagged(a=9), topic_id=old, sequence=sequence)
        for _ in range(2):
            receipt = world.order_one(batch)
            assert receipt.code == TopicReplaced.code
            assert batch.digest in world.outcomes[-1].settled
    assert class_of(TopicReplaced.code).final


def test_what_was_published_before_is_still_known(world: World) -> None:
    batch = world.publication(ALICE, "orders")
    assert world.order_one(batch).code == OK
    here = (world.height, 0)
    make_again(world)
    assert world.order_one(batch).outcome == Duplicate(here)
    assert end(world) == 1


def test_the_new_topic_has_sequences_of_its_own(world: World) -> None:
    for _ in range(3):
        world.publish(ALICE, "orders")
    _, new = make_again(world)
    begin = world.publication(ALICE, "orders", topic_id=new, sequence=0)
    assert world.order_one(begin).outcome == Published(3)
    gap = world.publication(ALICE, "orders", topic_id=new, sequence=3)
    assert world.order_one(gap).code == OutOfSequence.code
    again = world.publication(ALICE, "orders", tagged(a=1), topic_id=new, sequence=0)
    assert world.order_one(again).code == SequenceReused.code


def test_a_batch_of_an_id_that_no_topic_has_yet_takes_its_turn(world: World) -> None:
    """Or it could be ordered again when a topic is made just there, although it was refused for good."""
    there = (world.height + 9, 0)
    batch = world.publication(ALICE, "orders", topic_id=there)
    receipt = world.order_one(batch)
    assert receipt.code == UnknownTopic.code
    assert receipt.rejected is not None
    assert receipt.rejected.next_sequence == 1
    assert world.do(ADMIN, DeleteTopic("orders")).code == OK
    world.wait(there[0] - world.height - 1)
    world.topic("orders")
    assert world.topic_id("orders") == there
    assert isinstance(world.order_one(batch).outcome, Duplicate)
    assert end(world) == 0


# -- staging -------------------------------------------------------------------------------------------------------------


def test_a_staged_batch_for_the_old_topic_is_refused(world: World) -> None:
    old, _ = make_again(world)
    batch = world.staged(ALICE, "orders", topic_id=old)
    for _ in range(2):
        assert world.order_one(batch).code == TopicReplaced.code
    assert not world.table(STAGED)


def test_a_commit_for_the_old_topic_commits_nothing_and_uses_up_no_stage(world: World) -> None:
    batch = world.staged(ALICE, "orders")
    assert is_staged(world.order_one(batch))
    old, _ = make_again(world)
    assert world.order_one(world.commit(ALICE, "orders", 0, batch, topic_id=old)).code == TopicReplaced.code
    assert not world.table(STAGES)
    assert not world.table(COMMITTING)
    assert end(world) == 0
    fresh = world.staged(ALICE, "orders")
    world.order(fresh)
    assert world.order_one(world.commit(ALICE, "orders", 0, batch, fresh)).code == NotStaged.code
    assert world.order(world.commit(ALICE, "orders", 0, fresh))[0].code == OK


def test_a_writer_begins_anew_with_the_new_topic_and_an_old_commit_is_known(world: World) -> None:
    batch = world.staged(ALICE, "orders", stage=5)
    world.order(batch)
    commit = world.commit(ALICE, "orders", 5, batch)
    world.order(commit)
    here = (world.height, 0)
    old, _ = make_again(world)
    repeated = world.commit(ALICE, "orders", 5, batch, topic_id=old)
    assert world.order_one(repeated).outcome == Duplicate(here)
    other = world.staged(ALICE, "orders", tagged(a=7), stage=5)
    world.order(other)
    assert world.order(world.commit(ALICE, "orders", 5, other))[0].code == OK


# -- subscriptions -------------------------------------------------------------------------------------------------------


def test_a_subscription_to_the_old_topic_is_none_to_the_new_one(world: World) -> None:
    assert world.do(ALICE, Subscribe("orders", "a = 1")).code == OK
    old, new = make_again(world)
    assert world.do(ALICE, Subscribe("orders", "a = 1", old)).code == TopicReplaced.code
    assert not world.table(SUBSCRIPTIONS)
    assert not world.table(CONSTRAINTS)
    assert world.do(ALICE, Subscribe("orders", "a = 1", new)).code == OK
    assert world.do(ALICE, Subscribe("orders", "a = 1", (new[0] + 9, 0))).code == UnknownTopic.code


def test_leaving_the_old_topic_does_not_end_a_subscription_to_the_new_one(world: World) -> None:
    old, new = make_again(world)
    assert world.do(ALICE, Subscribe("orders", "a = 1")).code == OK
    assert world.do(ALICE, Unsubscribe("orders", "a = 1", old)).code == TopicReplaced.code
    assert len(world.table(SUBSCRIPTIONS)) == 1
    assert world.do(ALICE, Unsubscribe("orders", "a = 1", new)).code == OK
    assert world.do(ALICE, Unsubscribe("orders", "a = 1", new)).code == NotSubscribed.code


def test_an_operation_that_is_refused_takes_its_turn_among_the_operations(world: World) -> None:
    """Later ones that its client has signed already are not held up by it."""
    old, new = make_again(world)
    first = world.control(ALICE, Subscribe("orders", "a = 1", old))
    second = world.control(ALICE, Subscribe("orders", "a = 1", new))
    assert [one.code for one in world.order(first, second)] == [TopicReplaced.code, OK]


# -- what is told --------------------------------------------------------------------------------------------------------


def test_who_may_not_know_of_the_new_topic_is_told_the_same_as_if_there_were_none(world: World) -> None:
    """The same codes, fields and sequences, whatever id is named: also that of the new topic."""
    old, new = make_again(world, SECRET)
    ids = (old, new, NO_TOPIC, (new[0] + 9, 0))
    for number, (name, topic_id) in enumerate(product(("orders", "nothing"), ids)):
        session = bytes([number]) * 16
        operations = (
            Subscribe(name, "a = 1", topic_id),
            Unsubscribe(name, "a = 1", topic_id),
            CommitStage(name, WRITER, 0, (), topic_id=topic_id),
        )
        asked = (
            world.publication(ALICE, name, topic_id=topic_id, session=session),
            world.staged(ALICE, name, topic_id=topic_id),
            *(world.control(ALICE, one, session=session) for one in operations),
        )
        told = [receipt.rejected for receipt in world.order(*asked)]
        assert [(one.code, one.fields, one.next_sequence) for one in told if one is not None] == [
            (UnknownTopic.code, (("topic", name),), sequence) for sequence in (1, 0, 1, 2, 3)
        ]
    assert world.order_one(world.publication(BOB, "orders", topic_id=old)).code == TopicReplaced.code
