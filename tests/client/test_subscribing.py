"""Following a topic through brokers that die, lie, lag and withhold: every message comes once, in one order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Actor, actor
from tests.client.ledger import note
from tests.client.stage import TIMEOUTS, Lie, Stage, on_stage, on_stage_with

from parley.client import feed
from parley.client.blocking import BlockingClient
from parley.client.errors import (
    ClientClosed,
    Invalid,
    InvalidConstraint,
    NotFound,
    ParleyError,
    PermissionDenied,
    Redacted,
    Stalled,
    UnknownTopic,
)
from parley.client.messages import Message
from parley.client.subscription import Subscription, log
from parley.model.batches import Withheld
from parley.model.expressions import parse_constraint
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Unsubscribe
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.modules.topics.operations import AlterTopic
from parley.net.messages import (
    Answer,
    DeliveredBlock,
    Delivery,
    Failure,
    Head,
    OpenStream,
    Question,
    Submit,
)

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"
WHERE = 'ward == "er"'
SHORT = replace(TIMEOUTS, lease=150)


def publish(stage: Stage, *texts: str, partition: int = 0, rule: str = "") -> None:
    """Bob publishes, each text in a block of its own."""
    for text in texts:
        message = note(text, rule, ward="er")
        stage.apply(stage.ledger.publication(actor("bob"), "notes", message, partition=partition))


async def take(subscription: Subscription, number: int) -> list[Message]:
    return [await anext(subscription) for _ in range(number)]


def texts(messages: list[Message]) -> list[str]:
    return [message.text() for message in messages]


@asynccontextmanager
async def following(
    stage: Stage, where: str = WHERE, **options: object
) -> AsyncIterator[tuple[Subscription, Actor]]:
    alice = stage.registered("alice", role="nurse")
    stage.registered("bob")
    async with stage.client(alice, first=FIRST) as client:
        async with client.subscribe("notes", stage.watch(where), **options) as subscription:  # type: ignore[arg-type]
            yield subscription, alice
        stage.lies, stage.doubts = client.misbehaviour, client.doubts


def once(kind: type[Answer], said: Answer | bytes | None) -> Lie:
    """Say something else, the first time that it would say such a thing."""
    done: list[Answer] = []

    def lie(question: Question, answer: Answer) -> Answer | bytes | None:
        if done or not isinstance(answer, kind):
            return answer
        done.append(answer)
        return replace(said, id=question.id) if isinstance(said, Failure) else said

    return lie


# -- what comes ----------------------------------------------------------------------------------------------------------


@on_stage
async def test_what_is_published_after_entering_comes_in_order(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "one")
        stage.apply(stage.ledger.publication(actor("bob"), "notes", note("elsewhere", ward="icu")))
        publish(stage, "two", "three")
        messages = await take(subscription, 3)
    assert [(m.text(), m.ps, m.offset, m.publisher, m.verified) for m in messages] == [
        ("one", 0, 0, "hospital-a/bob", "certified"),
        ("two", 1, 2, "hospital-a/bob", "certified"),
        ("three", 2, 3, "hospital-a/bob", "certified"),
    ]
    with pytest.raises(ParleyError, match=r"client\.read\('notes', 0, partition=0\)"):
        messages[0].proof()


@on_stage
async def test_all_that_is_here_can_be_taken_at_once(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        batches = subscription.batches()
        # Waiting may be given up, and nothing is lost.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(batches)
        publish(stage, "one", "two", "three")
        found: list[str] = []
        async for messages in batches:
            assert messages
            assert subscription.waiting == 0
            found += texts(messages)
            if len(found) == 3:
                break
        assert found == ["one", "two", "three"]
        (place,) = [one for one in subscription.position().partitions if one.partition == 0]
        assert (place.ps, place.offset) == (3, 3)


@on_stage
async def test_two_subscribers_with_one_constraint_see_one_order(stage: Stage) -> None:
    async with following(stage) as (first, _):
        publish(stage, "one")
        carol = stage.registered("carol")
        # Spelled differently, it is the same constraint.
        async with stage.client(carol) as client, client.subscribe("notes", "ward = 'er'") as second:
            assert first.where == second.where
            publish(stage, "two", "three")
            mine, others = await take(first, 3), await take(second, 2)
    assert [m.ps for m in others] == [1, 2]
    assert mine[1:] == others


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("latest", ["new"]),
        ("earliest", ["a", "b", "c", "new"]),
        ({0: 1}, ["b", "new"]),
        ({1: 0}, ["c", "new"]),
        ({0: 2, 1: 1, 2: 0}, ["new"]),
    ],
)
def test_history_comes_before_what_is_new(start: object, expected: list[str], tmp_path: object) -> None:
    async def play(stage: Stage) -> None:
        stage.registered("bob")
        publish(stage, "a", "b")
        publish(stage, "c", partition=1)
        alice = stage.registered("alice")
        async with (
            stage.client(alice) as client,
            client.subscribe("notes", stage.watch(WHERE), start) as subscription,  # type: ignore[arg-type]
        ):
            publish(stage, "new")
            messages = await take(subscription, len(expected))
        assert texts(messages) == expected
        assert [m.ps for m in messages] == [None] * (len(expected) - 1) + [0]

    on_stage(play)(tmp_path)  # type: ignore[arg-type]


@on_stage
async def test_a_start_that_does_not_exist_is_refused(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as client:
        for start in (0, {0: 1}, {3: 0}, {0: -1}, "yesterday"):
            with pytest.raises(Invalid):
                async with client.subscribe("notes", WHERE, start):  # type: ignore[arg-type]
                    pass
        with pytest.raises(InvalidConstraint) as caught:
            client.subscribe("notes", "ward <")
        assert caught.value.position == 5
        with pytest.raises(UnknownTopic):
            async with client.subscribe("nowhere"):
                pass
        subscription = client.subscribe("notes")
        with pytest.raises(ClientClosed, match="async with"):
            await anext(subscription)
    assert stage.ledger.entries(b"sub/") == {}


DOCTORS = 'role == "doctor"'


@on_stage
async def test_what_a_rule_hides_comes_redacted_and_is_not_taken_for_a_blank(stage: Stage) -> None:
    async with following(stage, withheld="yield") as (subscription, _):
        publish(stage, "for doctors", rule=DOCTORS)
        publish(stage, "for nurses", rule='role == "nurse"')
        hidden, shown = await take(subscription, 2)
    assert (hidden.empty, hidden.ps, hidden.offset, hidden.rule) == (True, 0, 0, DOCTORS)
    for content in (
        lambda: hidden.value,
        hidden.text,
        hidden.json,
        lambda: hidden.key,
        lambda: hidden.tags,
        lambda: hidden.headers,
    ):
        with pytest.raises(Redacted, match=f"offset 0 of notes.*{DOCTORS}.*message.empty"):
            content()
    assert (shown.empty, shown.ps, shown.text()) == (False, 1, "for nurses")
    assert stage.lies == ()


@on_stage
async def test_a_program_that_does_not_ask_for_redacted_messages_never_sees_a_blank(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "for doctors", rule=DOCTORS)
        publish(stage, "one")
        publish(stage, "for doctors, too", rule=DOCTORS)
        publish(stage, "two")
        assert [(m.ps, m.text()) for m in await take(subscription, 2)] == [(1, "one"), (3, "two")]
        taken = asyncio.create_task(subscription.take())
        publish(stage, "again for doctors", rule=DOCTORS)
        publish(stage, "three")
        assert [(m.ps, m.text()) for m in await taken] == [(5, "three")]
    assert stage.lies == ()


@on_stage
async def test_a_position_lies_after_the_redacted_messages_that_were_skipped(stage: Stage) -> None:
    async with following(stage, keep=True) as (subscription, alice):
        publish(stage, "one")
        publish(stage, "for doctors", rule=DOCTORS)
        first = await take(subscription, 1)
        waiting = asyncio.create_task(anext(subscription))
        while subscription.position().partitions[0].offset < 2:  # noqa: ASYNC110 - nothing tells of a message that is skipped
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)
        assert not waiting.done(), "the redacted message was handed out"
        waiting.cancel()
        await asyncio.wait([waiting])
        position = subscription.position()
    assert (position.partitions[0].offset, position.partitions[0].ps) == (2, 2)
    publish(stage, "two")
    async with (
        stage.client(alice) as client,
        client.subscribe("notes", WHERE, position, withheld="yield") as resumed,
    ):
        assert texts(first + await take(resumed, 1)) == ["one", "two"]


@on_stage
async def test_pulling_skips_redacted_messages_and_counts_those_that_it_hands_out(stage: Stage) -> None:
    stage.registered("bob")
    for text, rule in (("hidden", DOCTORS), ("one", ""), ("hidden", DOCTORS), ("two", ""), ("three", "")):
        publish(stage, text, rule=rule)
    alice = stage.registered("alice")
    async with stage.client(alice) as client:
        assert [(m.offset, m.text()) async for m in client.fetch("notes", count=2)] == [
            (1, "one"),
            (3, "two"),
        ]
        found = [(m.offset, m.empty) async for m in client.fetch("notes", count=2, withheld="yield")]
        assert found == [(0, True), (1, False)]
        hidden = await client.read("notes", 2)
        with pytest.raises(Redacted, match="offset 2 of notes"):
            hidden.text()
        with pytest.raises(ParleyError, match="'skip' or 'yield', not 'show'"):
            client.subscribe("notes", withheld="show")  # type: ignore[arg-type]
        with pytest.raises(ParleyError, match="'skip' or 'yield', not 'show'"):
            await anext(client.fetch("notes", withheld="show"))  # type: ignore[arg-type]


@on_stage
async def test_no_way_of_reading_makes_a_redacted_message_look_blank(stage: Stage) -> None:
    """As a program without `async` meets them, in history and after it."""
    stage.registered("bob")
    publish(stage, "for doctors", rule=DOCTORS)
    publish(stage, "one")
    publish(stage, "for doctors", rule=DOCTORS)
    stage.watch("")
    loop = asyncio.get_running_loop()

    def program(client: BlockingClient) -> None:
        with client:
            assert [m.text() for m in client.fetch("notes")] == ["one"]
            assert [m.empty for m in client.fetch("notes", withheld="yield")] == [True, False, True]
            with pytest.raises(Redacted):
                client.read("notes", 0).json()
            with client.subscribe("notes", start="earliest", keep=True) as subscription:
                assert [m.text() for m in next(subscription.batches())] == ["one"]
                loop.call_soon_threadsafe(partial(publish, stage, "for doctors", rule=DOCTORS))
                loop.call_soon_threadsafe(publish, stage, "two")
                message = next(subscription)
                assert (message.text(), message.ps) == ("two", 1)
                position = subscription.position()
            assert (position.partitions[0].offset, position.partitions[0].ps) == (5, 2)
            with client.subscribe("notes", start="earliest", withheld="yield") as everything:
                shown = [next(everything) for _ in range(5)]
            assert [m.offset for m in shown if m.empty] == [0, 2, 3]
            for hidden in (m for m in shown if m.empty):
                with pytest.raises(Redacted):
                    hidden.text()
                assert "for doctors" not in repr(hidden)

    await asyncio.to_thread(program, BlockingClient(stage.client(stage.registered("alice"))))


@on_stage
async def test_empties_of_history_come_only_to_who_wants_everything(stage: Stage) -> None:
    stage.registered("bob")
    publish(stage, "hidden", rule='role == "doctor"')
    publish(stage, "shown")
    alice = stage.registered("alice")
    async with stage.client(alice) as client:
        async with client.subscribe("notes", stage.watch(""), "earliest", withheld="yield") as everything:
            assert [m.empty for m in await take(everything, 2)] == [True, False]
        async with client.subscribe("notes", stage.watch(WHERE), "earliest", withheld="yield") as some:
            assert texts(await take(some, 1)) == ["shown"]


@on_stage
async def test_waiting_may_be_given_up_at_any_time(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        for _ in range(5):
            waiting = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        publish(stage, "one", "two")
        assert texts(await take(subscription, 2)) == ["one", "two"]


@on_stage
async def test_leaving_unsubscribes_unless_another_subscription_needs_it(stage: Stage) -> None:
    async with following(stage) as (outer, alice):
        constraint = parse_constraint(WHERE).id
        key = ("notes", constraint, alice.key)
        async with stage.client(alice) as client:
            async with client.subscribe("notes", WHERE), client.subscribe("notes", WHERE) as inner:
                publish(stage, "one")
                await take(inner, 1)
            assert stage.ledger.record(SUBSCRIPTIONS, *key) is None
        # The other client's order was ended by that; it begins another and misses nothing.
        publish(stage, "two")
        assert texts(await take(outer, 2)) == ["one", "two"]
        assert stage.ledger.record(SUBSCRIPTIONS, *key) is not None
    assert stage.ledger.record(SUBSCRIPTIONS, *key) is None


def end_subscription(stage: Stage, who: Actor) -> None:
    """As when its lease ends."""
    stage.apply(stage.ledger.control(who, Unsubscribe("notes", WHERE)))


@on_stage
async def test_a_lapsed_subscriber_of_an_order_that_goes_on_misses_nothing_and_blames_nobody(
    stage: Stage,
) -> None:
    stage.ledger.subscribe(stage.registered("dora"), "notes", WHERE)
    followed: set[str] = set()

    def listen(name: str) -> Lie:
        def lie(question: Question, answer: Answer) -> Answer:
            if isinstance(question, OpenStream):
                followed.add(name)
            return answer

        return lie

    for broker in stage.brokers:
        broker.lie = listen(broker.name)
    async with following(stage) as (subscription, alice):
        publish(stage, "one")
        first = await take(subscription, 1)
        end_subscription(stage, alice)
        publish(stage, "two")
        second = await take(subscription, 1)
        while stage.ledger.record(SUBSCRIPTIONS, "notes", parse_constraint(WHERE).id, alice.key) is None:
            publish(stage, "more")
            second += await take(subscription, 1)
        publish(stage, "last")
        second += await take(subscription, 1)
        assert [m.ps for m in first + second] == list(range(1 + len(second)))
        assert texts(first + second)[:2] == ["one", "two"]
        assert texts(second)[-1] == "last"
    assert (stage.lies, followed) == ((), {FIRST})


@on_stage
async def test_an_old_absence_of_a_subscription_ends_it_for_nobody(stage: Stage) -> None:
    """A broker that keeps showing a certified header from before the subscription is left; nothing is subscribed again."""
    stage.ledger.subscribe(stage.registered("dora"), "notes", WHERE)
    old = stage.ledger.own_subscription(stage.registered("alice", role="nurse"), "notes", WHERE)
    told = 0

    def absent(_: Question, answer: Answer) -> Answer:
        nonlocal told
        if not isinstance(answer, Head):
            return answer
        told += 1
        return replace(old, id=answer.id)

    stage.known(actor("bob"))
    stage.ledger.client("bob")
    async with stage.client(actor("alice"), first=FIRST) as client:
        stage[FIRST].lie = absent
        async with client.subscribe("notes", stage.watch(WHERE)) as subscription:
            submitted = stage.asked("Submit")
            publish(stage, "one")
            assert texts(await take(subscription, 1)) == ["one"]
            while told < 3:
                publish(stage, "more")
                await take(subscription, 1)
            assert stage.asked("Submit") == submitted


# -- brokers that fail -----------------------------------------------------------------------------------------------------


@on_stage
async def test_a_dropped_item_leads_to_another_broker_without_a_gap(stage: Stage) -> None:
    def drop(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Delivery):
            return answer
        return replace(
            answer, blocks=tuple(replace(block, contents=block.contents[:-1]) for block in answer.blocks)
        )

    async with following(stage) as (subscription, _):
        publish(stage, "one")
        first = await take(subscription, 1)
        stage[FIRST].lie = drop
        publish(stage, "two", "three")
        assert texts(first + await take(subscription, 2)) == ["one", "two", "three"]
    assert [lie.broker for lie in stage.lies] == [FIRST]


@on_stage
async def test_withholding_what_the_rule_allows_leads_to_another_broker(stage: Stage) -> None:
    def withhold(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Delivery):
            return answer
        hidden = tuple(
            replace(
                block,
                contents=tuple(
                    one if isinstance(one, Withheld) else one.withheld() for one in block.contents
                ),
            )
            for block in answer.blocks
        )
        return replace(answer, blocks=hidden, reader=stage.ledger.entry(CLIENTS.key(actor("alice").key)))

    async with following(stage) as (subscription, _):
        stage[FIRST].lie = withhold
        publish(stage, "one")
        (message,) = await take(subscription, 1)
        assert (message.text(), message.empty) == ("one", False)
    assert "allows this reader" in stage.lies[0].problem


@on_stage
async def test_a_lost_connection_leads_to_another_broker_without_a_double(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "one", "two")
        first = await take(subscription, 1)
        await stage[FIRST].stop()
        publish(stage, "three")
        assert texts(first + await take(subscription, 2)) == ["one", "two", "three"]
    assert stage.lies == ()


def hasty(test: Callable[[Stage], Awaitable[None]]) -> Callable[[Path], None]:
    """Proofs have to come soon."""

    async def play(stage: Stage) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feed, "MARGIN", 0.1)
            await test(stage)

    play.__name__ = test.__name__
    return on_stage(play, replace(TIMEOUTS, freshness=400))


@hasty
async def test_a_broker_that_withholds_everything_is_caught_by_its_own_heads(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        stage[FIRST].lie = lambda _, answer: None if isinstance(answer, Delivery) else answer
        publish(stage, "one")
        assert texts(await take(subscription, 1)) == ["one"]
    assert stage.lies[0].problem == "it proves that there is more to this order than it shows"


@hasty
async def test_a_broker_without_fresh_proofs_is_left_for_another(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        stage[FIRST].lie = lambda _, answer: None if isinstance(answer, Delivery | Head) else answer
        publish(stage, "one")
        assert texts(await take(subscription, 1)) == ["one"]
    assert stage.lies == ()
    assert [(one.broker, one.problem) for one in stage.doubts] == [
        (FIRST, "it has shown no fresh proof for 0.5 s (following notes)")
    ]


@hasty
async def test_an_old_head_does_not_count_as_proof(stage: Stage) -> None:
    """A broker that replays the head of an hour ago, which was true then, hides what came since."""
    old: list[Head] = []
    said = asyncio.Event()

    def replay(_: Question, answer: Answer) -> Answer | None:
        if isinstance(answer, Head):
            old.append(answer)
            said.set()
            return old[0]
        return None if isinstance(answer, Delivery) else answer

    async with following(stage) as (subscription, _):
        stage[FIRST].lie = replay
        waiting = asyncio.create_task(take(subscription, 1))
        await said.wait()
        stage.apply(time=stage.ledger.time + TIMEOUTS.lease // 2)
        publish(stage, "one")
        assert texts(await waiting) == ["one"]
    assert stage.lies == ()
    assert [one.broker for one in stage.doubts] == [FIRST]


@on_stage
async def test_a_false_end_of_the_order_is_not_believed(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        stage[FIRST].lie = once(Head, Failure(0, NotFound.code, "no such order", ()))
        publish(stage, "one")
        assert texts(await take(subscription, 1)) == ["one"]
        publish(stage, "two")
        assert texts(await take(subscription, 1)) == ["two"]


@on_stage
async def test_a_false_refusal_contradicts_the_brokers_own_proof(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        stage[FIRST].lie = lambda question, answer: (
            Failure(question.id, PermissionDenied.code, "no", ())
            if isinstance(question, OpenStream)
            else answer
        )
        publish(stage, "one")
        assert texts(await take(subscription, 1)) == ["one"]
    assert "it refuses what its own proof allows" in stage.lies[0].problem


@on_stage
async def test_a_right_that_is_taken_away_ends_the_subscription(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "one")
        await take(subscription, 1)
        stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
        for broker in stage.brokers:
            broker.cut()
        with pytest.raises(PermissionDenied) as caught:
            await take(subscription, 1)
        assert caught.value.rule == 'role == "doctor"'
    assert stage.lies == ()


@on_stage
async def test_who_may_not_subscribe_is_told_the_rule(stage: Stage) -> None:
    stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
    async with stage.client(stage.registered("alice")) as client:
        with pytest.raises(PermissionDenied) as caught:
            async with client.subscribe("notes"):
                pass
        assert caught.value.rule == 'role == "doctor"'


@hasty
async def test_when_no_broker_is_fresh_the_subscriber_hears_of_it_and_keeps_its_place(stage: Stage) -> None:
    stalls: list[ParleyError] = []
    stage.registered("bob")
    alice = stage.registered("alice")
    async with (
        stage.client(alice, patience=3, on_stalled=stalls.append) as client,
        client.subscribe("notes", stage.watch(WHERE)) as subscription,
    ):
        stage.late = 3_600_000
        with pytest.raises(Stalled, match="following notes") as stalled:
            await take(subscription, 1)
        assert stalled.value.circumstances is not None
        assert stalled.value.circumstances.missing == 0  # they all answer
        assert "4 of 4 brokers answer" in str(stalled.value)
        assert "is 3600.0 s old" in str(stalled.value)
        assert client.doubts == ()  # none of them did better
        stage.late = 0
        publish(stage, "one")
        assert texts(await take(subscription, 1)) == ["one"]
    assert isinstance(stalls[0], Stalled)


# -- the lease ---------------------------------------------------------------------------------------------------------------


@on_stage
async def test_a_lost_lease_loses_and_doubles_nothing(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "one")
        first = await take(subscription, 1)
        stage.apply(time=stage.ledger.time + TIMEOUTS.lease + 1)  # the lease is over, the order is closed
        publish(stage, "two", "three")
        second = await take(subscription, 2)
        publish(stage, "four")
        third = await take(subscription, 1)
    assert texts(first + second + third) == ["one", "two", "three", "four"]
    assert [m.ps for m in first + second + third] == [0, None, None, 0]


@on_stage_with(SHORT)
async def test_the_lease_is_renewed_in_the_background(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        await stage[FIRST].sent(4)
        publish(stage, "one")
        assert texts(await take(subscription, 1)) == ["one"]


@on_stage_with(replace(TIMEOUTS, lease=9_000))
async def test_renewals_do_not_pile_up_while_nothing_is_ordered(stage: Stage) -> None:
    """The first goes on being sent, so another one waits for its usual time."""
    warned = asyncio.Event()
    alice = stage.registered("alice")
    async with (
        stage.client(alice, first=FIRST, patience=0.1) as client,
        client.subscribe("notes", WHERE, keep=True) as subscription,
    ):
        for broker in stage.brokers:
            broker.deaf = lambda question: isinstance(question, Submit)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "warning", lambda *_: warned.set())
            await warned.wait()
        assert subscription._lease == 9


@on_stage_with(SHORT)
async def test_a_late_receipt_of_a_renewal_takes_nobody_back_to_an_order_that_has_ended(stage: Stage) -> None:
    """Ordered before the lease was over, shown when the subscriber follows the next order already."""
    release, held = asyncio.Event(), asyncio.Event()
    late: list[bytes] = []

    async def hold(question: Question, _: Answer) -> None:
        if not isinstance(question, Submit):
            return
        if not late:
            late.append(question.batch)
        if question.batch in late:
            held.set()
            await release.wait()

    async with following(stage) as (subscription, _):
        publish(stage, "one")
        first = await take(subscription, 1)
        for broker in stage.brokers:
            broker.slow = hold
        await held.wait()
        stage.apply(time=stage.ledger.time + SHORT.lease + 1)
        publish(stage, "two")
        second = await take(subscription, 1)
        publish(stage, "three")
        third = await take(subscription, 1)
        sent = len(stage[FIRST].batches)
        release.set()
        await stage[FIRST].sent(sent + 1)  # the next renewal: the late receipt was looked at before
        publish(stage, "four")
        fourth = await take(subscription, 1)
    assert texts(first + second + third + fourth) == ["one", "two", "three", "four"]
    assert stage.lies == ()


@on_stage_with(SHORT)
async def test_a_renewal_that_is_refused_ends_the_subscription(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        waiting = asyncio.create_task(take(subscription, 1))
        await stage[FIRST].sent(2)
        stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
        with pytest.raises(PermissionDenied):
            await waiting
        with pytest.raises(PermissionDenied):  # and it stays ended
            await take(subscription, 1)


@on_stage
async def test_when_nobody_can_be_reached_a_subscriber_without_a_timeout_keeps_its_place(
    stage: Stage,
) -> None:
    stage.registered("bob")
    alice = stage.registered("alice")
    async with (
        stage.client(alice, patience=None) as client,
        client.subscribe("notes", stage.watch(WHERE)) as subscription,
    ):
        addresses = [broker.address for broker in stage.brokers]
        for broker in stage.brokers:
            await broker.stop()
        waiting = asyncio.create_task(take(subscription, 1))
        publish(stage, "one")
        for broker, address in zip(stage.brokers, addresses, strict=True):
            broker.start(address)
        assert texts(await waiting) == ["one"]


@on_stage_with(SHORT)
async def test_a_partition_that_is_added_is_followed_from_its_start(stage: Stage) -> None:
    async with following(stage) as (subscription, _):
        publish(stage, "one")
        first = await take(subscription, 1)
        stage.ledger.do(ADMIN, AlterTopic("notes", 4, None, None, None))
        publish(stage, "two", partition=3)
        publish(stage, "three")
        messages = first + await take(subscription, 2)
    assert {(m.text(), m.partition, m.ps) for m in messages} == {
        ("one", 0, 0),
        ("two", 3, 0),
        ("three", 0, 1),
    }


# -- other levels ----------------------------------------------------------------------------------------------------------


@hasty
async def test_a_quorum_of_brokers_outvotes_a_liar(stage: Stage) -> None:
    def reorder(_: Question, answer: Answer) -> Answer:
        """In itself consistent: the times of the blocks are others."""
        if not isinstance(answer, Delivery):
            return answer
        return replace(answer, blocks=tuple(_later(block) for block in answer.blocks))

    def _later(block: DeliveredBlock) -> DeliveredBlock:
        header = replace(block.proof.header, time=block.proof.header.time + 1)
        return replace(block, proof=replace(block.proof, header=header))

    stage.registered("bob")
    alice = stage.registered("alice")
    stage[FIRST].lie = reorder
    async with (
        stage.client(alice, first=FIRST, verify="quorum") as client,
        client.subscribe("notes", stage.watch(WHERE)) as subscription,
    ):
        publish(stage, "one", "two")
        messages = await take(subscription, 2)
    truth = stage.ledger.fetched(alice, "notes")
    assert [m.time for m in messages] == [block.proof.header.time for block in truth.blocks]
    assert {m.verified for m in messages} == {"quorum"}


@hasty
async def test_what_brokers_agree_on_does_not_overtake_what_they_dispute(stage: Stage) -> None:
    """A liar is wrong about the first message only: the second has votes enough before the first has."""

    def first_only(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Delivery):
            return answer
        first, *rest = answer.blocks
        header = replace(first.proof.header, time=first.proof.header.time + 1)
        return replace(answer, blocks=(replace(first, proof=replace(first.proof, header=header)), *rest))

    stage.registered("bob")
    alice = stage.registered("alice")
    stage[FIRST].lie = first_only
    async with (
        stage.client(alice, first=FIRST, verify="quorum") as client,
        client.subscribe("notes", stage.watch(WHERE)) as subscription,
    ):
        publish(stage, "one", "two", "three")
        assert texts(await take(subscription, 3)) == ["one", "two", "three"]
