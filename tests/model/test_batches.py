"""Opening a batch: cheap checks first, the signature before anything that costs more, and short words for faults."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parley.crypto.ed25519 import SecretKey
from parley.model.batches import (
    FORMAT,
    MAX_RULES,
    PUBLISH,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    open_batch,
    sign_batch,
)
from parley.model.expressions import parse_rule
from parley.model.refusals import BadSignature, Malformed, Refused

CHAIN = bytes(32)
KEY = SecretKey.from_seed(bytes(32))


def body(rules: Sequence[str], header: bytes = encode(MessageHeader())) -> bytes:
    messages = tuple(Message(bytes(16), header, rule, b"") for rule in rules)
    top = BatchHeader(FORMAT, CHAIN, 0, PUBLISH, "t", (0, 0), 0, KEY.public, bytes(16), 0, len(messages), 9)
    return sign_batch(top, messages, KEY)[1]


def refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as raised:
        open_batch(data, CHAIN, 0)
    return raised.value


def forged(data: bytes) -> bytes:
    return data[:-64] + KEY.sign(b"something else")


def test_a_batch_has_a_limited_number_of_different_rules() -> None:
    rules = [f"a == {i}" for i in range(MAX_RULES)]
    assert open_batch(body(["", *rules, *rules]), CHAIN, 0)[1].header.count == 2 * MAX_RULES + 1
    found = refusal(body([*rules, "b == 1"]))
    assert (found.code, f"{MAX_RULES} are allowed" in found.detail) == (Malformed.code, True)


def test_rules_of_a_batch_that_nobody_signed_are_not_read() -> None:
    def read() -> int:
        known = parse_rule.cache_info()
        return known.hits + known.misses

    data, before = body(["a == 1"] * 3), read()
    assert refusal(forged(data)).code == BadSignature.code
    assert read() == before
    open_batch(data, CHAIN, 0)
    assert read() == before + 1  # each rule once


def test_message_headers_of_a_batch_that_nobody_signed_are_not_read() -> None:
    data = body([""], header=b"garbage")
    assert refusal(forged(data)).code == BadSignature.code
    assert refusal(data).code == Malformed.code


@pytest.mark.parametrize("rule", ["a = 1", "a ==", "a in [" + ", ".join(f'"{i}"  ' for i in range(60)) + "]"])
def test_rules_that_are_not_canonical_are_refused_in_few_words(rule: str) -> None:
    found = refusal(body([rule]))
    assert found.code == Malformed.code
    assert "access rule" in found.detail
    assert len(found.detail) <= 200
