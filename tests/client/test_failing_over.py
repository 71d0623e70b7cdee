"""Every way in which a broker's stream can be wrong or silent: noticed in time, nothing wrong handed out, and gone on with."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.client.stage import TIMEOUTS, Lie, Stage, on_stage, on_stage_with
from tests.client.test_subscribing import FIRST, SECOND, following, hasty, publish, take, texts

from parley.client import feed
from parley.client.client import Client
from parley.client.errors import Busy, NotReady, PermissionDenied
from parley.model.batches import Message as Content
from parley.net.messages import (
    Answer,
    Delivery,
    Failure,
    Fetch,
    Fetched,
    Head,
    OpenStream,
    Prove,
    Question,
)

# Far more than anything takes here, and far less than the patience of a subscriber that would notice nothing.
SOON = 10.0


def unhurried(freshness: int) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Path], None]]:
    """Proofs have to come soon after `freshness`, which leaves a busy machine some time."""

    def decorate(test: Callable[[Stage], Awaitable[None]]) -> Callable[[Path], None]:
        async def play(stage: Stage) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(feed, "MARGIN", 0.1)
                await test(stage)

        play.__name__ = test.__name__
        return on_stage(play, replace(TIMEOUTS, freshness=freshness))

    return decorate


def edited(change: Callable[[Delivery], Delivery]) -> Lie:
    return lambda _, answer: change(answer) if isinstance(answer, Delivery) else answer


def forged(delivery: Delivery) -> Delivery:
    """Every payload is another."""
    return replace(
        delivery,
        blocks=tuple(
            replace(
                block,
                contents=tuple(
                    replace(one, payload=b"forged") if isinstance(one, Content) else one
                    for one in block.contents
                ),
            )
            for block in delivery.blocks
        ),
    )


def doubled(delivery: Delivery) -> Delivery:
    return replace(delivery, blocks=delivery.blocks * 2)


def reversed_(delivery: Delivery) -> Delivery:
    return replace(delivery, blocks=delivery.blocks[::-1])


def without_first(delivery: Delivery) -> Delivery:
    return replace(delivery, blocks=delivery.blocks[1:])


def uncertified(delivery: Delivery) -> Delivery:
    """Under a header that nobody has signed."""
    header = replace(delivery.anchor.header, time=delivery.anchor.header.time + 1)
    return replace(delivery, anchor=replace(delivery.anchor, header=header))


@pytest.mark.parametrize("change", [forged, doubled, reversed_, without_first, uncertified])
def test_a_wrong_delivery_is_caught_and_never_handed_out(
    change: Callable[[Delivery], Delivery], tmp_path: Path
) -> None:
    async def play(stage: Stage) -> None:
        async with following(stage) as (subscription, _):
            publish(stage, "one", "two", "three")  # before the stream is opened: one delivery of three blocks
            stage[FIRST].lie = edited(change)
            async with asyncio.timeout(SOON):
                messages = await take(subscription, 3)
        assert [(m.text(), m.ps) for m in messages] == [("one", 0), ("two", 1), ("three", 2)]
        assert [lie.broker for lie in stage.lies] == [FIRST]

    on_stage(play)(tmp_path)


def refusing(code: str) -> Lie:
    return lambda question, answer: (
        Failure(question.id, code, "not now", ()) if isinstance(question, OpenStream) else answer
    )


@pytest.mark.parametrize("code", [NotReady.code, Busy.code])
def test_a_broker_that_cannot_serve_now_is_left_and_not_called_a_liar(code: str, tmp_path: Path) -> None:
    """One that fills in its history, or recovers, or is crowded."""

    async def play(stage: Stage) -> None:
        async with following(stage) as (subscription, _):
            for broker in stage.brokers[:-1]:
                broker.lie = refusing(code)
            publish(stage, "one")
            async with asyncio.timeout(SOON):
                assert texts(await take(subscription, 1)) == ["one"]
        assert stage.lies == ()

    on_stage(play)(tmp_path)


@on_stage
async def test_when_no_broker_is_ready_the_subscriber_waits_until_one_is(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        for broker in stage.brokers:
            broker.lie = refusing(NotReady.code)
        publish(stage, "one")
        waiting = asyncio.create_task(take(subscription, 1))
        while stage.asked("OpenStream") < 2 * len(stage.brokers):  # noqa: ASYNC110 - it comes again by itself
            await asyncio.sleep(0.01)
        stage[SECOND].lie = None
        async with asyncio.timeout(SOON):
            assert texts(await waiting) == ["one"]
    assert stage.lies == ()


@hasty
async def test_a_broker_that_refuses_and_then_does_not_prove_it_does_not_hold_anybody_up(
    stage: Stage,
) -> None:
    async with following(stage) as (subscription, _):
        stage[FIRST].lie = refusing(PermissionDenied.code)
        stage[FIRST].deaf = lambda question: isinstance(question, Prove)
        publish(stage, "one")
        async with asyncio.timeout(SOON):
            assert texts(await take(subscription, 1)) == ["one"]


@hasty
async def test_a_broker_that_never_lets_anybody_in_does_not_hold_anybody_up(stage: Stage) -> None:
    """It takes the connection and says nothing: the longest that can be waited for is a proof's time."""
    async with following(stage) as (subscription, _):
        await stage[FIRST].stop()
        with socket.create_server(("127.0.0.1", stage[FIRST].address.port)):  # it accepts, and says nothing
            publish(stage, "one")
            began = asyncio.get_running_loop().time()
            assert texts(await take(subscription, 1)) == ["one"]
            assert asyncio.get_running_loop().time() - began < 4.0  # a connection may take 5 s


