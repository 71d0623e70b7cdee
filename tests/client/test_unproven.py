"""What one broker says without proof, or proves by what is old: it is not believed, whatever the others can say now."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, actor
from tests.client.columns import checked_both_ways, packed
from tests.client.ledger import Ledger, believe, note
from tests.client.stage import TIMEOUTS, Lie, Stage, on_stage, on_stage_with
from tests.client.test_reading import publish as publish_plain
from tests.client.test_subscribing import following, take, texts
from tests.client.test_subscribing import publish as publish_to_subscribers

from parley.applications import DATA_SHARD
from parley.client.beliefs import Stale, UnverifiedView, check_receipt
from parley.client.client import Client
from parley.client.columns import check_packed
from parley.client.errors import LimitExceeded, NotReady, PermissionDenied, UnknownTopic
from parley.client.messages import Level, Message
from parley.client.verification import Completeness, Question, check_fetched
from parley.ledger.proofs import ProofError
from parley.model.batches import Message as Content
from parley.model.batches import Withheld
from parley.model.names import sorted_pairs
from parley.modules.registry.operations import AlterClient
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.tables import HEADS, TOPICS, TopicRecord
from parley.net.messages import Answer, Delivery, Failure, Fetch, Head, OpenStream, Prove
from parley.net.messages import Question as Asked

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"
SECRET = 'role == "doctor"'
HOUR = 3_600_000
SOON = 15.0
PATIENT = replace(TIMEOUTS, ack=600_000)


def saying(refused: str, *, proves: bool = True) -> Callable[[Asked, Answer], Answer]:
    """Refuses whatever is read, and does not prove it if it is told so."""

    def lie(question: Asked, answer: Answer) -> Answer:
        if isinstance(question, Fetch | OpenStream):
            return Failure(question.id, refused, "so it says", ())
        if isinstance(question, Prove) and not proves:
            return Failure(question.id, NotReady.code, "not now", ())
        return answer

    return lie


@dataclass
class NotReadyYet:
    """A broker that was restarted, and is ready when it has been asked so often."""

    questions: int

    def __call__(self, question: Asked, answer: Answer) -> Answer:
        if not isinstance(question, Fetch | OpenStream) or not self.questions:
            return answer
        self.questions -= 1
        return Failure(question.id, NotReady.code, "it was restarted", ())


@dataclass
class Replay:
    """Says again what it said first to the same question; `on` from when it does so."""

    on: bool = False
    said: dict[Asked, Answer] = field(default_factory=dict)

    def __call__(self, question: Asked, answer: Answer) -> Answer:
        if not isinstance(question, Fetch | Prove):
            return answer
        first = self.said.setdefault(replace(question, id=0), answer)
        return replace(first, id=question.id) if self.on else answer


# -- refusals without proof --------------------------------------------------------------------------------------------


@on_stage_with(PATIENT)
async def test_a_refusal_that_one_broker_does_not_prove_is_not_believed_while_the_others_are_not_ready(
    stage: Stage,
) -> None:
    alice = publish_plain(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        others = [NotReadyYet(2) for _ in stage.brokers[1:]]
        stage[FIRST].lie = saying(PermissionDenied.code, proves=False)
        for broker, lie in zip(stage.brokers[1:], others, strict=True):
            broker.lie = lie
        assert (await client.read("notes", 0)).text() == "a"
        assert [one.questions for one in others].count(2) == 0, (
            "all said at least once that they are not ready"
        )


@on_stage
async def test_a_refusal_that_one_broker_does_not_prove_is_not_believed_while_the_others_are_gone(
    stage: Stage,
) -> None:
    """They may come back, and then the refusal proves to be a lie."""
    alice = publish_plain(stage, "a")
    async with stage.client(alice, first=FIRST) as client, asyncio.timeout(SOON):
        stage[FIRST].lie = saying(PermissionDenied.code, proves=False)
        for broker in stage.brokers[1:]:
            await broker.stop()
        reading = asyncio.create_task(client.read("notes", 0))
        while stage[FIRST].asked["Fetch"] < 2 and not reading.done():  # noqa: ASYNC110 - nothing tells of a round
            await asyncio.sleep(0.01)
        assert not reading.done()
        for broker in stage.brokers[1:]:
            broker.start(broker.address)
        assert (await reading).text() == "a"


@on_stage_with(PATIENT)
async def test_a_subscriber_does_not_believe_one_unproven_refusal_while_the_others_are_not_ready(
    stage: Stage,
) -> None:
    async with following(stage) as (subscription, _):
        others = [NotReadyYet(2) for _ in stage.brokers[1:]]
        stage[FIRST].lie = saying(PermissionDenied.code, proves=False)
        for broker, lie in zip(stage.brokers[1:], others, strict=True):
            broker.lie = lie
        publish_to_subscribers(stage, "one")
        async with asyncio.timeout(SOON):
            assert texts(await take(subscription, 1)) == ["one"]
        assert [one.questions for one in others].count(2) == 0


@on_stage_with(PATIENT)
async def test_one_broker_does_not_deny_a_topic_while_the_others_are_behind(stage: Stage) -> None:
    """What the others say then does not count, and what is left is one broker's word."""
    asked = {broker.name: 0 for broker in stage.brokers}

    def behind(name: str) -> Lie:
        def lie(question: Asked, answer: Answer) -> Answer:
            if not isinstance(question, Prove):
                return answer
            asked[name] += 1
            old = (("judged", 1), ("topic", "notes"))
            return answer if asked[name] > 2 else Failure(question.id, UnknownTopic.code, "", old)

        return lie

    def denying(question: Asked, answer: Answer) -> Answer:
        fields = (("judged", 10**9), ("topic", "notes"))
        return Failure(question.id, UnknownTopic.code, "", fields) if isinstance(question, Prove) else answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = denying
        for broker in stage.brokers[1:]:
            broker.lie = behind(broker.name)
        async with asyncio.timeout(SOON):
            assert (await client.topic("notes")).partitions == 3


