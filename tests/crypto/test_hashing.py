"""A digest depends on its domain and on how its items are divided."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.crypto.encoding import enc
from parley.crypto.hashing import DIGEST_SIZE, digest, domain_prefix


@given(st.text("abc/", max_size=8), st.lists(st.binary(max_size=40), max_size=5))
def test_digest_is_sha256_of_the_encoding(domain: str, items: list[bytes]) -> None:
    expected = hashlib.sha256(enc(b"PSB1/" + domain.encode(), *items)).digest()
    assert digest(domain, *items) == expected
    assert len(expected) == DIGEST_SIZE


def test_domains_and_divisions_separate() -> None:
    digests = {
        digest("a"),
        digest("a", b""),
        digest("b"),
        digest("a", b"xy"),
        digest("a", b"x", b"y"),
        digest("ax", b"y"),
    }
    assert len(digests) == 6


def test_the_format_is_frozen() -> None:
    assert domain_prefix("block") == bytes.fromhex("0000000a" + "505342312f626c6f636b")
    assert digest("block", b"one", b"", bytes(32)).hex() == FROZEN


def test_domains_are_ascii() -> None:
    with pytest.raises(UnicodeEncodeError):
        digest("blöck")


FROZEN = "0280fbc719669a95187446c69a2e98b63eec228f65c93eb51a0d2fc27d6d7890"
