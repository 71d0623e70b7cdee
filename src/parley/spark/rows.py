"""Rows of a data frame as messages: which columns there may be, and what is wrong with a row that cannot be published."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from parley.client.compose import MAX_CONTENT, MAX_KEY, SALT_SIZE, canonical_rule, checked_pairs, size_of
from parley.client.errors import InvalidMessage, InvalidRule
from parley.model.batches import Message, MessageHeader, decode_message_header, encode
from parley.model.names import Value, is_topic, sorted_pairs
from parley.model.refusals import Refused
from parley.spark.errors import BadRow

SHOWN = 64  # bytes of a key that an error shows
MAX_REASON = 500  # characters
MAX_TOPIC = 128  # characters of what stands in the place of a topic, however long it is
_PYTHON = ("topic", "partition", "rule", "tags", "headers")  # columns that become Python's values
_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TAG = (StringType, BooleanType, *_WHOLE)

COLUMNS = {
    "key": "string or binary",
    "value": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key string, value binary>>",
    "tags": "map<string, string>, or a map or struct of strings, whole numbers and booleans",
    "rule": "string",
}


def require_columns(schema: StructType, topic: str) -> None:
    """That every row of this form can be a publication; said before anything is staged."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            near = get_close_matches(field.name, COLUMNS, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise BadRow(
                f"A publication has no column {field.name!r}; it is made of {', '.join(COLUMNS)}.{meant} "
                f"Choose with select(...), and put whatever else is to be published into `value`, for example as JSON."
            )
        if not _fits(field.name, field.dataType):
            raise BadRow(
                f"The column {field.name!r} is of type {field.dataType.simpleString()}; "
                f"it must be {COLUMNS[field.name]}. Convert it with cast(...)."
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise BadRow("The column 'value' is missing: it holds what is published, as string or binary.")
    if not topic and "topic" not in names:
        raise BadRow("Nothing says where to publish: give the option `topic`, or a column 'topic'.")
    if len(set(names)) < len(names):
        raise BadRow("A column is there twice; choose with select(...).")


def _fits(name: str, kind: DataType) -> bool:
    match name:
        case "key" | "value":
            return isinstance(kind, _TEXT)
        case "topic" | "rule":
            return isinstance(kind, StringType)
        case "partition":
            return isinstance(kind, _WHOLE)
        case "headers":
            return isinstance(kind, ArrayType) and _is_header(kind.elementType)
        case _:
            return _is_tags(kind)


def _is_header(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and kind.fieldNames() == ["key", "value"]
        and isinstance(kind["key"].dataType, StringType)
        and isinstance(kind["value"].dataType, _TEXT)
    )


def _is_tags(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TAG)
    return isinstance(kind, StructType) and all(isinstance(one.dataType, _TAG) for one in kind.fields)


@dataclass(frozen=True, slots=True)
class Publication:
    """A row as it will be published; without `partition` the key decides, or nothing does."""

    topic: str
    partition: int | None
    key: bytes | None
    message: Message
    size: int  # what it adds to a batch, at most, before it is sealed


@dataclass(frozen=True, slots=True)
class Faulty:
    """A row that cannot be published, and why."""

    topic: str
    key: bytes | None
    reason: str  # the same at every attempt, because letters of attempts are compared
    now: str = ""  # what may be different at the next attempt; for the error only

    def error(self) -> BadRow:
        now = f": {self.now}" if self.now else ""
        return BadRow(
            f"{self._subject()} cannot be published: {self.reason.removesuffix('.')}{now}. Nothing that was staged with it is published. "
            f"Filter such rows out before the sink, or name a topic for what is said of them: option `deadLetterTopic`."
        )

    def letter(self, topic: str, rng: Callable[[int], bytes] = os.urandom) -> Publication:
        """What the dead-letter topic gets: never the row itself, which may be what is too large."""
        said = {"topic": self.topic, "key": self._shown(), "reason": self.reason}
        message = Message(rng(SALT_SIZE), _EMPTY, "", json.dumps(said, ensure_ascii=False).encode())
        return Publication(topic, None, None, message, _size(message))

    def _subject(self) -> str:
        where = f" for topic {self.topic}" if self.topic else ""
        return (
            f"A row{where} without a key"
            if self.key is None
            else f"The row{where} with key {self._shown()!r}"
        )

    def _shown(self) -> str | None:
        if self.key is None:
            return None
        more = "..." if len(self.key) > SHOWN else ""
        return self.key[:SHOWN].decode(errors="replace") + more


class Rows:
    """Turns record batches into publications. `topic` is where all rows go; if empty, their column says it.

    `rule` is that of rows that have none.
    """

    def __init__(self, topic: str, rule: str = "", rng: Callable[[int], bytes] = os.urandom) -> None:
        self._topic = topic
        self._rule = rule
        self._rng = rng

    def of(self, batch: pa.RecordBatch) -> Iterator[Publication | Faulty]:
        count = batch.num_rows
        values = _binary(batch, "value") or [None] * count
        keys = _binary(batch, "key") or [None] * count
        unreadable: set[int] = set()
        columns = {name: _column(batch, name, unreadable) for name in _PYTHON}
        topics = [self._topic] * count if self._topic else columns["topic"]
        partitions, rules, tags, headers = (columns[name] for name in _PYTHON[1:])
        salts = self._rng(SALT_SIZE * count)
        plain = not {"key", "tags", "headers"} & set(batch.schema.names)
        for at, (topic, partition, key, value) in enumerate(
            zip(topics, partitions, keys, values, strict=True)
        ):
            try:
                payload = _required(topic, value, is_text=at not in unreadable)
                header = _EMPTY if plain else _header(key, tags[at], headers[at])
                rule = _rule(rules[at]) if rules[at] else self._rule
                message = Message(salts[at * SALT_SIZE : (at + 1) * SALT_SIZE], header, rule, payload)
                size = _size(message)
            except _Fault as fault:
                yield Faulty((topic or "")[:MAX_TOPIC], key, str(fault)[:MAX_REASON])
            else:
                yield Publication(topic, partition, key, message, size)


class _Fault(Exception):  # noqa: N818 - it is what a row has, and never leaves this module
    pass


def _header(key: bytes | None, tags: Any, headers: Any) -> bytes:  # noqa: ANN401 - what Arrow gives
    data = encode(MessageHeader(key, _tags(tags) if tags else (), _headers(headers) if headers else ()))
    if key is not None and not tags and not headers and len(key) <= MAX_KEY:
        return data  # nothing else can be wrong with it
    try:
        decode_message_header(data)
    except Refused as refused:
        raise _Fault(refused.detail) from None
    return data


def _tags(tags: Sequence[tuple[str, Value | None]] | dict[str, Value | None]) -> Any:  # noqa: ANN401
    """Arrow shows a map as a list of pairs and a struct as a dictionary; a tag without a value is none."""
    found = {name: value for name, value in dict(tags).items() if value is not None}
    try:
        return sorted_pairs(checked_pairs("tag", found))
    except InvalidMessage as error:
        raise _Fault(str(error)) from None


def _headers(headers: Sequence[dict[str, Any] | None]) -> tuple[tuple[str, bytes], ...]:
    found: list[tuple[str, bytes]] = []
    for header in headers:
        if header is None or header["key"] is None:
            raise _Fault("a header has no name")
        value = header["value"]
        found.append((header["key"], value.encode() if isinstance(value, str) else value or b""))
    return tuple(found)


@lru_cache(maxsize=1_024)
def _rule(text: str) -> str:
    try:
        return canonical_rule(text)
    except InvalidRule as error:
        raise _Fault(str(error)) from None


def _required(topic: str | None, value: bytes | None, *, is_text: bool) -> bytes:
    if not is_text:
        raise _Fault("a text in it is not UTF-8")
    if value is None:
        raise _Fault("its value is null")
    if topic is None:
        raise _Fault("its topic is null")
    if not _is_topic(topic):
        raise _Fault(f"{topic[:SHOWN]!r} cannot be the name of a topic")
    return value


_is_topic = lru_cache(maxsize=1_024)(is_topic)


def _size(message: Message) -> int:
    size = size_of(message)
    if size > MAX_CONTENT:
        raise _Fault(too_large(size))
    return size


def too_large(size: int) -> str:
    return f"it takes {size} bytes, and at most {MAX_CONTENT} fit into a batch"


def _column(batch: pa.RecordBatch, name: str, unreadable: set[int]) -> list[Any]:
    """Spark's strings may be any bytes: rows with text that is none are `unreadable`, and the others can be published."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(one, at, unreadable) for at, one in enumerate(column)]


def _value(one: pa.Scalar, at: int, unreadable: set[int]) -> Any:  # noqa: ANN401 - what Arrow gives
    try:
        return one.as_py()
    except UnicodeDecodeError:
        unreadable.add(at)
        return None


def _binary(batch: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    """Text is published as UTF-8, which is what Arrow has."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


_EMPTY = encode(MessageHeader())
