"""Where codecs are called: with the place that a batch has, with room for what they add, and so that nothing is lost."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from tests.client.stage import Stage, on_stage

from parley.applications import DATA_SHARD
from parley.client.client import Client
from parley.client.compose import MAX_CONTENT, Composer
from parley.client.errors import ContextError, Oversized, Stalled, TopicReplaced
from parley.client.topics import VARIABLE, chosen_codecs
from parley.model.batches import FORMAT, PUBLISH, BatchHeader, Message, MessageHeader, encode
from parley.net.messages import Submit
from parley.privacy.codecs import AsPublished, Columns, Opened, Topic, Unopened
from parley.privacy.table import Codecs, TopicCodec, UnknownSetting

FIRST = "broker-hospital-a"
TOPIC = Topic("notes", (1, 0), "clear", "plain")


@dataclass
class Placed:
    """Puts the session of the batch behind each payload. `open` goes on when it may, and fails `failures` times before."""

    name: str = "plain"
    overhead: int = 16
    failures: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def seal(self, topic: Topic, header: BatchHeader, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        assert topic.name == header.topic
        return tuple(replace(one, payload=one.payload + header.session) for one in messages)

    async def open(self, topic: Topic, sealed: Columns) -> Columns:
        assert topic.name == "notes"
        self.begun.set()
        await self.ready.wait()
        if self.failures:
            self.failures -= 1
            raise Stalled("asking for shares", {})
        payloads = [payload[:-16] for payload in sealed.payloads if not isinstance(payload, Unopened)]
        return Opened(sealed.partitions, sealed.headers, sealed.rules, payloads)


def given(client: Client, codec: Placed) -> Placed:
    client._topics._codecs.payload["plain"] = codec
    return codec


@on_stage
async def test_a_batch_that_is_signed_again_is_sealed_again_for_its_new_place(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        given(client, Placed())
        stage[FIRST].deaf = lambda question: isinstance(question, Submit)
        waiting = asyncio.create_task(client.publish("notes", "one", partition=0))
        await stage[FIRST].sent(1)
        line = client._sequence(await client._topics.record("notes"), 0)
        (entry,) = line._entries
        before = entry.header.session
        line._renew()
        assert [one.payload for one in entry.published] == [b"one" + entry.header.session]
        assert entry.header.session != before
        stage[FIRST].cut()
        stage[FIRST].deaf = lambda _: False
        receipt = await waiting
        shown = receipt.proof().message
        assert shown is not None
        assert shown.message.payload == b"one" + receipt.proof().batch.session


@on_stage
async def test_nothing_is_lost_when_opening_fails_or_is_given_up(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        codec = given(client, Placed(failures=1))
        async with asyncio.timeout(20), client.subscribe("notes", stage.watch("true")) as subscription:
            await client.publish("notes", "one", partition=0)
            await client.publish("notes", "two", partition=0)
            before = subscription.position()
            coming = asyncio.create_task(anext(subscription))
            await codec.begun.wait()
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming
            assert subscription.position() == before
            codec.ready.set()
            with pytest.raises(Stalled):
                await anext(subscription)
            assert subscription.position() == before
            assert [(await anext(subscription)).text() for _ in range(2)] == ["one", "two"]
            assert subscription.position() != before
            read = await client.read("notes", 0)
            assert read.text() == "one"
            assert read.published.payload == b"one" + read.published.payload[-16:]


@dataclass
class Noting(AsPublished):
    """Notes of which topics it opened messages, by their ids."""

    name: str = "plain"
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def open(self, topic: Topic, sealed: Columns) -> Columns:
        self.asked.append(topic.id)
        return sealed


@on_stage
async def test_messages_are_opened_by_the_policy_of_the_topic_that_they_are_of(stage: Stage) -> None:
    """One that is made again under the same name may have another: to read it as plain would show what is sealed as said."""
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        codec = Noting()
        client._topics._codecs.payload["plain"] = codec
        await client.publish("notes", "one", partition=0)
        before = (await client.read("notes", 0)).topic_id
        stage.remake(3)
        async with stage.client(stage.registered("bob"), first=FIRST) as other:
            await other.publish("notes", "two", partition=0)
        await client.page("notes", 1)
        after = (await client.read("notes", 1)).topic_id
        assert codec.asked == [before, after, after]
        with pytest.raises(TopicReplaced, match="made again"):
            await client._topics.to_read("notes", before)


def test_room_is_left_for_what_sealing_adds() -> None:
    def composer(overhead: int) -> Composer:
        return Composer(key=None, tags=None, headers=None, rule="", rng=os.urandom, overhead=overhead)

    room = MAX_CONTENT - composer(0)._overhead
    assert composer(0).message(bytes(room)).payload == bytes(room)
    with pytest.raises(Oversized):
        composer(16).message(bytes(room))
    sizes = [len(group) for group in composer(100).groups([bytes(100)] * 10, lambda: 10, 1_000)]
    assert sizes == [4, 4, 2]


def test_plain_and_clear_leave_messages_as_they_are() -> None:
    codec = Codecs().of(TOPIC)
    message = Message(bytes(16), encode(MessageHeader()), "", b"x")
    header = BatchHeader(FORMAT, bytes(32), 0, PUBLISH, "notes", (1, 0), 0, bytes(32), bytes(16), 0, 1, 9)
    messages = (message,)
    assert codec.seal(header, messages) is messages
    columns = Opened([0], [message.header], [""], [b"x"])
    assert asyncio.run(codec.open(columns)) is columns
    assert codec.overhead == 0


def test_a_setting_without_a_codec_is_never_taken_for_another() -> None:
    codecs = Codecs(payload=(Placed(name="mine"),))
    assert isinstance(codecs.of(TOPIC), TopicCodec)
    assert codecs.of(Topic("notes", (1, 0), "clear", "mine")).overhead == 16
    for unknown in (Topic("notes", (1, 0), "clear", "other"), Topic("notes", (1, 0), "sse", "plain")):
        with pytest.raises(UnknownSetting):
            codecs.of(unknown)
    with pytest.raises(ValueError, match="two payload codecs plain"):
        Codecs(payload=(Placed(),))


def test_codecs_come_from_the_program_and_its_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(chosen_codecs().payload) == {"plain"}
    monkeypatch.setenv(VARIABLE, "tests.privacy.toy:CODECS")
    assert set(chosen_codecs().payload) == {"plain", "toy"}
    given = Codecs()
    assert chosen_codecs(given) is given
    for wrong in ("tests.privacy.toy", "tests.privacy.toy:APPLICATION", "no_such_module:CODECS"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ContextError, match="PARLEY_CODECS is"):
            chosen_codecs()


def test_every_setting_that_topics_may_have_has_a_codec() -> None:
    codecs = Codecs()
    assert DATA_SHARD.settings == {"matching": tuple(codecs.matching), "payload": tuple(codecs.payload)}
