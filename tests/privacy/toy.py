"""A payload codec of one's own, as somebody would write it who uses Parley: one key, and no more security than that.

Nothing in `src` knows it. Brokers find the application by PARLEY_APPLICATION, clients and Spark the codec by
PARLEY_CODECS.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import msgspec
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from parley.application.application import OWN_VERSIONS, Application
from parley.applications import MODULES
from parley.model.batches import BatchHeader, Message, MessageHeader, decode_message_header, encode
from parley.modules.topics import rules as topics
from parley.privacy.codecs import Columns, Opened, Topic, Unopened
from parley.privacy.table import Codecs

NONCE_SIZE, TAG_SIZE, FRAME_SIZE = 24, 16, 16


class Inside(msgspec.Struct, frozen=True, array_like=True):
    """What is sealed of a message. Its tags stand in clear, because brokers match them."""

    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    payload: bytes


@dataclass(frozen=True)
class Toy:
    secret: bytes
    name: str = "toy"
    overhead: int = NONCE_SIZE + TAG_SIZE + FRAME_SIZE

    def seal(self, topic: Topic, header: BatchHeader, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(self._sealed(topic, header.partition, message) for message in messages)

    async def open(self, topic: Topic, sealed: Columns) -> Columns:
        await asyncio.sleep(0)  # as if it had to ask somebody
        columns = zip(sealed.partitions, sealed.headers, sealed.rules, sealed.payloads, strict=True)
        said = [self._opened(topic, *one) for one in columns]
        return Opened(
            sealed.partitions, [header for header, _ in said], sealed.rules, [payload for _, payload in said]
        )

    def _sealed(self, topic: Topic, partition: int, message: Message) -> Message:
        header = decode_message_header(message.header)
        inside = encode(Inside(header.key, header.headers, message.payload))
        nonce = os.urandom(NONCE_SIZE)
        label = _label(topic, partition, message.rule)
        payload = nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(inside, label, nonce, self.secret)
        return Message(message.salt, encode(MessageHeader(tags=header.tags)), message.rule, payload)

    def _opened(
        self, topic: Topic, partition: int, header: bytes, rule: str, payload: bytes | Unopened
    ) -> tuple[bytes, bytes | Unopened]:
        assert isinstance(payload, bytes), "it is opened first"
        nonce, sealed = payload[:NONCE_SIZE], payload[NONCE_SIZE:]
        try:
            label = _label(topic, partition, rule)
            data = crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, label, nonce, self.secret)
            inside = _inside.decode(data)
        except (CryptoError, ValueError):
            return header, Unopened("it was sealed under another key, or not at all")
        tags = decode_message_header(header).tags
        return encode(MessageHeader(inside.key, tags, inside.headers)), inside.payload


def _label(topic: Topic, partition: int, rule: str) -> bytes:
    """Where a message belongs: nobody can put it elsewhere."""
    return encode((topic.name, topic.id, partition, rule))


_inside = msgspec.msgpack.Decoder(Inside)

CODECS = Codecs(payload=(Toy(b"k" * 32),))
STRANGE = Codecs(payload=(Toy(b"j" * 32),))  # of somebody who has another key
APPLICATION = Application(
    "data shard with toy payloads",
    OWN_VERSIONS,
    tuple(
        topics.module(matching=("clear",), payload=("plain", "toy")) if one.name == "topics" else one
        for one in MODULES
    ),
)