@on_stage
async def test_brokers_that_refuse_for_different_reasons_do_not_confirm_each_other(stage: Stage) -> None:
    alice = publish_plain(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = saying(PermissionDenied.code, proves=False)
        for broker in stage.brokers[1:-1]:
            broker.lie = saying(NotReady.code, proves=False)
        stage[SECOND].lie = saying(UnknownTopic.code, proves=False)
        assert (await client.read("notes", 0)).text() == "a"


@on_stage
async def test_a_refusal_that_the_state_cannot_prove_makes_no_broker_a_liar(stage: Stage) -> None:
    alice = publish_plain(stage, "a")
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = saying(LimitExceeded.code)
        assert (await client.read("notes", 0)).text() == "a"
        assert client.misbehaviour == ()


# -- refusals, proved by what is old -----------------------------------------------------------------------------------


async def _denied_before(stage: Stage, *, learns: bool) -> None:
    """Alice was not allowed to read once, and is now; a broker proves what was true then."""
    alice = publish_plain(stage, "a")
    stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, SECRET))
    replay = stage[FIRST].lie = Replay()
    async with stage.client(alice, first=FIRST) as before:
        with pytest.raises(PermissionDenied):
            await before.read("notes", 0)
    stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, ""))
    if not learns:
        stage.apply(time=stage.ledger.time + HOUR)
    replay.on = not learns
    async with stage.client(alice, first=FIRST) as client:
        assert (client.height < stage.ledger.height) is not learns

        def lie(question: Asked, answer: Answer) -> Answer:
            refused = saying(PermissionDenied.code)(question, answer)
            return replay(question, refused)

        replay.on, stage[FIRST].lie = True, lie
        assert (await client.read("notes", 0)).text() == "a"


@on_stage
async def test_a_refusal_that_is_proved_by_an_old_header_is_not_believed(stage: Stage) -> None:
    """The client has seen nothing newer: only the header's time tells."""
    await _denied_before(stage, learns=False)


@on_stage
async def test_a_refusal_that_is_proved_below_a_height_seen_before_is_not_believed(stage: Stage) -> None:
    """The header is new enough, and the client has seen a later one."""
    await _denied_before(stage, learns=True)


