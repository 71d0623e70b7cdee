"""What several brokers push for one order: one voice each, in the order of its numbers, and nothing twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace
from tests.client.ledger import Ledger, believe, note, place_of
from tests.client.stage import TIMEOUTS, Stage, on_stage, on_stage_with
from tests.client.test_subscribing import FIRST, SECOND, WHERE, following, publish, take, texts

from parley.applications import DATA_SHARD
from parley.client.errors import Invalid, ParleyError
from parley.client.feed import Feed, Subject, _Source
from parley.client.position import PartitionPosition, Position
from parley.client.quorum import QuorumClient
from parley.client.reading import NO_ORDER, ReadingState
from parley.client.subscription import Subscription
from parley.client.verification import Order, Place
from parley.model.expressions import parse_constraint
from parley.model.receipts import encode_leaf, receipt_of
from parley.modules.subscriptions.receipts import PartitionStart, Subscribed
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.net.messages import Answer, Delivery, Head, Question, Receipted


@dataclass
class Voice:
    """One stream of a broker."""

    name: str
    took: list[int] = field(default_factory=list)

    def taken(self, messages: int) -> None:
        self.took.append(messages)

    @property
    def source(self) -> _Source:
        return cast("_Source", self)


@dataclass
class Brokers:
    """As much of the quorum as counting voices needs."""

    needed: int
    height: int = 0


class Told:
    """Blocks of one message each, as an order has them."""

    def __init__(self, messages: int) -> None:
        ledger = Ledger()
        carol, bob = ledger.client("carol"), ledger.client("bob")
        ledger.topic("notes")
        (self.start,) = ledger.subscribe(carol, "notes")
        for number in range(messages):
            ledger.publish(bob, "notes", note(str(number)))
        self.place = place_of(self.start)
        delivery = ledger.delivery(carol, "notes", "", self.place)
        assert delivery is not None
        order = Order(ledger.reader(carol), "notes", parse_constraint(""), [self.place], 0)
        self.pieces = order.delivered(believe(ledger, delivery.anchor), delivery)

    def feed(self, needed: int) -> Feed:
        quorum = cast("QuorumClient", Brokers(needed))
        return Feed(Subject(quorum, "notes", parse_constraint("")), [self.place])


def ready(feed: Feed) -> list[str]:
    return [message.text() for block, _ in feed._ready for message in block]


def test_a_broker_that_comes_back_has_one_voice_all_the_same() -> None:
    async def story() -> None:
        told = Told(1)
        feed = told.feed(needed=2)
        feed.offer(Voice(FIRST).source, told.pieces)
        feed.offer(Voice(FIRST).source, told.pieces)
        assert ready(feed) == []
        feed.offer(Voice(SECOND).source, told.pieces)
        assert ready(feed) == ["0"]

    asyncio.run(story())


def test_what_was_taken_already_gives_its_sender_credit_and_is_no_dispute() -> None:
    async def story() -> None:
        told = Told(2)
        feed = told.feed(needed=1)
        feed.offer(Voice(FIRST).source, told.pieces)
        assert ready(feed) == ["0", "1"]
        late = Voice(SECOND)
        feed.offer(late.source, told.pieces)
        assert ready(feed) == ["0", "1"]
        assert late.took == [1, 1]
        assert feed._undecided is None
        assert not feed._votes

    asyncio.run(story())


@pytest.mark.parametrize("needed", [1, 2])
def test_what_comes_later_waits_for_what_comes_next(needed: int) -> None:
    async def story() -> None:
        told = Told(2)
        feed = told.feed(needed=needed)
        voices = [Voice(name).source for name in (FIRST, SECOND)][:needed]
        for voice in voices:
            feed.offer(voice, told.pieces[1:])
        assert ready(feed) == []
        for voice in voices:
            feed.offer(voice, told.pieces[:1])
        assert ready(feed) == ["0", "1"]

    asyncio.run(story())


# -- a subscription and its brokers ------------------------------------------------------------------------------------


@on_stage
async def test_one_brokers_height_is_not_believed_where_answers_are_compared(stage: Stage) -> None:
    """Or it could put the client so far ahead that all honest brokers look as if they were behind."""

    def ahead(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Delivery | Head):
            return answer
        header = replace(answer.anchor.header, executed_height=10**6)
        return replace(answer, anchor=replace(answer.anchor, header=header))

    alice, _ = stage.registered("alice"), stage.registered("bob")
    async with stage.client(alice, first=FIRST, verify="quorum") as client:
        stage[FIRST].lie = ahead
        async with client.subscribe("notes", stage.watch(WHERE)) as subscription:
            publish(stage, "one", "two")
            assert texts(await take(subscription, 2)) == ["one", "two"]
            assert client.height <= stage.ledger.height


@on_stage
async def test_a_subscription_is_not_taken_for_one_with_another_constraint(stage: Stage) -> None:
    """A client that trusts its own organisation's broker looks at what it says all the same."""

    def other(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Receipted):
            return answer
        receipt = receipt_of(DATA_SHARD.decode_leaf(answer.proof.leaves[0]))
        assert receipt is not None
        if not isinstance(receipt.outcome, Subscribed):
            return answer
        forged = replace(receipt, outcome=replace(receipt.outcome, constraint=bytes(32)))
        return replace(answer, proof=replace(answer.proof, leaves=(encode_leaf(forged),)))

    async with stage.client(stage.registered("alice"), verify="trusted") as client:
        stage[FIRST].lie = other
        with pytest.raises(ParleyError, match="something else"):
            async with client.subscribe("notes", stage.watch(WHERE)):
                pass


