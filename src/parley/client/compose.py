"""Turns what an application wants to publish into a message, and says what is wrong with it before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from parley.client.errors import InvalidConstraint, InvalidMessage, InvalidRule, Oversized, Refused
from parley.crypto.hashing import digest
from parley.model.batches import MAX_BATCH_BYTES, Message, MessageHeader, decode_message_header, encode
from parley.model.expressions import Constraint, ExpressionError, is_word, parse_constraint, parse_rule
from parley.model.names import MAX_PAIRS, Value, is_pair_name, sorted_pairs

MAX_CONTENT = MAX_BATCH_BYTES - 1_024  # bytes of a batch's messages; the rest is for its header and signature
OVERHEAD = 40  # bytes of a message besides its parts, at most
SALT_SIZE = 16
MAX_KEY = 4_096
MAX_TEXT = 256  # characters of a tag's value
MAX_HEADERS = 64
MAX_HEADER_NAME = 256  # characters
MAX_HEADER_VALUE = 65_536
EMPTY_HEADER = encode(MessageHeader())
_SURROGATE = re.compile("[\ud800-\udfff]")  # also stands for a byte of a command line that is not UTF-8


class Composer:
    """Makes messages that brokers will take, of values that have all the rest in common. Text is encoded in UTF-8."""

    def __init__(
        self,
        *,
        key: bytes | str | None,
        tags: Mapping[str, Value] | None,
        headers: Mapping[str, bytes | str] | None,
        rule: str,
        rng: Callable[[int], bytes],
        overhead: int = 0,
    ) -> None:
        """`overhead`: bytes that sealing may add to each message."""
        self._rng = rng
        self.key = None if key is None else _bytes("key", key, MAX_KEY)
        self.rule = canonical_rule(rule)
        if key is None and not tags and not headers:
            self._header = EMPTY_HEADER
        else:
            self._header = encode(
                MessageHeader(
                    self.key, sorted_pairs(checked_pairs("tag", tags or {})), _headers(headers or {})
                )
            )
            try:
                decode_message_header(self._header)
            except Refused as refused:
                raise InvalidMessage(f"The message cannot be published: {refused.detail}.") from None
        self._overhead = OVERHEAD + overhead + len(self._header) + len(self.rule.encode())

    def message(self, value: bytes | str) -> Message:
        payload = _bytes("value", value)
        self._require_small(payload)
        return Message(self._rng(SALT_SIZE), self._header, self.rule, payload)

    def groups(
        self, values: Iterable[bytes | str], count: Callable[[], int], max_bytes: int
    ) -> Iterator[tuple[Message, ...]]:
        """What fits into a batch of `count()` messages and `max_bytes`, again and again."""
        coming, group = iter(values), list[bytes]()
        while True:
            more = islice(coming, max(0, count() - len(group)))
            group += [value if type(value) is bytes else _bytes("value", value) for value in more]
            if not group:
                return
            fitting = len(group)
            if sum(map(len, group)) + self._overhead * len(group) > max_bytes:
                fitting = self._fitting(group, max_bytes)
            yield self._messages(group[:fitting])
            del group[:fitting]

    def _fitting(self, payloads: list[bytes], max_bytes: int) -> int:
        """How many of the first ones go together, at least one."""
        size = 0
        for at, payload in enumerate(payloads):
            size += self._overhead + len(payload)
            if size > max_bytes and at:
                return at
            self._require_small(payload)
        return len(payloads)

    def _messages(self, payloads: list[bytes]) -> tuple[Message, ...]:
        header, rule = self._header, self.rule
        salts = self._rng(SALT_SIZE * len(payloads))
        return tuple(
            [
                Message(salts[at : at + SALT_SIZE], header, rule, payload)
                for at, payload in zip(range(0, len(salts), SALT_SIZE), payloads, strict=True)
            ]
        )

    def _require_small(self, payload: bytes) -> None:
        size = self._overhead + len(payload)
        if size > MAX_CONTENT:
            raise Oversized("message", size=size, limit=MAX_CONTENT)


def size_of(message: Message, overhead: int = 0) -> int:
    """The bytes that a message adds to a batch, at most, if sealing adds `overhead` to them."""
    return OVERHEAD + overhead + len(message.header) + len(message.rule.encode()) + len(message.payload)


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


def checked_pairs(what: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Checked tags of a message or attributes of a client. `what` is the word for one of them in errors.

    Raises `InvalidMessage`.
    """
    if len(values) > MAX_PAIRS:
        raise InvalidMessage(f"There may be at most {MAX_PAIRS} {what}s, not {len(values)}.")
    for name, value in values.items():
        require_name(what, name)
        if not _is_value(value):
            raise InvalidMessage(
                f"{what.capitalize()} {name!r} must be true or false, an integer from -2**63 to 2**63-1, or a text of up "
                f"to {MAX_TEXT} characters that UTF-8 can write."
            )
    return {str.__str__(name): _basic(value) for name, value in values.items()}


def require_name(what: str, name: object) -> None:
    """Raises `InvalidMessage` for a name that no constraint and no rule could use."""
    cannot = f"{name!r} cannot be the name of {'an' if what == 'attribute' else 'a'} {what}"
    if not isinstance(name, str) or not is_pair_name(name):
        raise InvalidMessage(f"{cannot}: use up to 64 letters, digits, _ and ., not a digit or . first.")
    if is_word(name):
        raise InvalidMessage(
            f"{cannot}: constraints and rules use this word themselves; choose another name."
        )


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not _SURROGATE.search(value)
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _basic(value: Value) -> Value:
    """The value itself where its type is derived from that of texts or integers, as in enumerations and texts of NumPy."""
    if isinstance(value, bool):
        return value
    return str.__str__(value) if isinstance(value, str) else int.__int__(value)


def _headers(headers: Mapping[str, bytes | str]) -> tuple[tuple[str, bytes], ...]:
    if len(headers) > MAX_HEADERS:
        raise InvalidMessage(f"A message has at most {MAX_HEADERS} headers, not {len(headers)}.")
    for name in headers:
        if len(name) > MAX_HEADER_NAME or _SURROGATE.search(name):
            raise InvalidMessage(
                f"The name of a header is a text of up to {MAX_HEADER_NAME} characters that UTF-8 can write."
            )
    return tuple(
        (name, _bytes(f"header {name!r}", value, MAX_HEADER_VALUE)) for name, value in headers.items()
    )


def _bytes(what: str, value: bytes | str, limit: int | None = None) -> bytes:
    try:
        data = value.encode() if isinstance(value, str) else bytes(memoryview(value))
    except UnicodeEncodeError:
        raise InvalidMessage(f"The {what} holds characters that UTF-8 cannot write; give bytes.") from None
    if limit is not None and len(data) > limit:
        raise InvalidMessage(f"The {what} has {len(data)} bytes; {limit} are allowed.")
    return data
