"""What a client knows of a topic before it composes or reads a message: its certified record, and the codec of its policy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from parley.application.tables import Table
from parley.client.errors import (
    ContextError,
    MissingCodec,
    TopicReplaced,
    UnknownClient,
    UnknownPartition,
    UnknownTopic,
)
from parley.client.quorum import QuorumClient
from parley.client.state import StateReader
from parley.model.names import Position as TopicId
from parley.model.names import is_topic
from parley.modules.topics.access import id_text
from parley.modules.topics.tables import TOPICS, TopicRecord
from parley.privacy.codecs import Topic
from parley.privacy.table import Codecs, TopicCodec, UnknownSetting

# Names codecs as module:name. Only the environment of a program names code, never anything that a network says.
VARIABLE = "PARLEY_CODECS"
RECORD_SECONDS = 60.0  # for which a topic's record is remembered
UNKNOWN_PAUSE_S = 0.1  # after which brokers that do not know this client are asked again
MAX_REMEMBERED = 10_000  # topics
OLD_RECORD = (
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
)  # refusals which say that a topic's record is old


class Entry(Protocol):
    """Looks a topic up."""

    def __call__(self, table: Table[TopicRecord, str], name: str, /) -> Awaitable[TopicRecord | None]: ...


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic's certified record, and what seals and opens its messages."""

    record: TopicRecord
    codec: TopicCodec

    @property
    def name(self) -> str:
        return self.record.name


@dataclass(eq=False, repr=False)
class Topics:
    """The certified records of topics, remembered for a while."""

    _quorum: QuorumClient
    _state: StateReader
    _codecs: Codecs
    # With the time, by name: as they were when they were asked for, and as they were certified at some height before.
    _new: dict[str, tuple[TopicRecord, float]] = field(default_factory=dict)
    _certified: dict[str, tuple[TopicRecord, float]] = field(default_factory=dict)

    async def record(self, name: str, *, fresh: bool = False) -> TopicRecord:
        """The record of a topic that exists, at most a minute old unless `fresh`. Raises `UnknownTopic`.

        Its partitions only grow, and its policy stays, unless the topic is created again.
        """
        record = None if fresh else _remembered(self._new, name)
        if record is None:
            record = await self._once_known(name, self._state.entry)
            _remember(self._new, name, record)
        return _existing(record)

    async def now(self, name: str) -> TopicRecord:
        """The record of a topic that exists, as it is now. Raises `UnknownTopic`."""
        return _existing(await _shown(name, self._state.entry))

    async def topic_id(self, name: str, *, fresh: bool = False) -> TopicId:
        """The id of the topic that has this name, at most a minute old unless `fresh`. Raises `UnknownTopic`."""
        return (await self.record(name, fresh=fresh)).created

    async def to_publish(self, name: str, *, fresh: bool = False) -> KnownTopic:
        """What a message is composed for. Raises `UnknownTopic`, and `MissingCodec`."""
        record = await self.record(name, fresh=fresh)
        return KnownTopic(record, self._codec(record))

    async def to_read(self, name: str, topic_id: TopicId) -> TopicCodec:
        """What opens the messages of the topic with this id, also if it was deleted. Raises `UnknownTopic`, and `MissingCodec`.

        A policy stays, so that the record need not be new: what is certified can be read also while nothing new is. But
        another topic of the name may have another policy: for messages of one that is no more, raises `TopicReplaced`.
        """
        record = _remembered(self._new, name) or _remembered(self._certified, name)
        if record is None or record.created != topic_id:
            record = await self._once_known(name, self._state.certified)
            self.forget(name)
            _remember(self._certified, name, record)
        if record.created != topic_id:
            raise TopicReplaced(topic=name, topic_id=id_text(topic_id), present=id_text(record.created))
        return self._codec(record)

    def forget(self, name: str) -> None:
        """Ask again the next time, because the record is old."""
        self._new.pop(name, None)
        self._certified.pop(name, None)

    def _codec(self, record: TopicRecord) -> TopicCodec:
        policy = record.policy
        try:
            return self._codecs.of(Topic(record.name, record.created, policy.matching, policy.payload))
        except UnknownSetting as error:
            raise MissingCodec(error.topic, error.dial, error.setting) from None

    async def _once_known(self, name: str, entry: Entry) -> TopicRecord:
        """The record of a topic. Brokers that do not know this client yet are asked again for a while.

        They may be behind those that registered it. What is guessed meanwhile would send a key to another partition, or
        publish in another form than the topic's policy says.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._quorum.timeouts.freshness / 1_000
        while True:
            try:
                return await _shown(name, entry)
            except UnknownClient:
                if clock() >= until:
                    raise
            await asyncio.sleep(UNKNOWN_PAUSE_S)


def _remembered(known: Mapping[str, tuple[TopicRecord, float]], name: str) -> TopicRecord | None:
    found = known.get(name)
    is_recent = found is not None and asyncio.get_running_loop().time() - found[1] < RECORD_SECONDS
    return found[0] if found is not None and is_recent else None


def _remember(known: dict[str, tuple[TopicRecord, float]], name: str, record: TopicRecord) -> None:
    """Keep a record for a while, but not that of a deleted topic, which may be created again at any time."""
    known.pop(name, None)
    if record.deleted:
        return
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[name] = record, asyncio.get_running_loop().time()


def _existing(record: TopicRecord) -> TopicRecord:
    if record.deleted:
        raise UnknownTopic(topic=record.name)
    return record


async def _shown(name: str, entry: Entry) -> TopicRecord:
    # Brokers prove nothing of a key that no topic can have, such as one with a zero byte in the name.
    record = await entry(TOPICS, name) if is_topic(name) else None
    if record is None:
        raise UnknownTopic(topic=name)
    return record


def chosen_codecs(given: Codecs | None = None) -> Codecs:
    """The codecs that are given, or that the environment names, or else those of Parley. Raises `ContextError`."""
    named = os.environ.get(VARIABLE, "")
    if given is not None or not named:
        return Codecs() if given is None else given
    module, _, name = named.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ContextError(
            f"{VARIABLE} is {named!r}, which cannot be loaded: {error}. It names a value as MODULE:NAME, and PYTHONPATH leads "
            "to the module."
        ) from None
    if not isinstance(found, Codecs):
        raise ContextError(
            f"{VARIABLE} is {named!r}, which is no Codecs of parley.privacy.table. Make one with your codecs in it."
        )
    return found
