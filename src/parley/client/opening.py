"""Turns what was published and verified into what readers get: the one place for push, pull and columns.

A codec opens many messages at a time. Where it leaves them as they are, as `plain` does, nothing is copied. What it
cannot open is `Unopened`, and the messages around it are read all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from parley.client.errors import Refused
from parley.client.messages import Message
from parley.model.batches import MessageHeader, decode_message_header
from parley.privacy.codecs import Columns, Unopened
from parley.privacy.table import TopicCodec


@dataclass(frozen=True, slots=True)
class _Published:
    """The columns of messages that are shown in full; none of them is made before a codec asks for it."""

    messages: Sequence[Message]

    @property
    def shown(self) -> list[Message]:
        return [message for message in self.messages if not message.empty]

    @property
    def partitions(self) -> list[int]:
        return [message.partition for message in self.shown]

    @property
    def headers(self) -> list[bytes]:
        return [message.published.header for message in self.shown]

    @property
    def rules(self) -> list[str]:
        return [message.rule for message in self.shown]

    @property
    def payloads(self) -> list[bytes]:
        return [message.published.payload for message in self.shown]


async def opened(codec: TopicCodec, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with what they say. They are verified, and all of the codec's topic; redacted ones stay as they are."""
    published = _Published(messages)
    found = await codec.open(published)
    if found is published:
        return messages
    said = read(found)
    made = iter([_with(*one) for one in zip(published.shown, said, strict=True)])
    return [message if message.empty else next(made) for message in messages]


def read(columns: Columns) -> list[tuple[MessageHeader, bytes] | Unopened]:
    """Header and payload of each message. A publisher may seal anything: a header that is none cannot be opened."""
    known: dict[bytes, MessageHeader | Unopened] = {}
    found: list[tuple[MessageHeader, bytes] | Unopened] = []
    for data, payload in zip(columns.headers, columns.payloads, strict=True):
        if isinstance(payload, Unopened):
            found.append(payload)
            continue
        header = known.get(data)
        if header is None:
            header = known[data] = _header(data)
        found.append(header if isinstance(header, Unopened) else (header, payload))
    return found


def _header(data: bytes) -> MessageHeader | Unopened:
    try:
        return decode_message_header(data)
    except Refused as refused:
        return Unopened(f"its header cannot be read: {refused.detail}")


def _with(message: Message, said: tuple[MessageHeader, bytes] | Unopened) -> Message:
    if isinstance(said, Unopened):
        return replace(message, _payload=said)
    header, payload = said
    return replace(message, _header=header, _payload=payload)