@on_stage
async def test_a_header_that_is_shown_again_gets_no_new_time(stage: Stage) -> None:
    """It is fresh, and grows old: shown again when it is nearly too old, it must not count for as long as a new one."""
    shown: list[Head] = []
    told = asyncio.Event()
    clock = asyncio.get_running_loop().time
    began = clock()

    def replay(_: Question, answer: Answer) -> Answer | None:
        stage.late = int((clock() - began) * 1_000)
        if isinstance(answer, Head):
            shown.append(answer)
            told.set()
            return shown[0]
        return None if isinstance(answer, Delivery) else answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "MARGIN", 0.1)
        async with following(stage) as (subscription, _):
            stage[FIRST].lie = replay
            waiting = asyncio.create_task(take(subscription, 1))
            await told.wait()
            began = clock()
            publish(stage, "one")
            assert texts(await waiting) == ["one"]
            assert clock() - began < 1.75 * TIMEOUTS.freshness / 1_000  # twice, if each counted anew
    assert len(shown) > 2
    assert stage.lies == ()


@unhurried(2_000)
async def test_a_broker_that_delivers_a_long_backlog_is_not_left_for_want_of_heads(stage: Stage) -> None:
    """It comes closer to the present all the time, and has no time for heads."""
    held = asyncio.Event()

    def slowly(_: Question, answer: Answer) -> Answer | None:
        return None if isinstance(answer, Head) and not held.is_set() else answer

    async with following(stage) as (subscription, _):
        for broker in stage.brokers:
            broker.lie = slowly
        for number in range(12):
            stage.late = 2_000 * (12 - number)
            publish(stage, str(number))
            assert texts(await take(subscription, 1)) == [str(number)]
            await asyncio.sleep(0.3)  # all together longer than a broker may take for a proof
        held.set()
        assert stage.asked("OpenStream") == 1
    assert stage.lies == ()


@unhurried(1_000)
async def test_a_broker_that_drips_what_is_old_is_left(stage: Stage) -> None:
    """It delivers, one message after the other, and stays behind."""

    def old(_: Question, answer: Answer) -> Answer | None:
        return None if isinstance(answer, Head) else answer

    async with following(stage) as (subscription, _):
        for broker in stage.brokers:
            broker.lie = old
        stage.late = 12_000
        for number in range(12):
            publish(stage, str(number))
            assert texts(await take(subscription, 1)) == [str(number)]
            await asyncio.sleep(0.2)
        assert stage.asked("OpenStream") > 1
    assert stage.lies == ()


# -- long fetches ------------------------------------------------------------------------------------------------------


async def followed(client: Client, number: int) -> list[str]:
    found: list[str] = []
    async for message in client.fetch("notes", follow=True):
        found.append(message.text())
        if len(found) == number:
            break
    return found


@hasty
async def test_a_long_fetch_that_is_answered_under_an_old_header_is_asked_of_another_broker(
    stage: Stage,
) -> None:
    """Nothing has come, says the header of an hour ago."""
    alice = stage.registered("alice")
    stage.registered("bob")
    publish(stage, "one")
    old: list[Fetched] = []

    def replay(question: Question, answer: Answer) -> Answer:
        if isinstance(question, Fetch) and question.offset == 1 and isinstance(answer, Fetched):
            old.append(answer)
            return replace(old[0], id=question.id)
        return answer

    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = replay
        reading = asyncio.create_task(followed(client, 2))
        while not old:  # noqa: ASYNC110 - the broker says nothing of what it says
            await asyncio.sleep(0.01)
        stage.apply(time=stage.ledger.time + 3_600_000)
        publish(stage, "two")
        async with asyncio.timeout(SOON):
            assert await reading == ["one", "two"]
        assert client.misbehaviour == ()


@on_stage_with(replace(TIMEOUTS, freshness=400, ack=100))
async def test_a_long_fetch_that_is_never_answered_is_asked_of_another_broker(stage: Stage) -> None:
    alice = stage.registered("alice")
    stage.registered("bob")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Fetch)
        reading = asyncio.create_task(followed(client, 1))
        while not stage[FIRST].asked["Fetch"]:  # noqa: ASYNC110 - it hears, and says nothing
            await asyncio.sleep(0.01)
        publish(stage, "one")
        async with asyncio.timeout(SOON):
            assert await reading == ["one"]


# -- what brings a subscriber back ------------------------------------------------------------------------------------------


@hasty
async def test_a_broker_that_showed_nothing_fresh_is_not_the_first_to_be_asked_again(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        stage[FIRST].lie = lambda _, answer: None if isinstance(answer, Delivery | Head) else answer
        publish(stage, "one")
        await take(subscription, 1)
        stage[SECOND].cut()
        publish(stage, "two")
        await take(subscription, 1)
        assert stage[FIRST].asked["OpenStream"] == 1
