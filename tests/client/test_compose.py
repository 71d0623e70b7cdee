"""Messages are checked where they are made, and keys always lead to the same partition."""

from __future__ import annotations

import os
from collections import Counter
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.client.compose import (
    MAX_CONTENT,
    Composer,
    canonical_rule,
    constraint,
    partition_of,
    size_of,
)
from parley.client.errors import InvalidConstraint, InvalidMessage, InvalidRule, Oversized
from parley.crypto.ed25519 import SecretKey
from parley.model.batches import (
    FORMAT,
    MAX_BATCH_BYTES,
    PUBLISH,
    BatchHeader,
    Message,
    decode_message_header,
    open_batch,
    sign_batch,
)
from parley.model.expressions import ExpressionError, parse_constraint
from parley.model.names import Value

KEY = SecretKey(bytes(32))
WORDS = ("and", "or", "not", "in", "true", "false")
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,63}", fullmatch=True).filter(
    lambda name: name.lower() not in WORDS
)
VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=256)


def made(
    value: bytes | str = b"x",
    *,
    key: bytes | str | None = None,
    tags: dict[str, Value] | None = None,
    headers: dict[str, bytes | str] | None = None,
    rule: str = "",
) -> Message:
    return Composer(key=key, tags=tags, headers=headers, rule=rule, rng=os.urandom).message(value)


def in_batch(*messages: Message) -> bytes:
    header = BatchHeader(
        FORMAT,
        bytes(32),
        0,
        PUBLISH,
        "t" * 128,
        (2**61, 2**32 - 1),
        2**32 - 1,
        KEY.public,
        bytes(16),
        2**61,
        len(messages),
        2**61,
    )
    return sign_batch(header, messages, KEY)[1]


@given(
    st.binary(max_size=64) | st.text(max_size=64),
    st.none() | st.binary(max_size=64) | st.text(max_size=64),
    st.dictionaries(NAMES, VALUES, max_size=8),
    st.dictionaries(st.text(max_size=32), st.binary(max_size=64), max_size=8),
)
def test_brokers_take_whatever_is_composed(
    value: bytes | str, key: bytes | str | None, tags: dict[str, Value], headers: dict[str, bytes | str]
) -> None:
    message = made(value, key=key, tags=tags, headers=headers, rule="not role in ['a', 'b']")
    open_batch(in_batch(message), bytes(32), 0)
    header = decode_message_header(message.header)
    assert dict(header.tags) == tags
    assert dict(header.headers) == headers
    assert header.key == (key.encode() if isinstance(key, str) else key)
    assert message.payload == (value.encode() if isinstance(value, str) else value)


@given(st.integers(0, 300), st.text(max_size=300))
def test_the_size_of_a_message_is_never_underestimated(payload: int, tag: str) -> None:
    message = made(bytes(payload), tags={"t": tag[:256]}, rule='role == "nurse"')
    alone, twice = len(in_batch(message)), len(in_batch(message, message))
    assert twice - alone <= size_of(message)


def test_the_largest_message_fits_a_batch_and_a_larger_one_is_refused() -> None:
    largest = made(bytes(MAX_CONTENT - size_of(made(b""))))
    assert len(in_batch(largest)) <= MAX_BATCH_BYTES
    with pytest.raises(Oversized, match=f"at most {MAX_CONTENT} can be published"):
        made(bytes(MAX_CONTENT - size_of(made(b"")) + 1))


def test_every_message_has_a_salt_of_its_own() -> None:
    assert made().salt != made().salt


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({"": 1}, "'' cannot be the name of a tag"),
        ({"7up": 1}, "'7up' cannot be the name of a tag"),
        ({"a b": 1}, "'a b' cannot be the name of a tag"),
        ({"a" * 65: 1}, "cannot be the name of a tag"),
        ({"a": 2**63}, r"Tag 'a' must be true or false, an integer from -2\*\*63 to 2\*\*63-1, or a text"),
        ({"a": 1.5}, "Tag 'a' must be"),
        ({"a": None}, "Tag 'a' must be"),
        ({cast("str", 7): 1}, "7 cannot be the name of a tag"),
        ({"a": "x" * 257}, "Tag 'a' must be"),
        ({"a": "\udcff"}, "Tag 'a' must be .* characters that UTF-8 can write"),
        ({f"t{number}": 1 for number in range(65)}, "at most 64 tags, not 65"),
    ],
)
def test_a_tag_that_brokers_would_refuse_is_named(tags: dict[str, Value], problem: str) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        made(tags=tags)


@pytest.mark.parametrize("name", [*WORDS, "And", "NOT", "tRuE"])
def test_a_tag_that_no_constraint_can_name_is_refused(name: str) -> None:
    with pytest.raises(ExpressionError):
        parse_constraint(f"{name} == 1")
    with pytest.raises(InvalidMessage, match=f"'{name}' cannot be the name of a tag: .* choose another name"):
        made(tags={name: 1})


def test_values_of_derived_types_are_sent_as_texts_and_integers() -> None:
    class Word(str):
        __slots__ = ()

    class Count(int): ...

    derived = made(tags={Word("a"): Word("x"), "b": Count(7), "c": True})
    assert derived.header == made(tags={"a": "x", "b": 7, "c": True}).header


@given(NAMES)
def test_every_tag_that_is_taken_can_be_named_by_a_constraint(name: str) -> None:
    made(tags={name: 1})
    assert constraint(f"{name} == 1").matches({name: 1})


def test_text_that_utf_8_cannot_write_is_refused_and_named() -> None:
    for wrong in (
        {"value": "\udcff"},
        {"key": "\udcff"},
        {"headers": {"h": "\udcff"}},
        {"headers": {"\udcff": b""}},
    ):
        with pytest.raises(InvalidMessage, match="UTF-8"):
            made(**wrong)


def test_keys_and_headers_have_limits() -> None:
    with pytest.raises(InvalidMessage, match="The key has 4097 bytes; 4096 are allowed"):
        made(key=bytes(4097))
    with pytest.raises(InvalidMessage, match="at most 64 headers, not 65"):
        made(headers={str(number): b"" for number in range(65)})
    with pytest.raises(InvalidMessage, match="header 'h' has 65537 bytes"):
        made(headers={"h": bytes(65_537)})
    with pytest.raises(InvalidMessage, match="name of a header"):
        made(headers={"h" * 257: b""})


def test_rules_and_constraints_are_canonical_or_refused_with_the_place_of_the_fault() -> None:
    assert canonical_rule("") == ""
    assert canonical_rule("role='nurse'") == 'role == "nurse"'
    assert made(rule="role='nurse'").rule == 'role == "nurse"'
    assert constraint("ward = 'er'") == constraint('ward == "er"')
    with pytest.raises(InvalidRule) as rule:
        canonical_rule("role == ")
    assert rule.value.position == 8
    with pytest.raises(InvalidConstraint) as where:
        constraint("age > 3")
    assert where.value.position == 4


@given(st.binary(max_size=64), st.integers(1, 64))
def test_a_key_has_one_partition(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == partition_of(key, partitions)


def test_keys_spread_over_partitions_and_never_move_by_accident() -> None:
    spread = Counter(partition_of(str(number).encode(), 8) for number in range(8_000))
    assert min(spread.values()) > 800
    assert [partition_of(key, 64) for key in (b"", b"patient-7", b"patient-8")] == [19, 6, 48]
