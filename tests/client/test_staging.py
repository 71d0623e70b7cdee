"""Staging through brokers that die, forget and repeat: what is committed is published whole, once, and in its order (P23)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.application.world import actor
from tests.client.ledger import note
from tests.client.stage import TIMEOUTS, Stage, on_stage, on_stage_with

from parley.client.client import Client
from parley.client.errors import (
    NotStaged,
    ParleyError,
    PermissionDenied,
    StageOver,
    UnknownTopic,
    Unreachable,
)
from parley.client.staging import MAX_VALID, writer_id
from parley.modules.staging.operations import UNNAMED
from parley.net.messages import Answer, Question, Submit

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"
HASTY = replace(TIMEOUTS, ack=50)


def published(stage: Stage, topic: str = "notes", partitions: int = 3) -> list[list[str]]:
    """The texts in the log, by partition."""
    found: list[list[str]] = []
    bodies = {batch.digest: batch.body for _, batches in stage.ledger.blocks for batch in batches}
    for partition in range(partitions):
        answer = stage.ledger.fetched(actor("alice"), topic, partition=partition)
        names = [
            next(name for name, body in bodies.items() if body.endswith(batch.signature))
            for block in answer.blocks
            for batch in block.batches
        ]
        found.append(
            [message.payload.decode() for name in names for message in stage.ledger.body(name).messages]
        )
    return found


async def staged(client: Client, writer: bytes, number: int, *texts: str, partition: int = 0) -> bytes:
    found = await client.stage("notes", partition, [note(text) for text in texts], writer, number)
    assert found.messages == len(texts)
    return found.digest


def deaf_to_batches(question: Question) -> bool:
    return isinstance(question, Submit)


def test_a_writer_depends_on_the_key_the_topic_and_the_name() -> None:
    one = writer_id(b"k" * 32, "notes", "query 1")
    others = [
        writer_id(b"j" * 32, "notes", "query 1"),
        writer_id(b"k" * 32, "note", "squery 1"),
        writer_id(b"k" * 32, "notes", "query 2"),
    ]
    assert len(one) == 16
    assert len({one, *others}) == 4


@on_stage
async def test_nothing_is_published_before_the_commit_and_all_of_it_after(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        writer = client.writer("notes", "query")
        assert await client.stage_record("notes", writer) is None
        first = await staged(client, writer, 1, "one", "two")
        second = await staged(client, writer, 1, "three", partition=1)
        third = await staged(client, writer, 1, "four")
        left = await staged(client, writer, 1, "never")
        assert published(stage) == [[], [], []]
        height = await client.commit_stage("notes", writer, 1, [third, first, second])
        assert published(stage) == [["four", "one", "two"], ["three"], []]
        record = await client.stage_record("notes", writer)
        assert record is not None
        assert (record.stage, record.at[0]) == (1, height)
        with pytest.raises(NotStaged):
            await client.commit_stage("notes", writer, 2, [left])


@on_stage
async def test_saying_a_commit_again_gives_the_height_of_the_first(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as client, stage.client(alice) as restarted:
        writer = client.writer("notes", "query")
        digests = [await staged(client, writer, 1, "one"), await staged(client, writer, 1, "two")]
        height = await client.commit_stage("notes", writer, 1, digests)
        stage.ledger.wait(3)
        assert await client.commit_stage("notes", writer, 1, digests) == height
        assert await restarted.commit_stage("notes", writer, 1, digests) == height
    assert published(stage)[0] == ["one", "two"]


@on_stage
async def test_the_first_commit_of_a_stage_stands(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as client, stage.client(alice) as restarted:
        writer = client.writer("notes", "query")
        mine = await staged(client, writer, 5, "mine")
        other = await staged(restarted, writer, 5, "other")
        await client.commit_stage("notes", writer, 5, [mine])
        with pytest.raises(StageOver):
            await restarted.commit_stage("notes", writer, 5, [other])
        for late in (5, 4):
            with pytest.raises(StageOver):
                await staged(restarted, writer, late, "late")
        await restarted.commit_stage("notes", writer, 6, [await staged(restarted, writer, 6, "next")])
    assert published(stage)[0] == ["mine", "next"]


@on_stage
async def test_a_repetition_of_other_batches_is_the_first_commit_if_its_source_is_the_same(
    stage: Stage,
) -> None:
    """A driver that was killed after its commit stages all of it again, and cannot know that it had come so far."""
    alice = stage.registered("alice")
    async with stage.client(alice) as client, stage.client(alice) as restarted:
        writer = client.writer("notes", "query")
        digests = [await staged(client, writer, 1, "first")]
        other = [await staged(restarted, writer, 1, "second")]
        source = client.stage_source(writer, 1, plan=b"plan", rows=b"first")
        height = await client.commit_stage("notes", writer, 1, digests, source)
        stage.ledger.wait(3)
        again = restarted.stage_source(writer, 1, plan=b"plan", rows=b"second")
        assert await restarted.commit_stage("notes", writer, 1, other, again) == height
        for wrong in (
            restarted.stage_source(writer, 1, plan=b"another plan", rows=b"first"),
            restarted.stage_source(writer, 1, rows=b"second"),
            restarted.stage_source(writer, 1, rows=b"plan"),
        ):
            with pytest.raises(StageOver, match="what was committed first stands"):
                await restarted.commit_stage("notes", writer, 1, other, wrong)
    assert published(stage)[0] == ["first"]


@on_stage
async def test_the_source_of_a_stage_tells_nobody_what_its_rows_are(stage: Stage) -> None:
    """A message that a rule withholds is salted, so that it cannot be guessed from its leaf; nor from this.

    Two that are equal do not look equal either, in two stages of one writer or of two.
    """
    writer, another = b"w" * 16, b"v" * 16
    async with stage.client(stage.registered("alice")) as alice, stage.client(stage.registered("bob")) as bob:
        mine = alice.stage_source(writer, 1, plan=b"yes", rows=b"yes")
        others = (
            bob.stage_source(writer, 1, plan=b"yes", rows=b"yes"),
            alice.stage_source(writer, 2, plan=b"yes", rows=b"yes"),
            alice.stage_source(another, 1, plan=b"yes", rows=b"yes"),
        )
        assert len({found for one in (mine, *others) for found in (one.plan, one.rows)}) == 8
        assert alice.stage_source(writer, 1, plan=b"yes", rows=b"yes") == mine
        assert alice.stage_source(writer, 1) == UNNAMED


@on_stage
async def test_each_stage_of_a_writer_has_a_secret_key_for_its_rows_that_a_restart_does_not_change(
    stage: Stage,
) -> None:
    alice, writer, another = stage.registered("alice"), b"w" * 16, b"v" * 16
    async with stage.client(alice) as client, stage.client(stage.registered("bob")) as bob:
        key = client.stage_row_key(writer, 1)
        others = [
            bob.stage_row_key(writer, 1),
            client.stage_row_key(writer, 2),
            client.stage_row_key(another, 1),
        ]
        assert len({key, *others}) == 4
        assert {len(one) for one in (key, *others)} == {32}
    async with stage.client(alice) as restarted:
        assert restarted.stage_row_key(writer, 1) == key


@on_stage
async def test_a_lost_connection_leads_to_another_broker_with_the_same_bytes(stage: Stage) -> None:
    def die(question: Question, answer: Answer) -> Answer | None:
        if isinstance(question, Submit):
            stage[FIRST].cut()
            return None
        return answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        writer = client.writer("notes", "query")
        stage[FIRST].lie = die
        digest = await staged(client, writer, 1, "one")
        everywhere = [body for broker in stage.brokers for body in broker.batches]
        assert len(everywhere) == 2
        assert len(set(everywhere)) == 1
        await client.commit_stage("notes", writer, 1, [digest])
        assert client.misbehaviour == ()
    assert published(stage)[0] == ["one"]


@on_stage_with(HASTY)
async def test_a_commit_that_a_broker_keeps_to_itself_goes_to_others(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        writer = client.writer("notes", "query")
        digest = await staged(client, writer, 1, "one")
        stage[FIRST].deaf = deaf_to_batches
        await client.commit_stage("notes", writer, 1, [digest])
    assert published(stage)[0] == ["one"]


@on_stage
async def test_a_batch_that_came_too_late_is_signed_anew(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        writer = client.writer("notes", "query")
        await client.partitions("notes")
        stage.ledger.wait(5)  # of which the client has not heard
        found = await client.stage("notes", 0, [note("one")], writer, 1, valid=4)
        everywhere = {body for broker in stage.brokers for body in broker.batches}
        assert len(everywhere) == 2
        assert found.until > stage.ledger.height
        await client.commit_stage("notes", writer, 1, [found.digest])
    assert published(stage)[0] == ["one"]


@on_stage
async def test_what_waited_too_long_for_its_commit_is_not_published(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        writer = client.writer("notes", "query")
        found = await client.stage("notes", 0, [note("one")], writer, 1, valid=10)
        stage.ledger.wait(found.until - stage.ledger.height + 1)
        with pytest.raises(NotStaged):
            await client.commit_stage("notes", writer, 1, [found.digest])
        assert await client.stage_record("notes", writer) is None
    assert published(stage)[0] == []


@on_stage
async def test_what_may_not_be_published_is_not_staged(stage: Stage) -> None:
    stage.ledger.topic("records", publish='role == "nurse"')
    async with stage.client(stage.registered("alice")) as client:
        writer = client.writer("records", "query")
        with pytest.raises(PermissionDenied) as denied:
            await client.stage("records", 0, [note("one")], writer, 1)
        assert denied.value.rule == 'role == "nurse"'
        with pytest.raises(UnknownTopic):
            await client.stage("nowhere", 0, [note("one")], writer, 1)
        with pytest.raises(ValueError, match="valid"):
            await client.stage("notes", 0, [note("one")], writer, 1, valid=MAX_VALID + 1)


@on_stage
async def test_a_stager_gives_the_batches_in_the_order_in_which_they_were_sent(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        writer = client.writer("notes", "query")
        stager = client.stager("notes", writer, 1, in_flight=3)
        texts = [f"text {number}" for number in range(12)]
        for text in texts:
            await stager.send(0, [note(text)])
        found = await stager.finish()
        await client.commit_stage("notes", writer, 1, [one.digest for one in found])
    assert published(stage)[0] == texts


@on_stage_with(HASTY)
async def test_no_more_batches_are_on_their_way_than_allowed(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stager = client.stager("notes", client.writer("notes", "query"), 1, in_flight=2)
        for broker in stage.brokers:
            broker.deaf = deaf_to_batches
        await stager.send(0, [note("one")])
        await stager.send(0, [note("two")])
        third = asyncio.create_task(stager.send(0, [note("three")]))
        await stage[SECOND].sent(2)  # the first broker's silence was noticed, and still nobody answers
        assert not third.done()
        assert len({body for broker in stage.brokers for body in broker.batches}) == 2
        for broker in stage.brokers:
            broker.deaf = lambda _: False
            broker.cut()
        await third
        assert len(await stager.finish()) == 3


@on_stage
async def test_one_refused_batch_ends_the_whole_stage(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        stager = client.stager("nowhere", client.writer("nowhere", "query"), 1, in_flight=1)

        async def go() -> None:
            for number in range(3):
                await stager.send(0, [note(str(number))])
            await stager.finish()

        with pytest.raises(UnknownTopic):
            await go()


@on_stage
async def test_an_unreachable_network_is_told_within_the_deadline(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), patience=0.5) as client:
        writer = client.writer("notes", "query")
        for broker in stage.brokers:
            await broker.stop()
        with pytest.raises(Unreachable):
            await client.stage("notes", 0, [note("one")], writer, 1)
        with pytest.raises(Unreachable):
            await client.stage_record("notes", writer)
        with pytest.raises(ParleyError):
            await client.commit_stage("notes", writer, 1, [])