@on_stage
async def test_history_holds_only_what_the_constraint_wants(stage: Stage) -> None:
    alice, bob = stage.registered("alice"), stage.registered("bob")
    for ward in ("icu", "er", "icu"):
        stage.apply(stage.ledger.publication(bob, "notes", note(f"in {ward}", ward=ward)))
    async with (
        stage.client(alice) as client,
        client.subscribe("notes", stage.watch(WHERE), {0: 0}) as subscription,
    ):
        publish(stage, "now")
        assert texts(await take(subscription, 2)) == ["in er", "now"]


@on_stage
async def test_leaving_one_of_two_subscriptions_of_a_client_does_not_end_their_order(stage: Stage) -> None:
    async with following(stage) as (outer, alice):
        publish(stage, "one")
        first = await take(outer, 1)
        async with Subscription(outer._subscribing, outer._subject, "latest") as inner:
            publish(stage, "two")
            assert texts(await take(inner, 1)) == ["two"]
        publish(stage, "three")
        rest = await take(outer, 2)
    assert [(m.text(), m.ps) for m in first + rest] == [("one", 0), ("two", 1), ("three", 2)]
    assert stage.ledger.record(SUBSCRIPTIONS, "notes", parse_constraint(WHERE).id, alice.key) is None


@on_stage_with(replace(TIMEOUTS, lease=6_000))
async def test_a_lease_is_renewed_long_before_it_is_over(stage: Stage) -> None:
    async with following(stage):
        async with asyncio.timeout(4):  # of the 6 s of the lease
            await stage[FIRST].sent(2)


# -- positions ---------------------------------------------------------------------------------------------------------


def test_a_position_with_something_unknown_in_it_is_none() -> None:
    """It may be that of a later version, in which something else counts as well."""
    text = Position("00", 0, 0, "notes", (2, 0), "true", (PartitionPosition(0, 1),)).to_json()
    assert Position.from_json(text).topic == "notes"
    for place in ("{", '"partitions":[{'):
        with pytest.raises(Invalid):
            Position.from_json(text.replace(place, f'{place}"term":3,', 1))


def test_saving_a_position_takes_the_place_of_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    """A link that somebody laid where the position is saved would have another file overwritten."""
    victim, place = tmp_path / "victim", tmp_path / "position"
    victim.write_text("mine")
    place.symlink_to(victim)
    position = Position("00", 0, 0, "notes", (2, 0), "true", (PartitionPosition(0, 1),))
    position.save(place)
    assert victim.read_text() == "mine"
    assert Position.load(place) == position


START = PartitionStart(0, (5, 0), 7, 20)


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        (PartitionPosition(0, 20), True),
        (PartitionPosition(0, 21), False),
        (PartitionPosition(0, 20, (5, 0), 7), True),
        (PartitionPosition(0, 20, (5, 0), 8), False),
        # Of an order that has ended: its numbers say nothing of this one.
        (PartitionPosition(0, 20, (4, 0), 8), True),
    ],
)
def test_a_position_ahead_of_the_order_or_of_the_log_is_refused(
    given: PartitionPosition, is_taken: bool
) -> None:
    state = ReadingState()
    if is_taken:
        state.resume([given], (START,))
        assert state.places[0].next_offset == 20
    else:
        with pytest.raises(Invalid):
            state.resume([given], (START,))


def test_what_was_read_before_it_was_pruned_is_not_lost() -> None:
    for start, lost in ((19, []), (20, []), (21, [0])):
        state = ReadingState(places={0: Place(0, (5, 0), 7, 20)})
        assert state.prune({0: start}) == lost
        assert state.places[0] == Place(0, NO_ORDER, 0, max(start, 20))


def test_a_new_order_goes_on_at_its_own_number_after_what_lies_between_was_read() -> None:
    state = ReadingState(places={0: Place(0, (5, 0), 7, 20)})
    state.adopt((PartitionStart(0, (9, 0), 3, 26),))
    assert state.places[0] == Place(0, (9, 0), 3, 26)
    assert [(one.partition, one.offset, one.stop) for one in state.bridges] == [(0, 20, 26)]
    state.adopt((PartitionStart(0, (9, 0), 4, 27),))  # the same order, which has gone on
    assert state.places[0] == Place(0, (9, 0), 3, 26)
    assert len(state.bridges) == 1
