"""A client whose clock is behind learns it from certified headers, and compares those of f+1 brokers instead (P7)."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN
from tests.client.stage import TIMEOUTS, Stage, on_stage
from tests.client.test_publishing import FIRST, SECOND
from tests.client.test_subscribing import WHERE, following, hasty, publish, take, texts

from parley.client.circumstances import CLOCK_TOLERANCE
from parley.client.client import Client
from parley.client.clock import Clock
from parley.client.errors import PermissionDenied, Stalled
from parley.client.messages import Level
from parley.modules.topics.operations import AlterTopic
from parley.net.messages import Answer, Delivery, Failure, Fetch, Head, Prove, Question, ShownHeader

HOUR = 3_600_000
SOON = 10.0  # seconds, in which a test that waits in vain ends


class Replay:
    """A broker that says again what it said first: its heads, hiding what came since, and its proofs of the state."""

    def __init__(self) -> None:
        self._first: dict[object, Answer] = {}
        self.is_shown = asyncio.Event()

    def __call__(self, question: Question, answer: Answer) -> Answer | None:
        if isinstance(answer, Delivery):
            return None
        if not isinstance(answer, Head) and not isinstance(question, Prove):
            return answer
        asked = question.keys if isinstance(question, Prove) else Head
        self.is_shown.set()
        return replace(self._first.setdefault(asked, answer), id=question.id)


async def partitions(client: Client) -> int:
    return (await client.topic("notes")).partitions


@hasty
async def test_old_heads_are_not_complete_because_the_clock_is_behind(stage: Stage) -> None:
    stage.ahead = -HOUR
    async with asyncio.timeout(SOON), following(stage) as (subscription, _):
        stage[FIRST].lie = replay = Replay()
        waiting = asyncio.create_task(take(subscription, 1))
        await replay.is_shown.wait()
        stage.apply(time=stage.ledger.time + TIMEOUTS.lease // 2)
        publish(stage, "one")
        assert texts(await waiting) == ["one"]
    assert stage.lies == ()


@pytest.mark.parametrize("level", ["certified", "quorum", "trusted"])
def test_a_clock_that_is_behind_is_noticed_however_answers_are_checked(level: Level, tmp_path: Path) -> None:
    @on_stage
    async def story(stage: Stage) -> None:
        stage.ahead = -HOUR
        async with stage.client(stage.registered("alice"), first=FIRST, verify=level) as client:
            await partitions(client)
            assert client.clock_behind == HOUR

    story(tmp_path)


@hasty
async def test_a_subscriber_whose_clock_is_behind_stays_with_a_broker_that_shows_new_heads(
    stage: Stage,
) -> None:
    stage.ahead = -HOUR
    heads, enough = count(1), asyncio.Event()

    def counted(_: Question, answer: Answer) -> Answer:
        if isinstance(answer, Head) and next(heads) > 6:
            enough.set()
        return answer

    async with following(stage) as (subscription, _):
        stage[FIRST].lie = counted
        waiting = asyncio.create_task(take(subscription, 1))
        await enough.wait()
        publish(stage, "one")
        assert texts(await waiting) == ["one"]
        assert subscription.brokers == (FIRST,)
    assert [broker.asked["OpenStream"] for broker in stage.brokers] == [1, 0, 0, 0]


@hasty
async def test_a_head_from_before_a_position_was_saved_is_not_complete(stage: Stage) -> None:
    """It is new by the clock, and yet older than what this client saw certified."""
    replay = Replay()
    async with following(stage, keep=True) as (subscription, alice):
        publish(stage, "one")
        stage[FIRST].lie = lambda question, answer: (
            (replay(question, answer) or answer) if isinstance(answer, Head) else answer
        )
        await take(subscription, 1)
        await replay.is_shown.wait()
        position = subscription.position()
    publish(stage, "two")
    stage[FIRST].lie = replay
    async with (
        asyncio.timeout(SOON),
        stage.client(alice, first=FIRST) as client,
        client.subscribe("notes", WHERE, position) as resumed,
    ):
        assert texts(await take(resumed, 1)) == ["two"]


@on_stage
async def test_a_header_ahead_of_a_clock_that_is_behind_may_be_old_itself(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = Replay()
        assert await partitions(client) == 3
        stage.ledger.do(ADMIN, AlterTopic("notes", 4, None, None, None))
        stage.apply(time=stage.ledger.time + HOUR // 2)
        stage.ahead = -HOUR
        assert await partitions(client) == 4
        assert client.clock_behind == HOUR
        assert client.misbehaviour == ()
        assert [doubt.broker for doubt in client.doubts] == [FIRST]


@on_stage
async def test_a_refusal_is_not_proved_by_an_old_header_because_the_clock_is_behind(stage: Stage) -> None:
    replay = Replay()

    def refuse(question: Question, answer: Answer) -> Answer | None:
        if isinstance(question, Fetch):
            return Failure(question.id, PermissionDenied.code, "rule", ())
        return replay(question, answer)

    stage.registered("bob")
    stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = refuse
        with pytest.raises(PermissionDenied):  # which was so at that time
            await client.read("notes", 0)
        stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, ""))
        publish(stage, "one")
        stage.apply(time=stage.ledger.time + HOUR // 2)
        stage.ahead = -HOUR
        assert (await client.read("notes", 0)).text() == "one"
        assert client.misbehaviour == ()


@on_stage
async def test_where_headers_cannot_be_compared_nothing_is_taken_for_new(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST, patience=3) as client:
        for broker in stage.brokers:
            if broker.name != FIRST:
                await broker.stop()
        assert await partitions(client) == 3
        stage.ahead = -HOUR
        with pytest.raises(
            Stalled, match=r"behind.* and fewer than 2 brokers show headers to compare"
        ) as caught:
            await partitions(client)
        assert "This machine's clock may be wrong: it is 3600.0 s behind" in str(caught.value)
        stage[SECOND].start(stage[SECOND].address)
        assert await partitions(client) == 3


@on_stage
async def test_of_the_headers_that_are_compared_the_newest_counts(stage: Stage) -> None:
    """Of the two brokers that are left, one shows what was so before, also when its header is asked for."""
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for broker in stage.brokers:
            if broker.name not in (FIRST, SECOND):
                await broker.stop()
        old, replay = stage.ledger.anchor(), Replay()
        stage[FIRST].lie = lambda question, answer: (
            replace(answer, anchor=old) if isinstance(answer, ShownHeader) else replay(question, answer)
        )
        assert await partitions(client) == 3
        stage.ledger.do(ADMIN, AlterTopic("notes", 4, None, None, None))
        stage.apply(time=stage.ledger.time + HOUR // 2)
        stage.ahead = -HOUR
        assert await partitions(client) == 4


@hasty
async def test_a_clock_that_was_set_right_is_believed_again(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage.ahead = -HOUR
        assert await partitions(client) == 3
        assert client.clock_behind == HOUR
        stage.ahead = 0
        assert await partitions(client) == 3
        assert client.clock_behind == 0


def test_the_header_that_is_furthest_ahead_says_how_far_behind_the_clock_is_at_least(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(lambda: HOUR, 5_000)
    for ahead, behind in ((-HOUR, 0), (CLOCK_TOLERANCE, 0), (5_000, 5_000), (4_000, 5_000), (9_000, 9_000)):
        clock.saw(HOUR + ahead)
        assert (clock.behind, clock.now(), clock.now(7)) == (behind, HOUR + behind, 7 + behind)
    (record,) = caplog.records
    assert (
        "This machine's clock is at least 5.0 s behind: a certified header is ahead of it." in record.message
    )


def test_old_headers_of_enough_brokers_do_not_take_the_clock_below_what_was_seen() -> None:
    """Of f+1 that are compared, f may lie and the honest one may be behind."""

    async def compare() -> None:
        clock = Clock(lambda: HOUR, 5_000)
        for seen in (2 * HOUR, HOUR + HOUR // 2):
            clock.saw(seen)
        clock.compared()
        assert clock.now() == 2 * HOUR

    asyncio.run(compare())


@on_stage
async def test_one_header_that_no_quorum_certified_does_not_set_a_clock_that_is_behind(stage: Stage) -> None:
    """Where other answers need no certificate, either."""
    stage.ahead = -HOUR

    def future(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, ShownHeader):
            return answer
        anchor = replace(answer.anchor, header=replace(answer.anchor.header, time=2**60))
        return replace(answer, anchor=anchor)

    stage[FIRST].lie = future
    async with asyncio.timeout(SOON), stage.client(ADMIN, verify="quorum", first=FIRST) as client:
        await client.certified_height()  # which shows that the clock is behind
        assert await partitions(client) == 3
        assert client.clock_behind < 2 * HOUR
        assert [lie.broker for lie in client.misbehaviour] == [FIRST]
