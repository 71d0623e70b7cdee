"""The codecs that a program has, by the settings that they are for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from parley.model.batches import BatchHeader, Message
from parley.privacy.codecs import Codec, Columns, MatchingCodec, PayloadCodec, Topic
from parley.privacy.matching.clear import Clear
from parley.privacy.payload.plain import Plain

C = TypeVar("C", bound=Codec)

CLEAR = Clear()
# The codecs of Parley. A new one is added here.
MATCHING: tuple[MatchingCodec, ...] = (CLEAR,)
PAYLOAD: tuple[PayloadCodec, ...] = (Plain(),)


class UnknownSetting(LookupError):  # noqa: N818 - it names the condition
    """There is no codec for a setting of a topic."""

    def __init__(self, topic: str, dial: str, setting: str) -> None:
        super().__init__(f"there is no {dial} codec {setting}")
        self.topic = topic
        self.dial = dial
        self.setting = setting


@dataclass(frozen=True, slots=True)
class TopicCodec:
    """How the messages of one topic are sealed and opened."""

    topic: Topic
    matching: MatchingCodec
    payload: PayloadCodec
    overhead: int  # of both

    def seal(self, header: BatchHeader, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        sealed = self.payload.seal(self.topic, header, self.matching.seal(self.topic, header, messages))
        assert len(sealed) == header.count, "a codec seals every message of a batch"
        return sealed

    async def open(self, sealed: Columns) -> Columns:
        return await self.matching.open(self.topic, await self.payload.open(self.topic, sealed))


class Codecs:
    """The codecs of a program: those of Parley, and those that it is given besides."""

    def __init__(
        self, *, matching: Iterable[MatchingCodec] = (), payload: Iterable[PayloadCodec] = ()
    ) -> None:
        self.matching = _by_name("matching", chain(MATCHING, matching))
        self.payload = _by_name("payload", chain(PAYLOAD, payload))

    def of(self, topic: Topic) -> TopicCodec:
        """The codec of a topic. Raises `UnknownSetting`."""
        if topic.matching not in self.matching:
            raise UnknownSetting(topic.name, "matching", topic.matching)
        if topic.payload not in self.payload:
            raise UnknownSetting(topic.name, "payload", topic.payload)
        matching, payload = self.matching[topic.matching], self.payload[topic.payload]
        return TopicCodec(topic, matching, payload, matching.overhead + payload.overhead)


def _by_name(dial: str, codecs: Iterable[C]) -> dict[str, C]:
    found: dict[str, C] = {}
    for codec in codecs:
        if codec.name in found:
            raise ValueError(f"there are two {dial} codecs {codec.name}")
        found[codec.name] = codec
    return found
