"""A client goes to another broker at once when one fails, and soon when one is silent; never to more than f+1 because of that."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.client.stage import TIMEOUTS, Stage, on_stage_with
from tests.client.test_publishing import FIRST, SECOND, failing, published
from tests.client.test_subscribing import following, publish, take, texts

from parley.client.client import Client
from parley.client.connection import Declined
from parley.client.errors import Busy, NotReady
from parley.client.pace import ENOUGH, RECENT, SHORTEST, Pace
from parley.net.messages import Answer, Prove, Question, Status, StatusRequest, Submit

# Whatever waits for one of these two does not come to its end in a test.
PATIENT = replace(TIMEOUTS, ack=600_000, freshness=600_000)
SOON = 20.0
on_patient_stage = on_stage_with(PATIENT)


def sent(stage: Stage) -> dict[str, int]:
    """How many batches each broker was sent, if any."""
    return {broker.name: len(broker.batches) for broker in stage.brokers if broker.batches}


def is_batch(question: Question) -> bool:
    return isinstance(question, Submit)


async def warm(client: Client) -> list[bytes]:
    """Receipts come, so that the client knows how long they take; the payloads."""
    payloads = [f"warm {number}".encode() for number in range(ENOUGH)]
    for payload in payloads:
        await client.publish("notes", payload, partition=0)
    return payloads


@on_patient_stage
async def test_a_batch_whose_connection_breaks_goes_to_the_next_broker_at_once(stage: Stage) -> None:
    def die(question: Question, answer: Answer) -> Answer | None:
        if isinstance(question, Submit):
            stage[FIRST].cut()
            return None
        return answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = die
        await client.publish("notes", "one", partition=0)
    assert sent(stage) == {FIRST: 1, SECOND: 1}
    assert stage[FIRST].batches == stage[SECOND].batches
    assert published(stage) == [b"one"]


@pytest.mark.parametrize("code", [Busy.code, NotReady.code])
def test_a_batch_that_is_refused_goes_to_the_next_broker_at_once(code: str, tmp_path: object) -> None:
    async def play(stage: Stage) -> None:
        async with stage.client(stage.registered("alice"), first=FIRST) as client:
            stage[FIRST].lie = failing(code)
            await client.publish("notes", "one", partition=0)
        assert sent(stage) == {FIRST: 1, SECOND: 1}
        assert stage[FIRST].batches == stage[SECOND].batches

    on_patient_stage(play)(tmp_path)  # type: ignore[arg-type]


@on_patient_stage
async def test_a_broker_that_is_gone_is_passed_over_at_once(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        await stage[FIRST].stop()
        await client.publish("notes", "one", partition=0)
    assert sent(stage) == {SECOND: 1}


@on_patient_stage
async def test_what_follows_a_broken_connection_goes_where_the_retry_went_and_in_order(stage: Stage) -> None:
    def die(question: Question, answer: Answer) -> Answer | None:
        if isinstance(question, Submit):
            stage[FIRST].cut()
            return None
        return answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = die
        for text in ("one", "two", "three"):
            await client.publish("notes", text, partition=0)
    assert set(sent(stage)) == {FIRST, SECOND}
    assert published(stage) == [b"one", b"two", b"three"]


@on_patient_stage
async def test_silence_is_noticed_when_receipts_usually_come_sooner(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        before = await warm(client)
        stage[FIRST].deaf = is_batch
        await client.publish("notes", "one", partition=0)
        assert client.misbehaviour == ()
    assert sent(stage) == {FIRST: ENOUGH + 1, SECOND: 1}  # f+1 brokers have it, and no more
    assert stage[FIRST].batches[-1] == stage[SECOND].batches[0]
    assert published(stage) == [*before, b"one"]


async def barrier(client: Client, broker: str) -> None:
    """Until the broker has read all that the client has sent it so far."""
    connection = await client._quorum.brokers.connection(broker)
    with pytest.raises(Declined):
        await connection.ask(StatusRequest(0), Status)


@on_patient_stage
async def test_only_the_oldest_batch_goes_elsewhere_until_that_shows_who_is_silent(stage: Stage) -> None:
    """If the whole network were slow, it would not get everything twice."""
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        before = await warm(client)
        for name in (FIRST, SECOND):
            stage[name].deaf = is_batch
        waiting = [
            asyncio.ensure_future(client.publish("notes", str(number), partition=0)) for number in range(3)
        ]
        async with asyncio.timeout(SOON):
            await stage[SECOND].sent(1)
        await barrier(client, SECOND)
        assert stage[SECOND].batches == stage[FIRST].batches[ENOUGH : ENOUGH + 1]
        # The second broker's connection ends: the batch goes to a third, which answers, and the others follow it there.
        stage[SECOND].cut()
        await asyncio.gather(*waiting)
    assert len(stage[SECOND].batches) == 1
    assert published(stage) == [*before, b"0", b"1", b"2"]


@on_patient_stage
async def test_a_question_that_is_not_answered_as_soon_as_usual_is_asked_of_another_broker(
    stage: Stage,
) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for _ in range(ENOUGH):
            await client.topic("notes")
        stage[FIRST].deaf = lambda question: isinstance(question, Prove)
        assert (await client.topic("notes")).name == "notes"
    others = {broker.name for broker in stage.brokers if broker.asked["Prove"]}
    assert others == {FIRST, SECOND}


@on_patient_stage
async def test_a_subscription_whose_connection_breaks_goes_on_with_the_next_broker_at_once(
    stage: Stage,
) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "one")
        first = await take(subscription, 1)
        stage[FIRST].cut()
        publish(stage, "two")
        assert texts(first + await take(subscription, 1)) == ["one", "two"]
        assert subscription.brokers == (SECOND,)
    assert stage.lies == ()
    assert stage.doubts == ()


def test_without_enough_answers_to_tell_what_is_usual_the_network_s_own_limit_counts() -> None:
    pace = Pace()
    for _ in range(ENOUGH - 1):
        pace.took(0.01)
    assert pace.patience(3.0) == 3.0


def test_patience_follows_what_is_usual_within_its_limits() -> None:
    pace = Pace()
    for _ in range(RECENT):
        pace.took(0.01)
    assert pace.patience(3.0) == SHORTEST
    pace.took(60.0)  # one that was slow is not usual
    assert pace.patience(3.0) == SHORTEST
    for _ in range(RECENT):
        pace.took(0.25)
    assert pace.patience(3.0) == 1.0
    for _ in range(RECENT):
        pace.took(2.0)
    assert pace.patience(3.0) == 3.0


@on_patient_stage
async def test_a_client_with_one_broker_to_ask_does_not_send_it_everything_twice(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), verify="trusted") as client:
        await warm(client)
        sequence = client._sequence(await client._topics.record("notes"), 0)
        assert sequence._patience() == PATIENT.ack / 1_000
        assert set(sent(stage)) == {FIRST}