# -- what was true once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["read", "subscribe"])
def test_a_refusal_of_a_broker_that_proves_to_be_behind_does_not_count_beside_that_of_a_liar(
    way: str, tmp_path: Path
) -> None:
    async def reads(client: Client, stage: Stage) -> str | None:
        if way == "read":
            return (await client.read("notes", 0)).text()
        async with client.subscribe("notes", stage.watch("true"), "earliest") as subscription:
            return (await anext(subscription)).text()

    @on_stage
    async def story(stage: Stage) -> None:
        alice = publish_plain(stage, "a")
        stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, SECRET))
        replay = stage[SECOND].lie = Replay()
        async with stage.client(alice, first=SECOND) as before:
            with pytest.raises(PermissionDenied):
                await before.read("notes", 0)
        stage.ledger.do(ADMIN, AlterTopic("notes", None, None, None, ""))
        refuse = saying(PermissionDenied.code)
        async with asyncio.timeout(20), stage.client(alice, first=FIRST) as client:
            assert client.height == stage.ledger.height, "it has seen the state in which it may read"
            stage[FIRST].lie = saying(PermissionDenied.code, proves=False)
            replay.on = True
            stage[SECOND].lie = lambda question, answer: replay(question, refuse(question, answer))
            assert await reads(client, stage) == "a"

    story(tmp_path)


