"""Who may not describe a topic is told nothing of it by refusals: they are those of a topic that does not exist (P27)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.application.world import ADMINS, Actor, Signed, World, actor

from parley.application.operations import Operation
from parley.model.receipts import BatchReceipt, Rejected
from parley.model.refusals import OK, PermissionDenied
from parley.modules.advertisements.operations import Advertise
from parley.modules.registry.operations import RevokeClient
from parley.modules.staging.operations import CommitStage
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import TopicExists, UnknownTopic

NAME = "secret"
RULE = 'role == "owner"'
OWNER, OUTSIDER, REVOKED = actor("owner"), actor("outsider", "insurer"), actor("revoked", "insurer")
STRANGER = actor("stranger", "insurer")  # never registered
FOREIGN = ADMINS["insurer"]
BOTH = ADMINS["laboratory"]  # an administrator who is a client as well

Question = Callable[[World, Actor], Signed]


def operation(asked: Operation) -> Question:
    return lambda world, who: world.control(who, asked)


QUESTIONS: dict[str, Question] = {
    "publish": lambda world, who: world.publication(who, NAME),
    "publish to a partition that there is not": lambda world, who: world.publication(who, NAME, partition=9),
    "stage": lambda world, who: world.staged(who, NAME),
    "commit": operation(CommitStage(NAME, bytes(16), 1, (bytes(32),))),
    "subscribe": operation(Subscribe(NAME, "a = 1")),
    "unsubscribe": operation(Unsubscribe(NAME, "a = 1")),
    "advertise": operation(Advertise(NAME, "beds")),
    "withdraw": operation(Advertise(NAME, "")),
    "alter": operation(AlterTopic(NAME, 2, None, None, None)),
    "alter to fewer": operation(AlterTopic(NAME, 1, None, None, None)),
    "delete": operation(DeleteTopic(NAME)),
}


def world_with(topic: str, partitions: int = 3) -> World:
    """With a topic of that name that only its owner may know of, held by its owner's subscription."""
    world = World()
    world.client("owner", role="owner")
    for who in (OUTSIDER, REVOKED, BOTH):
        world.client(who.name, who.organisation)
    world.do(FOREIGN, RevokeClient("revoked"))
    world.topic(topic, partitions=partitions, publish=RULE, subscribe=RULE)
    assert world.do(OWNER, Subscribe(topic, "a = 1")).code == OK
    return world


def refusal(world: World, who: Actor, question: Question) -> Rejected:
    receipt = world.order_one(question(world, who))
    assert receipt.rejected is not None
    return receipt.rejected


@pytest.mark.parametrize("who", [OUTSIDER, REVOKED, STRANGER, FOREIGN, BOTH], ids=lambda who: who.name)
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_refusal_does_not_tell_a_hidden_topic_from_none(question: Question, who: Actor) -> None:
    hidden, deleted, none = world_with(NAME), world_with(NAME), world_with("another")
    assert deleted.do(ADMINS["hospital-a"], DeleteTopic(NAME)).code == OK
    said = refusal(none, who, question)
    assert refusal(hidden, who, question) == said
    assert refusal(deleted, who, question) == said


@pytest.mark.parametrize("who", [FOREIGN, BOTH], ids=lambda who: who.organisation)
@pytest.mark.parametrize("deleted", [False, True])
def test_that_a_name_is_taken_is_all_that_a_creator_learns(who: Actor, deleted: bool) -> None:
    world = world_with(NAME)
    if deleted:
        assert world.do(ADMINS["hospital-a"], DeleteTopic(NAME)).code == OK
        world.wait(2)
    said = refusal(world, who, operation(CreateTopic(NAME, 1, Policy(), "", "")))
    assert (said.code, said.reason, said.fields) == (
        TopicExists.code,
        "taken",
        (("topic", NAME),),
    )


def test_those_who_may_know_of_a_topic_are_told_why() -> None:
    """The rule is for those who may describe the topic, and so is whose it is."""
    world = world_with("another")
    world.topic(NAME, partitions=3, publish="", subscribe=RULE)
    refused = refusal(world, OUTSIDER, QUESTIONS["subscribe"])
    assert dict(refused.fields) == {"action": "subscribe", "rule": RULE, "topic": NAME}
    assert refusal(world, BOTH, QUESTIONS["delete"]).code == PermissionDenied.code
    taken = refusal(world, BOTH, operation(CreateTopic(NAME, 1, Policy(), "", "")))
    assert dict(taken.fields) == {"organisation": "hospital-a", "topic": NAME}
    assert refusal(world, FOREIGN, QUESTIONS["delete"]).code == UnknownTopic.code


def test_who_loses_a_topic_ends_what_it_has_there_all_the_same() -> None:
    world = world_with(NAME)
    assert world.do(OWNER, Advertise(NAME, "beds")).code == OK
    altered = AlterTopic(NAME, None, None, "org == 'insurer'", "org == 'insurer'")
    assert world.do(ADMINS["hospital-a"], altered).code == OK
    assert world.do(OWNER, Subscribe(NAME, "a = 1")).code == UnknownTopic.code
    for ending in (Unsubscribe(NAME, "a = 1"), Advertise(NAME, "")):
        assert world.do(OWNER, ending).code == OK
        assert world.do(OWNER, ending).code == UnknownTopic.code


# Operations of one client: about half of what one block has room for, if each of them does nothing.
CROWD = 30


def crowd(world: World, who: Actor, asked: Operation) -> list[BatchReceipt]:
    """The receipts of the operation so many times in one block."""
    return world.order(
        *(world.control(who, asked, session=number.to_bytes(16, "big")) for number in range(CROWD))
    )


@pytest.mark.parametrize("who", [OUTSIDER, FOREIGN, BOTH], ids=lambda who: who.name)
@pytest.mark.parametrize(
    "asked",
    [
        Subscribe(NAME, "a = 1"),
        Unsubscribe(NAME, "a = 1"),
        AlterTopic(NAME, 64, None, None, None),
        DeleteTopic(NAME),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_what_fits_in_a_block_does_not_tell_a_hidden_topic_from_none(asked: Operation, who: Actor) -> None:
    def refusals(topic: str) -> list[Rejected | None]:
        world = world_with(topic, partitions=64)
        return [receipt.rejected for receipt in crowd(world, who, asked)]

    assert refusals(NAME) == refusals("another")


def test_what_fits_in_a_block_does_not_tell_what_others_subscribe_to() -> None:
    """The one that asks may publish on the topic, not subscribe to it."""

    def refusals(constraint: str) -> list[Rejected | None]:
        world = world_with("another")
        world.topic(NAME, partitions=64, publish="", subscribe=RULE)
        assert world.do(OWNER, Subscribe(NAME, constraint)).code == OK
        return [receipt.rejected for receipt in crowd(world, OUTSIDER, Subscribe(NAME, "a = 1"))]

    assert refusals("a = 1") == refusals("a = 2")
