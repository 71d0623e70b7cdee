"""The batch of P3: what a client signs once, and what is shipped, ordered, stored and hashed as one.

Digest = H(batch header, Merkle root of leaves); leaf = H(Hc, access rule, Pc). Header and payload of a message are
committed to apart and salted, so that either can be shown, withheld or erased while proofs of the other hold.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from parley.crypto import ed25519
from parley.crypto.encoding import enc
from parley.crypto.hashing import digest
from parley.model import leaves as tree
from parley.model.codec import DECODE_ERRORS
from parley.model.expressions import ExpressionError, parse_rule
from parley.model.names import (
    U32,
    U64,
    Hash,
    Key,
    Pairs,
    Position,
    RuleText,
    Salt,
    Session,
    Signature,
    unsorted_pair,
)
from parley.model.refusals import BadSignature, Malformed, Oversized, WrongChain, WrongLedger, malformed

FORMAT = 2
_BEFORE_TOPIC = struct.Struct(">III32sIIIII")
_AFTER_TOPIC = struct.Struct(">IQIIIII32sI16sIQIIIQ")
PUBLISH = 0
CONTROL = 1
STAGED = 2  # ordered and stored like a publication, numbered only when its stage is committed (P23)
MAX_BATCH_BYTES = 1024 * 1024
MAX_MESSAGES = 4_096  # to check so many takes a broker 20 ms, in which it does nothing else
MAX_NOT_AFTER = 100_000  # heights that a batch may stay valid (P3)
NO_TOPIC: Position = (0, 0)  # the id of no topic: blocks with batches are counted from 1
MAX_RULES = 64  # different access rules in a batch: reading one costs as much as many messages


class BatchHeader(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Whose batch it is and where it belongs: in one ledger of one network, and in one topic of that ledger (P3).

    Control batches have no topic and hold one operation. In a staged batch `session` is its writer and `sequence` its stage.
    """

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)]
    chain: Hash
    shard: U32  # the ledger
    kind: Annotated[int, Meta(ge=PUBLISH, le=STAGED)]
    topic: Annotated[str, Meta(max_length=128)]
    topic_id: Position  # where the topic was created: another topic of the same name has another one
    partition: U32
    publisher: Key
    session: Session
    sequence: U64  # of its first message
    count: Annotated[int, Meta(ge=1, le=MAX_MESSAGES)]
    not_after: U64  # the last height at which it may be applied

    def encode(self) -> bytes:
        """What `enc` makes of these fields; all but one have a fixed size, and every batch is hashed under it."""
        topic = self.topic.encode()
        before = _BEFORE_TOPIC.pack(4, self.format, 32, self.chain, 4, self.shard, 4, self.kind, len(topic))
        height, position = self.topic_id
        return (
            before
            + topic
            + _AFTER_TOPIC.pack(
                8,
                height,
                4,
                position,
                4,
                self.partition,
                32,
                self.publisher,
                16,
                self.session,
                8,
                self.sequence,
                4,
                self.count,
                8,
                self.not_after,
            )
        )


