"""Reading by offset, and the network's records, from brokers any of which may lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Actor, actor
from tests.client.ledger import note
from tests.client.stage import TIMEOUTS, Lie, Stage, on_stage, on_stage_with

from parley.client.client import Client
from parley.client.errors import (
    NotFound,
    ParleyError,
    PermissionDenied,
    Pruned,
    Stalled,
    UnknownClient,
    UnknownPartition,
    UnknownTopic,
)
from parley.client.messages import Message
from parley.modules.publishing.proof import check_publication
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.operations import AlterTopic, DeleteTopic
from parley.modules.topics.tables import TOPICS
from parley.net.messages import Answer, Failure, Fetch, Fetched, Listed, ListKeys, Prove, Proven, Question

FIRST = "broker-hospital-a"


def publish(stage: Stage, *texts: str, rule: str = "") -> Actor:
    """Bob publishes to the first partition; Alice may read."""
    for name in ("alice", "bob"):
        if stage.ledger.record(CLIENTS, actor(name).key) is None:
            stage.registered(name)
    for text in texts:
        stage.apply(stage.ledger.publication(actor("bob"), "notes", note(text, rule)))
    return actor("alice")


async def texts(client: Client, **options: object) -> list[str]:
    return [message.text() async for message in client.fetch("notes", **options)]  # type: ignore[arg-type]


async def _next(messages: AsyncGenerator[Message, None]) -> Message:
    return await anext(messages)


def refusing(kind: type[Question], code: str) -> Lie:
    return lambda question, answer: (
        Failure(question.id, code, "so it says", ()) if isinstance(question, kind) else answer
    )


@on_stage
async def test_a_partition_is_read_from_where_one_likes(stage: Stage) -> None:
    alice = publish(stage, "a", "b", "c", "d")
    async with stage.client(alice) as client:
        assert await texts(client) == ["a", "b", "c", "d"]
        assert await texts(client, start=2) == ["c", "d"]
        assert await texts(client, start=1, count=2) == ["b", "c"]
        assert await texts(client, count=0) == []
        assert await texts(client, start="latest") == []
        assert await texts(client, partition=1) == []


@on_stage
async def test_following_waits_for_what_comes(stage: Stage) -> None:
    alice = publish(stage, "a")
    async with stage.client(alice) as client:
        messages = client.fetch("notes", follow=True)
        first = await anext(messages)
        waiting = asyncio.create_task(_next(messages))
        publish(stage, "b")
        assert [first.text(), (await waiting).text()] == ["a", "b"]
        await messages.aclose()


@on_stage
async def test_a_broker_that_does_not_wait_is_not_asked_without_end(stage: Stage) -> None:
    """Each answer is true: nothing was published since. Answers take no time here, and pauses grow."""
    alice = publish(stage, "a")

    async def at_once(*_: object) -> None: ...

    stage.until = at_once  # type: ignore[method-assign,assignment]
    async with stage.client(alice) as client:
        messages = client.fetch("notes", start=1, follow=True)
        waiting = asyncio.create_task(_next(messages))
        await asyncio.wait([waiting], timeout=1)
        asked = stage.asked("Fetch")
        publish(stage, "b")
        assert (await waiting).text() == "b"
        assert asked < 20
        await messages.aclose()


@on_stage
async def test_one_publication_comes_with_its_proof(stage: Stage) -> None:
    alice = publish(stage, "a", "b")
    async with stage.client(alice) as client:
        message = await client.read("notes", 1)
        check_publication(message.proof(), stage.ledger.trust)
        assert (message.text(), message.verified) == ("b", "certified")
        with pytest.raises(NotFound, match="offset 2 does not exist"):
            await client.read("notes", 2)


@on_stage
async def test_a_lie_leads_to_another_broker(stage: Stage) -> None:
    def truncate(_: Question, answer: Answer) -> Answer:
        return replace(answer, blocks=()) if isinstance(answer, Fetched) else answer

    alice = publish(stage, "a", "b")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = truncate
        assert await texts(client) == ["a", "b"]
        assert "none from 0 on is shown" in client.misbehaviour[0].problem


@on_stage
async def test_a_false_refusal_contradicts_the_brokers_own_proof(stage: Stage) -> None:
    alice = publish(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = refusing(Fetch, PermissionDenied.code)
        assert await texts(client) == ["a"]
        assert "it refuses what its own proof allows" in client.misbehaviour[0].problem


@on_stage
async def test_hidden_data_cannot_be_called_pruned(stage: Stage) -> None:
    alice = publish(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = refusing(Fetch, Pruned.code)
        assert await texts(client) == ["a"]
        assert "Pruned" in client.misbehaviour[0].problem


@on_stage
async def test_what_was_pruned_is_proved_to_be(stage: Stage) -> None:
    alice = publish(stage, "a", "b")
    stage.ledger.do(ADMIN, DeleteTopic("notes"))
    stage.ledger.topic("notes", partitions=3)
    for broker in stage.brokers:
        broker.lie = refusing(Fetch, Pruned.code)
    async with stage.client(alice) as client:
        with pytest.raises(Pruned, match="starts at offset 2"):
            await client.read("notes", 0)
        assert client.misbehaviour == ()


@on_stage
async def test_a_refusal_that_is_proved_is_believed_at_once(stage: Stage) -> None:
    alice = publish(stage, "a")
    stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
    async with stage.client(alice, first=FIRST) as client:
        with pytest.raises(PermissionDenied) as caught:
            await client.read("notes", 0)
        assert caught.value.rule == 'role == "doctor"'
        assert sum(broker.asked["Fetch"] for broker in stage.brokers) == 1
        with pytest.raises(UnknownTopic):
            await client.read("nowhere", 0)


@on_stage
async def test_a_refusal_that_nobody_proves_is_believed_when_f_plus_one_say_it(stage: Stage) -> None:
    """Whoever may not describe a topic gets no proof of its rule either."""
    alice = publish(stage, "a")

    def hide(question: Question, answer: Answer) -> Answer:
        if isinstance(question, Fetch) or (
            isinstance(question, Prove) and TOPICS.key("notes") in question.keys
        ):
            return Failure.of(
                question.id, PermissionDenied("rule", action="subscribe", topic="notes", rule='role == "x"')
            )
        return answer

    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = hide
        assert (await client.read("notes", 0)).text() == "a"
        for broker in stage.brokers:
            broker.lie = hide
        with pytest.raises(PermissionDenied) as caught:
            await client.read("notes", 0)
        assert caught.value.rule == 'role == "x"'


@on_stage
async def test_who_is_not_registered_reads_nothing(stage: Stage) -> None:
    publish(stage, "a")
    async with stage.client(stage.known(actor("mallory"))) as client:
        with pytest.raises(UnknownClient):
            await client.read("notes", 0)
        with pytest.raises(UnknownClient):
            await client.client_record()


@on_stage
async def test_an_old_end_is_not_believed(stage: Stage) -> None:
    """The newest header that all brokers show is old, so nobody can say where the partition ends."""
    alice = publish(stage, "a")
    stalls: list[ParleyError] = []
    async with stage.client(alice, patience=0.5, on_stalled=stalls.append) as client:
        stage.late = 3_600_000
        assert (await client.read("notes", 0)).text() == "a"  # what is certified stays certified
        with pytest.raises(Stalled, match="3600000 ms old"):
            await texts(client)


@on_stage_with(replace(TIMEOUTS, ack=50))
async def test_silence_leads_to_other_brokers(stage: Stage) -> None:
    alice = publish(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Fetch)
        assert await texts(client) == ["a"]
        assert client.misbehaviour == ()


@on_stage
async def test_a_quorum_of_answers_outvotes_a_liar(stage: Stage) -> None:
    def later(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Fetched):
            return answer
        blocks = tuple(
            replace(block, proof=replace(block.proof, header=replace(block.proof.header, time=1)))
            for block in answer.blocks
        )
        return replace(answer, blocks=blocks)

    alice = publish(stage, "a", "b")
    stage[FIRST].lie = later
    async with stage.client(alice, first=FIRST, verify="quorum") as client:
        messages = [message async for message in client.fetch("notes")]
        assert [(m.text(), m.time > 1, m.verified) for m in messages] == [
            ("a", True, "quorum"),
            ("b", True, "quorum"),
        ]


@on_stage
async def test_brokers_that_are_unequally_far_agree_on_what_all_have(stage: Stage) -> None:
    def behind(_: Question, answer: Answer) -> Answer:
        return replace(answer, blocks=answer.blocks[:1]) if isinstance(answer, Fetched) else answer

    alice = publish(stage, "a", "b", "c")
    stage[FIRST].lie = behind
    async with stage.client(alice, first=FIRST, verify="quorum") as client:
        assert [message.text() async for message in client.fetch("notes", count=3)] == ["a", "b", "c"]


@on_stage
async def test_the_trusted_level_believes_ones_own_organisation(stage: Stage) -> None:
    def forged(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Fetched):
            return answer
        blocks = tuple(
            replace(block, proof=replace(block.proof, header=replace(block.proof.header, time=1)))
            for block in answer.blocks
        )
        return replace(answer, blocks=blocks)

    alice = publish(stage, "a")
    stage[FIRST].lie = forged
    async with stage.client(alice, verify="trusted") as client:
        message = await client.read("notes", 0)
        assert (message.time, message.verified) == (1, "trusted")
        with pytest.raises(ParleyError, match="proves nothing"):
            message.proof()
    with pytest.raises(ParleyError, match="hospital-a runs 1 of the brokers"):
        stage.client(alice, verify="trusted", trusted=2)


# -- records -----------------------------------------------------------------------------------------------------------


@on_stage
async def test_topics_are_proved_and_no_single_broker_can_hide_one(stage: Stage) -> None:
    def hide(_: Question, answer: Answer) -> Answer:
        return replace(answer, keys=()) if isinstance(answer, Listed) else answer

    alice = publish(stage, "a")
    stage.ledger.topic("other", publish='role == "x"')
    stage[FIRST].lie = hide
    async with stage.client(alice, first=FIRST) as client:
        assert [topic.name for topic in await client.topics()] == ["notes", "other"]
        topic = await client.topic("notes")
        assert (topic.partitions, topic.organisation, topic.payload) == (3, "hospital-a", "plain")
        assert [(head.partition, head.start, head.end) for head in topic.heads] == [
            (0, 0, 1),
            (1, 0, 0),
            (2, 0, 0),
        ]


@on_stage
async def test_a_topic_cannot_be_invented(stage: Stage) -> None:
    def invent(_: Question, answer: Answer) -> Answer:
        return (
            replace(answer, keys=(*answer.keys, TOPICS.key("zzz"))) if isinstance(answer, Listed) else answer
        )

    alice = publish(stage, "a")
    stage[FIRST].lie = invent
    async with stage.client(alice, first=FIRST) as client:
        assert [topic.name for topic in await client.topics()] == ["notes"]


@on_stage
async def test_a_list_of_something_else_leads_to_another_broker(stage: Stage) -> None:
    alice = publish(stage, "a")
    stage[FIRST].lie = lambda question, answer: (
        Listed(question.id, (b"name/x",), more=False) if isinstance(question, ListKeys) else answer
    )
    async with stage.client(alice, first=FIRST) as client:
        assert [topic.name for topic in await client.topics()] == ["notes"]
        assert client.misbehaviour[0].problem == "it lists what was not asked for"


@on_stage
async def test_an_entry_cannot_be_hidden(stage: Stage) -> None:
    def hide(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Proven):
            return answer
        return replace(answer, entries=tuple(replace(entry, value=None) for entry in answer.entries))

    alice = publish(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = hide
        assert (await client.topic("notes")).partitions == 3
        assert "not in the certified state" in client.misbehaviour[0].problem
        assert (await client.client_record()).name == "alice"


@on_stage
async def test_what_is_gone_is_not_found(stage: Stage) -> None:
    alice = publish(stage, "a")
    async with stage.client(alice) as client:
        with pytest.raises(UnknownPartition):
            await texts(client, partition=7)
        stage.ledger.do(ADMIN, DeleteTopic("notes"))
        with pytest.raises(UnknownTopic):
            await client.topic("notes")
        assert await client.topics() == []
        with pytest.raises(UnknownClient):
            await client.client_record("nobody")
