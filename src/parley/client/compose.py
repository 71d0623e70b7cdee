"""Turns what an application wants to publish into a message, and says what is wrong with it before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from parley.client.errors import InvalidConstraint, InvalidMessage, InvalidRule, Oversized
from parley.crypto.hashing import digest
from parley.model.batches import MAX_BATCH_BYTES, Message, MessageHeader, decode_message_header, encode
from parley.model.errors import Refusal
from parley.model.expressions import Constraint, ExpressionError, parse_constraint, parse_rule
from parley.model.names import MAX_PAIRS, Value, sorted_pairs

__all__ = ["MAX_CONTENT", "canonical_rule", "compose", "constraint", "partition_of", "size_of"]

MAX_CONTENT = MAX_BATCH_BYTES - 1_024  # bytes of a batch's messages; the rest is for its header and signature
OVERHEAD = 40  # bytes of a message besides its parts, at most
SALT_SIZE = 16
MAX_KEY = 4_096
MAX_TEXT = 256  # characters of a tag's value
MAX_HEADERS = 64
MAX_HEADER_NAME = 256  # characters
MAX_HEADER_VALUE = 65_536
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")


def compose(
    value: bytes | str,
    *,
    key: bytes | str | None,
    tags: Mapping[str, Value] | None,
    headers: Mapping[str, bytes | str] | None,
    rule: str,
    rng: Callable[[int], bytes],
) -> Message:
    """A message that brokers will take. Text is encoded in UTF-8."""
    header = MessageHeader(
        None if key is None else _bytes("key", key, MAX_KEY), sorted_pairs(_tags(tags)), _headers(headers)
    )
    encoded = encode(header)
    try:
        decode_message_header(encoded)
    except Refusal as refusal:
        raise InvalidMessage(f"The message cannot be published: {refusal.detail}.") from None
    message = Message(rng(SALT_SIZE), encoded, canonical_rule(rule), _bytes("value", value, None))
    if size_of(message) > MAX_CONTENT:
        raise Oversized(
            f"the message takes {size_of(message)} bytes with its header; at most {MAX_CONTENT} can be published"
        )
    return message


def size_of(message: Message) -> int:
    """What it adds to a batch, at most."""
    return OVERHEAD + len(message.header) + len(message.rule.encode()) + len(message.payload)


def partition_of(key: bytes, partitions: int) -> int:
    """Where messages with a key go: the first eight bytes of H('partition', key), modulo the number of partitions."""
    return int.from_bytes(digest("partition", key)[:8], "big") % partitions


def canonical_rule(text: str) -> str:
    """The rule in the one spelling that brokers take; empty stays empty, and means everybody."""
    if not text:
        return ""
    try:
        return parse_rule(text).text
    except ExpressionError as error:
        raise InvalidRule(text, error.position, error.message) from None


def constraint(text: str) -> Constraint:
    try:
        return parse_constraint(text)
    except ExpressionError as error:
        raise InvalidConstraint(text, error.position, error.message) from None


def _tags(tags: Mapping[str, Value] | None) -> dict[str, Value]:
    if not tags:
        return {}
    if len(tags) > MAX_PAIRS:
        raise InvalidMessage(f"A message has at most {MAX_PAIRS} tags, not {len(tags)}.")
    for name, value in tags.items():
        if not _TAG.fullmatch(name):
            raise InvalidMessage(
                f"{name!r} cannot be the name of a tag: use up to 64 letters, digits, _ and ., not a digit or . first."
            )
        if not _is_value(value):
            raise InvalidMessage(
                f"Tag {name!r} must be true or false, an integer of 64 bits, or a text of up to {MAX_TEXT} characters."
            )
    return dict(tags)


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _headers(headers: Mapping[str, bytes | str] | None) -> tuple[tuple[str, bytes], ...]:
    if not headers:
        return ()
    if len(headers) > MAX_HEADERS:
        raise InvalidMessage(f"A message has at most {MAX_HEADERS} headers, not {len(headers)}.")
    for name in headers:
        if len(name) > MAX_HEADER_NAME:
            raise InvalidMessage(f"The name of a header is a text of up to {MAX_HEADER_NAME} characters.")
    return tuple(
        (name, _bytes(f"header {name!r}", value, MAX_HEADER_VALUE)) for name, value in headers.items()
    )


def _bytes(what: str, value: bytes | str, limit: int | None) -> bytes:
    data = value.encode() if isinstance(value, str) else bytes(memoryview(value))
    if limit is not None and len(data) > limit:
        raise InvalidMessage(f"The {what} has {len(data)} bytes; {limit} are allowed.")
    return data