class MessageHeader(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """What brokers may see of a message: its key, the tags that constraints match, and free headers."""

    key: Annotated[bytes, Meta(max_length=4096)] | None = None
    tags: Pairs = ()
    headers: Annotated[
        tuple[tuple[Annotated[str, Meta(max_length=256)], Annotated[bytes, Meta(max_length=65_536)]], ...],
        Meta(max_length=64),
    ] = ()


class Message(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag=0):
    """One publication, or one operation in a control batch. `header` is the canonical form of a `MessageHeader`."""

    salt: Salt
    header: bytes
    rule: RuleText  # over the reader's attributes; empty: everybody who may read the topic
    payload: bytes

    def leaf(self) -> bytes:
        return tree.leaves_of((self,))[0]

    def withheld(self) -> Withheld:
        """What a reader who may not see it gets: enough to check the order and the rule, never the salt (P7)."""
        return Withheld(
            digest("message/header", self.salt, self.header),
            self.rule,
            digest("message/payload", self.salt, self.payload),
        )


class Withheld(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The empty of P7: the commitments to header and payload, and the rule that hides them."""

    header: Hash
    rule: RuleText
    payload: Hash

    def leaf(self) -> bytes:
        return digest("message/leaf", self.header, self.rule.encode(), self.payload)


class Batch(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    header: BatchHeader
    messages: Annotated[tuple[Message, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    signature: Signature


class Leafed(Protocol):
    """What has a leaf: a message, or what is shown instead of it."""

    def leaf(self) -> bytes: ...


def leaves_of(contents: Sequence[Leafed]) -> list[bytes]:
    """The leaves of many, as `leaf` gives them."""
    if set(map(type, contents)) == {Message}:
        return tree.leaves_of(contents)  # type: ignore[arg-type]
    return [content.leaf() for content in contents]


def batch_digest(header: BatchHeader, leaves: Sequence[bytes]) -> bytes:
    """The name of a batch in blocks and receipts; it can be computed again after the bodies are erased (P21)."""
    return digest_of(header, tree.root(leaves))


def digest_of(header: BatchHeader, root: bytes) -> bytes:
    return digest("batch", header.encode(), root)


def is_signed(header: BatchHeader, name: bytes, signature: bytes) -> bool:
    """Whether the publisher that the header names signed the batch of this digest."""
    return ed25519.verify(header.publisher, _signed(header.chain, name), signature)


def is_timely(header: BatchHeader, height: int) -> bool:
    """Whether a batch may be applied at a height: not after its last one, and not much before it either (P3)."""
    return height <= header.not_after <= height + MAX_NOT_AFTER


def is_control(header: BatchHeader) -> bool:
    """Whether this is the header of a batch that may hold an operation: one message, in no topic."""
    said = (header.kind, header.count, header.topic, header.topic_id, header.partition)
    return said == (CONTROL, 1, "", NO_TOPIC, 0)


def require_ledger(header: BatchHeader, shard: int) -> None:
    """Raises `WrongLedger` if the batch was made for another ledger: there it may still take its place (P3)."""
    if header.shard != shard:
        raise WrongLedger("batch", shard=header.shard, own=shard)


def sign_batch(
    header: BatchHeader, messages: tuple[Message, ...], key: ed25519.SecretKey
) -> tuple[bytes, bytes]:
    """The digest and the bytes of a signed batch."""
    name = batch_digest(header, tree.leaves_of(messages))
    return name, encode(Batch(header, messages, key.sign(_signed(header.chain, name))))


def open_batch(data: bytes, chain: bytes, shard: int | None) -> tuple[bytes, Batch]:
    """Every check that needs no state: what passes may be stored (P4). Raises `Refused`.

    `shard` is the ledger that is asked; None: the caller compares it itself. What costs more than a signature comes after
    it, so that only the publisher can cause it.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise Oversized("batch", size=len(data), limit=MAX_BATCH_BYTES)
    try:
        batch = _batches.decode(data)
    except DECODE_ERRORS as error:
        raise malformed("batch", error) from None
    if encode(batch) != data:
        raise Malformed("batch_encoding")
    header = batch.header
    if header.chain != chain:
        raise WrongChain("batch", chain=header.chain, own=chain)
    if shard is not None:
        require_ledger(header, shard)
    if header.count != len(batch.messages):
        raise Malformed("count", counted=header.count, held=len(batch.messages))
    if header.kind == CONTROL and not is_control(header):
        raise Malformed("control")
    rules = {message.rule for message in batch.messages if message.rule}
    if len(rules) > MAX_RULES:
        raise Malformed("rules", rules=len(rules), limit=MAX_RULES)
    name = batch_digest(header, tree.leaves_of(batch.messages))
    if not is_signed(header, name, batch.signature):
        raise BadSignature("batch")
    for rule in sorted(rules):
        _require_canonical(rule)
    for one in sorted({message.header for message in batch.messages}):  # mostly the same
        decode_message_header(one)
    return name, batch


def decode_message_header(data: bytes) -> MessageHeader:
    """Raises `Malformed` for anything but the one canonical form."""
    if data == _EMPTY_HEADER:
        return _EMPTY
    try:
        header = _message_headers.decode(data)
    except DECODE_ERRORS as error:
        raise malformed("message_header", error) from None
    if encode(header) != data:
        raise Malformed("message_header_encoding")
    if (name := unsorted_pair(header.tags)) is not None:
        raise Malformed("tag_order", tag=name)
    return header


def _require_canonical(rule: str) -> None:
    try:
        canonical = parse_rule(rule).text
    except ExpressionError as error:
        raise malformed("rule", error) from None
    if canonical != rule:
        raise malformed("rule_form", canonical)


def _signed(chain: bytes, name: bytes) -> bytes:
    return enc(b"PSB1/sig/batch", chain, name)


encode = msgspec.msgpack.Encoder().encode
_batches = msgspec.msgpack.Decoder(Batch)
_message_headers = msgspec.msgpack.Decoder(MessageHeader)
_EMPTY = MessageHeader()
_EMPTY_HEADER = encode(_EMPTY)
