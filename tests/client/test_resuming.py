"""A subscriber that goes away and comes back with its position: nothing is missed, nothing comes twice, whatever happened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.application.world import ADMIN, actor
from tests.client.ledger import note
from tests.client.stage import TIMEOUTS, Stage, on_stage
from tests.client.test_subscribing import FIRST, WHERE, publish, take, texts

from parley.application.tables import encode_value
from parley.client.errors import ClientClosed, Invalid, NotReady, Pruned, TopicReplaced, UnknownPartition
from parley.client.history import History
from parley.client.messages import Level, Message
from parley.client.position import PartitionPosition, Position
from parley.client.subscription import Subscription
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.net.messages import Answer, Failure, Fetch, OpenStream, Prove, Proven, Question

LAST = "broker-insurer"
SOON = 20.0  # seconds, in which a test that waits in vain ends


@asynccontextmanager
async def subscribed(stage: Stage, start: Any = "latest", **options: Any) -> AsyncIterator[Subscription]:  # noqa: ANN401
    """Alice, in a client of her own; as when the process dies, the network does not hear that she leaves."""
    for name in ("alice", "bob"):
        if actor(name).key not in stage.actors:
            stage.registered(name)
    async with stage.client(actor("alice"), first=FIRST) as client:
        subscription = client.subscribe("notes", stage.watch(WHERE), start, keep=True, **options)
        async with subscription:
            yield subscription
        stage.lies += client.misbehaviour


def numbered(messages: list[Message]) -> list[tuple[str, int | None]]:
    return [(message.text(), message.ps) for message in messages]


def saved(subscription: Subscription) -> Position:
    """The position as another process would find it."""
    return Position.from_json(subscription.position().to_json())


# -- the same order ------------------------------------------------------------------------------------------------------


@on_stage
async def test_while_its_order_lives_a_subscriber_goes_on_at_its_number(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one", "two", "three")
        assert numbered(await take(before, 2)) == [("one", 0), ("two", 1)]
        position = saved(before)
    publish(stage, "four")
    fetches = stage.asked("Fetch")
    async with subscribed(stage, position) as after:
        publish(stage, "five")
        assert numbered(await take(after, 3)) == [("three", 2), ("four", 3), ("five", 4)]
    assert stage.asked("Fetch") == fetches


@on_stage
async def test_a_position_is_that_of_what_was_handed_out_not_of_what_was_read_ahead(stage: Stage) -> None:
    """One block brings three messages; the subscriber goes away after the first of them."""
    async with subscribed(stage) as before:
        batch = stage.ledger.publication(
            actor("bob"), "notes", *(note(text, ward="er") for text in ("one", "two", "three"))
        )
        stage.apply(batch)
        assert before.waiting == 0
        assert texts(await take(before, 1)) == ["one"]
        assert before.waiting == 2
        position = saved(before)
    assert position.partitions[0] == PartitionPosition(0, 1, position.partitions[0].incarnation, 1)
    async with subscribed(stage, position) as after:
        assert numbered(await take(after, 2)) == [("two", 1), ("three", 2)]


@on_stage
async def test_a_partition_that_was_added_meanwhile_is_read_from_its_start(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one")
        await take(before, 1)
        position = saved(before)
    stage.ledger.do(ADMIN, AlterTopic("notes", 4, None, None, None))
    publish(stage, "two", partition=3)
    async with subscribed(stage, position) as after:
        assert numbered(await take(after, 1)) == [("two", 0)]


@on_stage
async def test_a_subscriber_may_resume_from_any_broker(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one")
        await take(before, 1)
        position = saved(before)
    await stage[FIRST].stop()
    publish(stage, "two")
    async with subscribed(stage, position) as after:
        assert numbered(await take(after, 1)) == [("two", 1)]


# -- by offset -----------------------------------------------------------------------------------------------------------


@on_stage
async def test_after_its_lease_was_lost_a_subscriber_goes_on_by_offset(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one", "two")
        await take(before, 1)
        position = saved(before)
    stage.apply(time=stage.ledger.time + TIMEOUTS.lease + 1)
    publish(stage, "three")
    async with subscribed(stage, position) as after:
        publish(stage, "four")
        assert numbered(await take(after, 3)) == [("two", None), ("three", None), ("four", 0)]


@on_stage
async def test_a_position_in_history_is_an_offset(stage: Stage) -> None:
    stage.registered("bob")
    publish(stage, "one", "two", "three")
    async with subscribed(stage, "earliest") as before:
        assert texts(await take(before, 1)) == ["one"]
        position = saved(before)
    assert position.partitions[0] == PartitionPosition(0, 1)
    async with subscribed(stage, position) as after:
        publish(stage, "four")
        assert numbered(await take(after, 3)) == [("two", None), ("three", None), ("four", 0)]


@on_stage
async def test_what_another_subscriber_began_is_not_taken_for_ones_own_order(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one")
        await take(before, 1)
        position = saved(before)
    stage.apply(time=stage.ledger.time + TIMEOUTS.lease + 1)
    publish(stage, "two")
    carol = stage.registered("carol")
    stage.ledger.subscribe(carol, "notes", WHERE)
    publish(stage, "three")
    async with subscribed(stage, position) as after:
        publish(stage, "four")
        assert numbered(await take(after, 3)) == [("two", None), ("three", None), ("four", 1)]


@on_stage
async def test_a_position_in_a_topic_that_was_made_again_is_refused_by_name(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one", "two")
        await take(before, 1)
        position = saved(before)
    stage.remake(1)
    publish(stage, "three")
    with pytest.raises(TopicReplaced, match="deleted and made again"):
        async with subscribed(stage, position):
            pass
    async with subscribed(stage) as anew:
        publish(stage, "four")
        assert numbered(await take(anew, 1)) == [("four", 0)]
        assert saved(anew).topic_id == stage.ledger.topic_id("notes") != position.topic_id
    assert stage.lies == ()


@on_stage
async def test_a_subscriber_that_stays_does_not_slip_into_a_topic_made_again(stage: Stage) -> None:
    """It was away from its brokers when that happened, with messages that it had not read."""
    async with asyncio.timeout(SOON), subscribed(stage) as subscription:
        for broker in stage.brokers:
            broker.deaf = lambda question: isinstance(question, OpenStream)
            broker.cut()
        publish(stage, "one", partition=2)
        stage.remake(3)
        publish(stage, "two")
        for broker in stage.brokers:
            broker.deaf = lambda _: False
            broker.cut()
        with pytest.raises(TopicReplaced):
            await take(subscription, 1)


@on_stage
async def test_a_subscriber_that_reads_history_does_not_slip_into_a_topic_made_again(stage: Stage) -> None:
    stage.registered("bob")
    for partition in range(3):
        publish(stage, f"in {partition}", partition=partition)
    async with asyncio.timeout(SOON), subscribed(stage, "earliest") as subscription:
        assert texts(await take(subscription, 1)) == ["in 0"]
        stage.remake(3)
        publish(stage, "after")
        said: list[str] = []
        while not said or said[-1] == Pruned.code:
            with pytest.raises((TopicReplaced, Pruned)) as refused:
                await anext(subscription)
            said.append(refused.value.code)
        assert said[-1] == TopicReplaced.code
    assert stage.lies == ()


@on_stage
async def test_a_page_of_another_topic_of_the_name_is_not_taken_for_one_of_this(stage: Stage) -> None:
    stage.registered("bob")
    publish(stage, "one")
    old = stage.ledger.topic_id("notes")
    async with asyncio.timeout(SOON), stage.client(stage.registered("alice"), first=FIRST) as client:
        history = History(client._quorum, client._topics)
        assert len((await history.page("notes", 0, 0, topic_id=old)).messages) == 1
        stage.remake(1)
        publish(stage, "two")
        new = stage.ledger.topic_id("notes")
        with pytest.raises(TopicReplaced):
            await history.page("notes", 0, 1, topic_id=old)
        (message,) = (await history.page("notes", 0, 1, topic_id=new)).messages
        assert (message.text(), message.topic_id) == ("two", new)
    assert stage.lies == ()


@on_stage
async def test_a_position_of_another_ledger_or_of_an_epoch_to_come_is_refused(stage: Stage) -> None:
    async with subscribed(stage) as before:
        publish(stage, "one")
        await take(before, 1)
        position = saved(before)
    assert (position.shard, position.epoch) == (0, 0)
    for other, what in ((replace(position, shard=1), "shard 1"), (replace(position, epoch=1), "epoch 1")):
        with pytest.raises(Invalid, match=what):
            async with subscribed(stage, other):
                pass


@on_stage
async def test_fetching_from_a_partition_that_a_topic_made_again_has_not_is_refused(stage: Stage) -> None:
    stage.registered("bob")
    publish(stage, "one", "two", partition=2)
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        reading = client.fetch("notes", partition=2, follow=True)
        assert (await anext(reading)).text() == "one"
        assert (await anext(reading)).text() == "two"
        stage.remake(2)
        with pytest.raises(UnknownPartition, match="partitions 0 to 1 only"):
            await anext(reading)
        with pytest.raises(UnknownPartition, match="partitions 0 to 1 only"):
            await anext(client.fetch("notes", partition=2, start=1))


# -- what is not kept any more ---------------------------------------------------------------------------------------------


@on_stage
async def test_what_was_pruned_meanwhile_is_told_once(stage: Stage) -> None:
    """The order lives, and yet its next messages are gone."""
    async with subscribed(stage) as before:
        publish(stage, "one", "two", "three", "four")
        await take(before, 1)
        position = saved(before)
    stage.ledger.prune("notes", 0, 3)
    async with subscribed(stage, position) as after:
        with pytest.raises(Pruned, match="partition 0 starts at offset 3"):
            await take(after, 1)
        assert [one.offset for one in after.position().partitions] == [3, 0, 0]
        publish(stage, "five")
        assert numbered(await take(after, 2)) == [("four", None), ("five", 4)]
    assert stage.lies == ()


@on_stage
async def test_what_was_pruned_by_offset_is_told_once(stage: Stage) -> None:
    stage.registered("bob")
    publish(stage, "one", "two", "three")
    async with subscribed(stage, "earliest") as before:
        await take(before, 1)
        position = saved(before)
    stage.ledger.prune("notes", 0, 2)
    async with subscribed(stage, position) as after:
        with pytest.raises(Pruned):
            await take(after, 1)
        assert numbered(await take(after, 1)) == [("three", None)]
    assert stage.lies == ()


def keeps_all(question: Question, answer: Answer) -> Answer:
    """A broker that says of each partition that nothing was pruned there."""
    if not (isinstance(question, Prove) and isinstance(answer, Proven)):
        return answer
    none, heads = encode_value(PartitionRecord(0, 0)), HEADS.prefix()
    return replace(
        answer,
        entries=tuple(
            replace(entry, value=none) if entry.key.startswith(heads) else entry for entry in answer.entries
        ),
    )


@pytest.mark.parametrize("level", ["certified", "quorum"])
def test_one_liar_keeps_no_reader_before_pruned_messages(level: Level, tmp_path: Path) -> None:
    @on_stage
    async def story(stage: Stage) -> None:
        stage.registered("bob")
        publish(stage, "one", "two", "three", "four")
        async with subscribed(stage, "earliest") as before:
            await take(before, 1)
            position = saved(before)
        stage.ledger.prune("notes", 0, 3)
        stage[FIRST].lie = keeps_all
        async with (
            asyncio.timeout(SOON),
            stage.client(actor("alice"), first=FIRST, verify=level) as client,
            client.subscribe("notes", stage.watch(WHERE), position, keep=True) as after,
        ):
            with pytest.raises(Pruned):
                await take(after, 1)
            assert texts(await take(after, 1)) == ["four"]
        assert {lie.broker for lie in client.misbehaviour} <= {FIRST}

    story(tmp_path)


@on_stage
async def test_one_liar_makes_no_liars_of_brokers_that_say_what_was_pruned(stage: Stage) -> None:
    stage.registered("bob")
    async with subscribed(stage) as before:
        publish(stage, "one", "two", "three", "four")
        await take(before, 1)
        position = saved(before)
    stage.ledger.prune("notes", 0, 3)
    stage[LAST].lie = keeps_all
    stage[LAST].deaf = lambda question: isinstance(question, OpenStream)
    async with (
        asyncio.timeout(SOON),
        stage.client(actor("alice"), first=LAST, verify="quorum") as client,
        client.subscribe("notes", stage.watch(WHERE), position, keep=True) as after,
    ):
        with pytest.raises(Pruned, match="partition 0 starts at offset 3"):
            await take(after, 1)
        assert texts(await take(after, 1)) == ["four"]
    assert {lie.broker for lie in client.misbehaviour} <= {LAST}


@on_stage
async def test_in_the_middle_of_a_block_whose_beginning_was_pruned_nothing_is_missed(stage: Stage) -> None:
    async with subscribed(stage) as before:
        batch = stage.ledger.publication(
            actor("bob"), "notes", *(note(text, ward="er") for text in ("one", "two", "three"))
        )
        stage.apply(batch)
        await take(before, 1)
        position = saved(before)
    stage.ledger.prune("notes", 0, 1)
    async with subscribed(stage, position) as after:
        assert numbered(await take(after, 2)) == [("two", None), ("three", None)]
    assert stage.lies == ()


@on_stage
async def test_a_broker_that_calls_pruned_what_is_kept_is_caught(stage: Stage) -> None:
    async with subscribed(stage) as subscription:
        stage[FIRST].lie = lambda question, answer: (
            Failure(question.id, Pruned.code, "long ago", ()) if isinstance(question, OpenStream) else answer
        )
        publish(stage, "one")
        assert numbered(await take(subscription, 1)) == [("one", 0)]
    assert "none was" in stage.lies[0].problem


@on_stage
async def test_one_broker_that_calls_pruned_what_is_kept_is_not_believed_while_the_others_are_not_ready(
    stage: Stage,
) -> None:
    """It does not prove it, either: nothing is skipped, and nobody is told that something is gone."""
    stage.registered("bob")
    publish(stage, "one", "two", "three")
    not_ready = 3

    def pruned(question: Question, answer: Answer) -> Answer | None:
        if isinstance(question, Prove):
            return None
        return Failure(question.id, Pruned.code, "long ago", ()) if isinstance(question, Fetch) else answer

    def waiting(question: Question, answer: Answer) -> Answer:
        nonlocal not_ready
        if isinstance(question, Fetch) and not_ready:
            not_ready -= 1
            return Failure(question.id, NotReady.code, "it was restarted", ())
        return answer

    async with subscribed(stage, {0: 1}) as subscription:
        for broker in stage.brokers:
            broker.lie = pruned if broker.name == FIRST else waiting
        assert texts(await take(subscription, 2)) == ["two", "three"]
        assert not_ready == 0


# -- positions that do not fit -------------------------------------------------------------------------------------------------


@on_stage
async def test_a_position_of_something_else_is_refused(stage: Stage) -> None:
    async with subscribed(stage) as subscription:
        position = subscription.position()
    async with stage.client(actor("alice")) as client:
        for topic, where, start in (
            ("other", WHERE, position),
            ("notes", "", position),
            ("notes", WHERE, replace(position, chain="00" * 32)),
        ):
            with pytest.raises(Invalid, match="the position is one of"):
                client.subscribe(topic, where, start)
        ahead = (replace(position.partitions[0], offset=1), *position.partitions[1:])
        with pytest.raises(Invalid, match="lies ahead of partition 0"):
            async with client.subscribe("notes", WHERE, replace(position, partitions=ahead)):
                pass
        with pytest.raises(ClientClosed, match="no position yet"):
            client.subscribe("notes", WHERE, position).position()


positions = st.builds(
    Position,
    chain=st.text("0123456789abcdef"),
    shard=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**63 - 1),
    topic=st.text(),
    topic_id=st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**32 - 1)),
    where=st.text(),
    partitions=st.lists(
        st.builds(
            lambda partition, offset, order: PartitionPosition(partition, offset, *order),
            st.integers(0, 63),
            st.integers(0, 2**63 - 1),
            st.just((None, None))
            | st.tuples(st.tuples(st.integers(0, 2**40), st.integers(0, 2**20)), st.integers(0, 2**63 - 1)),
        ),
        unique_by=lambda one: one.partition,
        max_size=64,
    ).map(tuple),
)


@given(positions)
def test_a_position_survives_being_written_down(position: Position) -> None:
    assert Position.from_json(position.to_json()) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"chain":"","topic":"","where":"","partitions":[]}',
        '{"chain":"","shard":0,"epoch":0,"topic":"","topic_id":[0,0],"where":"","partitions":[{"partition":0,"offset":-1}]}',
        '{"chain":"","shard":0,"epoch":0,"topic":"","topic_id":[0,0],"where":"","partitions":[{"partition":0,"offset":1,"ps":1}]}',
        '{"chain":"","shard":0,"epoch":0,"topic":"","topic_id":[0,0],"where":"","partitions":[{"partition":0,"offset":1},{"partition":0,"offset":1}]}',
        '{"chain":"\ud800","shard":0,"epoch":0,"topic":"","topic_id":[0,0],"where":"","partitions":[]}',
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="no position"):
        Position.from_json(text.encode(errors="surrogatepass"))


def test_a_file_holds_the_old_position_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    old, new = (
        Position("00", 0, 0, "notes", (2, 0), "", (PartitionPosition(0, offset),)) for offset in (1, 2)
    )
    old.save(path)
    new.save(path)
    assert Position.load(path) == new
    assert [one.name for one in tmp_path.iterdir()] == ["position.json"]
    with pytest.raises(FileNotFoundError):
        new.save(tmp_path / "nowhere" / "position.json")
    assert Position.load(path) == new
    assert path.stat().st_mode & 0o777 == 0o600


def test_saving_follows_no_link_that_somebody_else_has_laid(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("mine")
    for name in (f".position.json.{os.getpid()}", "position.json"):
        (tmp_path / name).symlink_to(other)
    Position("00", 0, 0, "notes", (2, 0), "", ()).save(tmp_path / "position.json")
    assert other.read_text() == "mine"
    assert not (tmp_path / "position.json").is_symlink()