@pytest.mark.parametrize("level", ["certified", "quorum"])
def test_a_slow_clock_is_noticed_where_one_certified_answer_is_enough(level: Level, tmp_path: Path) -> None:
    @on_stage
    async def story(stage: Stage) -> None:
        alice = publish_plain(stage, "a")
        stage.ahead = -HOUR
        stage[FIRST].lie = replay = Replay()

        async with asyncio.timeout(20), stage.client(alice, verify=level, first=FIRST) as client:

            async def partitions() -> int:
                shown = await client.entry_proof(TOPICS, "notes")
                record = shown.check(stage.ledger.trust, client.application)
                assert isinstance(record, TopicRecord)
                return record.partitions

            await client.publish("notes", "b", partition=0)
            assert await partitions() == 3
            stage.ledger.do(ADMIN, AlterTopic("notes", 7, None, None, None))
            stage.apply(time=stage.ledger.time + HOUR // 2)
            replay.on = True
            assert await partitions() == 7

    story(tmp_path)


async def _texts(client: Client) -> object:
    return [one.text() async for one in client.fetch("notes", start=0)]


async def _columns(client: Client) -> object:
    return [payload for rows in (await client.page("notes", 0)).batches for payload in rows.payloads]


async def _ends(client: Client) -> object:
    return (await client._history.head("notes", 0)).next_offset


async def _entry(client: Client) -> object:
    record = await client.entry(HEADS, "notes", 0)
    assert record is not None
    return record.next_offset


async def _entry_proof(client: Client) -> object:
    found = (await client.entry_proof(HEADS, "notes", 0)).check(
        client._quorum.reader.trust, client.application
    )
    return getattr(found, "next_offset", None)


async def _observed(client: Client) -> object:
    (value,) = (await client.observer.entries([HEADS.key("notes", 0)])).values
    assert value is not None
    return HEADS.decode(value).next_offset


async def _height(client: Client) -> object:
    return (await client.certified_height()).height


def _first(messages: tuple[Message, ...]) -> object:
    return "hidden" if messages[0].empty else messages[0].text()


async def _read(client: Client) -> object:
    return _first((await client.read("notes", 0),))


async def _rows(client: Client) -> object:
    (rows,) = (await client.page("notes", 0)).batches
    return "hidden" if rows.hidden else rows.payloads[0].decode()


Look = Callable[[Client], Awaitable[object]]
LOOKS: list[Look] = [_texts, _columns, _ends, _entry, _entry_proof, _observed, _height]


async def _then_and_now(
    stage: Stage, look: Look, change: Callable[[], None], *, learns: bool
) -> tuple[object, object, object]:
    """What a broker shows at first, and after the change, when it shows the same again; and what another one shows.

    Either an hour has passed since, or the client `learns` a later height first.
    """
    alice = actor("alice")
    replay = stage[FIRST].lie = Replay()
    async with stage.client(alice, first=FIRST) as client:
        before = await look(client)
    change()
    if not learns:
        stage.apply(time=stage.ledger.time + HOUR)
    replay.on = not learns
    async with stage.client(alice, first=FIRST) as client:
        assert (client.height < stage.ledger.height) is not learns
        replay.on = True
        async with asyncio.timeout(SOON):
            now = await look(client)
        assert client.misbehaviour == ()
    async with stage.client(alice, first=SECOND) as client:
        return before, now, await look(client)


@pytest.mark.parametrize("learns", [False, True], ids=["old", "low"])
@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_what_is_not_so_any_more_is_not_believed(look: Look, learns: bool, tmp_path: Path) -> None:
    """Shown under an old header, or under one below a height seen before: each is refused without the other."""

    async def play(stage: Stage) -> None:
        publish_plain(stage)

        def change() -> None:
            publish_plain(stage, "new")

        then, now, really = await _then_and_now(stage, look, change, learns=learns)
        assert then != now == really

    on_stage(play)(tmp_path)


@pytest.mark.parametrize("learns", [False, True], ids=["old", "low"])
@pytest.mark.parametrize("look", [_read, _rows], ids=lambda look: look.__name__)
def test_what_was_hidden_once_is_not_taken_for_hidden_now(look: Look, learns: bool, tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        publish_plain(stage, "secret", rule=SECRET)

        def grant() -> None:
            stage.ledger.do(ADMIN, AlterClient("alice", sorted_pairs({"role": "doctor"}), ()))

        then, now, really = await _then_and_now(stage, look, grant, learns=learns)
        assert (then, now, really) == ("hidden", "secret", "secret")

    on_stage(play)(tmp_path)


@on_stage
async def test_a_subscriber_takes_no_redacted_messages_under_an_old_header(stage: Stage) -> None:
    """The broker delivers what was so an hour ago, when the reader had no right to the message."""
    held: list[Delivery] = []
    taken = asyncio.Event()

    def hold(question: Asked, answer: Answer) -> Answer | None:
        if isinstance(answer, Delivery):
            held.append(answer)
            taken.set()
        return None if isinstance(answer, Delivery | Head) else answer

    def release(question: Asked, answer: Answer) -> Answer | None:
        if isinstance(answer, Delivery | Head) and held:
            return replace(held.pop(), id=question.id)
        return None if isinstance(answer, Delivery | Head) else answer

    async with following(stage, withheld="yield") as (subscription, _):
        stage[FIRST].lie = hold
        publish_to_subscribers(stage, "secret", rule=SECRET)
        waiting = asyncio.create_task(take(subscription, 1))
        await taken.wait()
        del held[1:]
        stage.ledger.do(ADMIN, AlterClient("alice", sorted_pairs({"role": "doctor"}), ()))
        stage[FIRST].lie = release
        stage.apply(time=stage.ledger.time + TIMEOUTS.lease // 2)
        async with asyncio.timeout(SOON):
            (message,) = await waiting
        assert not message.empty
        assert message.text() == "secret"
    assert stage.lies == ()


# -- each check by itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    made.client("carol")
    made.topic("notes", partitions=2)
    made.publish(made.client("alice"), "notes", note("zero"), note("one"))
    return made


@pytest.mark.parametrize("columns", [False, True], ids=["messages", "columns"])
def test_an_empty_page_below_the_floor_is_refused(ledger: Ledger, columns: bool) -> None:
    """Read as messages or as columns: one of the two would hide that the other takes it."""
    reader = ledger.reader(actor("carol"))
    answer = ledger.fetched(actor("carol"), "notes", 2)
    view = believe(ledger, answer.anchor)

    def check(floor: int) -> int:
        question = Question("notes", 0, 2, floor)
        if columns:
            return len(check_packed(view, packed(answer), reader, question).batches)
        return len(check_fetched(view, answer, reader, question).messages)

    assert check(view.height) == 0
    with pytest.raises(Stale):
        check(view.height + 1)


def test_a_head_that_is_complete_in_one_partition_hides_nothing_of_another(ledger: Ledger) -> None:
    carol = actor("carol")
    order = ledger.follow(carol, "notes", "", ledger.subscribe(carol, "notes"))
    head = ledger.head("notes", "", 2)
    assert order.completeness(believe(ledger, head.anchor), head) is Completeness.COMPLETE
    ledger.publish(actor("alice"), "notes", note("two"), partition=1)
    head = ledger.head("notes", "", 2)
    assert order.completeness(believe(ledger, head.anchor), head) is Completeness.MISSING


def test_of_redacted_messages_each_is_judged_by_its_own_rule(ledger: Ledger) -> None:
    """The first one is hidden rightly, and the second one hides behind it."""
    carol = actor("carol")
    ledger.publish(
        actor("alice"), "notes", note("hidden", SECRET), note("for Carol", 'client == "carol"'), partition=1
    )
    answer = ledger.fetched(carol, "notes", partition=1)
    (block,) = answer.blocks
    (batch,) = block.batches
    hidden, shown = batch.contents
    assert isinstance(hidden, Withheld)
    assert isinstance(shown, Content)
    forged = replace(batch, contents=(hidden, shown.withheld()))
    lie = replace(answer, blocks=(replace(block, batches=(forged,)),))
    view, question = believe(ledger, answer.anchor), Question("notes", 1, 0, 0)
    assert len(checked_both_ways(view, answer, ledger.reader(carol), question).messages) == 2
    with pytest.raises(ProofError, match="allows this reader"):
        checked_both_ways(view, lie, ledger.reader(carol), question)


def test_the_last_message_of_a_partition_cannot_be_hidden(ledger: Ledger) -> None:
    answer = ledger.fetched(actor("carol"), "notes", 1)
    view, reader = believe(ledger, answer.anchor), ledger.reader(actor("carol"))
    assert len(checked_both_ways(view, answer, reader, Question("notes", 0, 1, 0)).messages) == 1
    with pytest.raises(ProofError, match="none from 1 on is shown"):
        checked_both_ways(view, replace(answer, blocks=()), reader, Question("notes", 0, 1, 0))


def test_another_topics_batch_is_noticed_in_the_same_partition(ledger: Ledger) -> None:
    """Of the same number and at the same offset, with a receipt and a signature that are good."""
    ledger.topic("other")
    ledger.publish(actor("alice"), "other", note("elsewhere"), note("and more"))
    other = ledger.fetched(actor("carol"), "other")
    lie = replace(other, head=ledger.entry(HEADS.key("notes", 0)))
    view, reader = believe(ledger, other.anchor), ledger.reader(actor("carol"))
    with pytest.raises(ProofError, match="another topic or partition"):
        checked_both_ways(view, lie, reader, Question("notes", 0, 0, 0))


def test_brokers_that_put_a_receipt_at_different_heights_or_times_do_not_agree(ledger: Ledger) -> None:
    """Where answers are compared instead of proved, all that a client hands out is compared."""
    batch = ledger.publication(actor("alice"), "notes", note("two"))
    ledger.order(batch)
    answer = ledger.receipted(batch.digest)
    view = UnverifiedView(answer.anchor, DATA_SHARD.decode_leaf)
    honest = check_receipt(view, answer, batch.digest)
    header = answer.proof.header
    for changed in (replace(header, height=header.height + 1), replace(header, time=header.time + 1)):
        lie = replace(answer, proof=replace(answer.proof, header=changed))
        assert check_receipt(view, lie, batch.digest) != honest
    assert check_receipt(view, answer, batch.digest) == honest


@on_stage
async def test_columns_are_not_taken_from_below_the_floor_of_who_asks(stage: Stage) -> None:
    """A reader that knows of a height from elsewhere, as Spark does from its offsets, is shown nothing older."""
    alice = publish_plain(stage)
    replay = stage[FIRST].lie = Replay()
    async with stage.client(alice, first=FIRST) as client:
        assert await _columns(client) == []
    publish_plain(stage, "new")
    replay.on = True
    async with stage.client(alice, first=FIRST) as client:
        assert client.height < stage.ledger.height
        page = await client.page("notes", 0, floor=stage.ledger.height)
        assert [payload for rows in page.batches for payload in rows.payloads] == [b"new"]


@on_stage
async def test_a_refusal_that_was_true_once_does_not_stand_beside_a_later_lie(stage: Stage) -> None:
    """The right is gone for a while, and one broker says so. When it is back, that broker is not ready, and one lies."""
    liar = stage.brokers[-1].name
    said: Counter[str] = Counter()
    lied = asyncio.Event()

    def refuse(name: str) -> Lie:
        def lie(question: Asked, answer: Answer) -> Answer:
            if lied.is_set() or not isinstance(question, OpenStream | Prove):
                return answer
            said[name] += isinstance(question, OpenStream)
            if said[FIRST] == 1 if name == FIRST else name == liar and said[FIRST] > 2:
                if name == liar and isinstance(
                    question, Prove
                ):  # it has not proved its refusal, and that is all
                    lied.set()
                return Failure.of(question.id, UnknownTopic(topic="notes", judged=stage.ledger.height))
            return Failure(question.id, NotReady.code, "filling_in", ())

        return lie

    async with following(stage) as (subscription, _):
        publish_to_subscribers(stage, "one")
        await take(subscription, 1)
        for broker in stage.brokers:
            broker.lie = refuse(broker.name)
            broker.cut()
        waiting = asyncio.create_task(take(subscription, 1))
        async with asyncio.timeout(SOON):
            await lied.wait()
            publish_to_subscribers(stage, "two")
            assert texts(await waiting) == ["two"]
