"""Ed25519 agrees with its RFC, refuses what libsodium refuses, and keeps its secrets."""

import copy
import json
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.crypto.ed25519 import PUBLIC_KEY_SIZE, SEED_SIZE, SIGNATURE_SIZE, SecretKey, verify

VECTORS = Path(__file__).parent.parent / "vectors"
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


def load(name: str) -> Any:  # noqa: ANN401 - the shape is the file's
    return json.loads((VECTORS / name).read_text())


def unhex(vector: dict[str, str], *fields: str) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(vector[field]) for field in fields)


RFC8032 = load("ed25519-rfc8032.json")["vectors"]
SPECCHECK = load("ed25519-speccheck.json")["vectors"]
WYCHEPROOF = load("ed25519-wycheproof-excerpt.json")


def test_no_vector_is_missing() -> None:
    assert (len(RFC8032), len(SPECCHECK), len(WYCHEPROOF["tests"])) == (5, 12, 62)


@pytest.mark.parametrize("vector", RFC8032, ids=lambda vector: vector["name"])
def test_rfc_8032(vector: dict[str, str]) -> None:
    seed, public, message, signature = unhex(vector, "seed", "public", "message", "signature")
    key = SecretKey.from_seed(seed)
    assert key.public == public
    assert key.sign(message) == signature
    assert verify(public, message, signature)


@pytest.mark.parametrize("vector", RFC8032, ids=lambda vector: vector["name"])
def test_a_scalar_above_the_group_order_is_refused(vector: dict[str, str]) -> None:
    public, message, signature = unhex(vector, "public", "message", "signature")
    scalar = int.from_bytes(signature[32:], "little")
    for multiple in range(1, (2**256 - 1 - scalar) // GROUP_ORDER + 1):
        malleated = signature[:32] + (scalar + multiple * GROUP_ORDER).to_bytes(32, "little")
        assert not verify(public, message, malleated)


@pytest.mark.parametrize("vector", SPECCHECK, ids=lambda vector: f"case-{vector['case']}")
def test_the_edge_cases_on_which_libraries_differ_are_pinned(vector: dict[str, Any]) -> None:
    # A change here splits a network of old and new replicas: it needs a new protocol version.
    public, message, signature = unhex(vector, "public", "message", "signature")
    assert verify(public, message, signature) is vector["accepted"]


@pytest.mark.parametrize(
    "vector", WYCHEPROOF["tests"], ids=lambda vector: f"{vector['tcId']}-{vector['flag']}"
)
def test_wycheproof(vector: dict[str, Any]) -> None:
    message, signature = unhex(vector, "msg", "sig")
    assert verify(bytes.fromhex(WYCHEPROOF["publicKey"]), message, signature) is vector["valid"]


@given(st.binary(min_size=SEED_SIZE, max_size=SEED_SIZE), st.binary(max_size=200))
def test_what_is_signed_verifies_under_that_key_only(seed: bytes, message: bytes) -> None:
    key, other = SecretKey.from_seed(seed), SecretKey.generate()
    signature = key.sign(message)
    assert len(signature) == SIGNATURE_SIZE
    assert verify(key.public, message, signature)
    assert not verify(other.public, message, signature)
    assert not verify(key.public, message + b"\0", signature)


@given(st.integers(0, 8 * SIGNATURE_SIZE - 1))
@settings(max_examples=200)
def test_any_flipped_bit_of_a_signature_is_refused(bit: int) -> None:
    key = SecretKey.from_seed(bytes(SEED_SIZE))
    signature = bytearray(key.sign(b"message"))
    signature[bit // 8] ^= 1 << bit % 8
    assert not verify(key.public, b"message", bytes(signature))


def sized(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size) | st.binary(max_size=2 * size)


@given(sized(PUBLIC_KEY_SIZE), st.binary(max_size=20), sized(SIGNATURE_SIZE))
def test_garbage_is_false_and_never_an_exception(public: bytes, message: bytes, signature: bytes) -> None:
    assert verify(public, message, signature) is False


def test_bytes_cannot_move_between_signature_and_message() -> None:
    key = SecretKey.generate()
    signature = key.sign(b"abc")
    assert not verify(key.public, b"bc", signature + b"a")
    assert not verify(key.public, signature[-1:] + b"abc", signature[:-1])
    assert not verify(key.public + b"\0", b"abc", signature)
    assert not verify(key.public[:-1], b"abc", signature)


def test_randomness_comes_from_the_parameter() -> None:
    key = SecretKey.generate(lambda size: b"\7" * size)
    assert key.seed() == b"\7" * SEED_SIZE
    assert key.public == SecretKey.from_seed(b"\7" * SEED_SIZE).public
    assert len(key.public) == PUBLIC_KEY_SIZE
    assert SecretKey.generate().public != SecretKey.generate().public


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_seed_of_a_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SecretKey.from_seed(bytes(size))
    with pytest.raises(ValueError, match="32 bytes"):
        SecretKey.generate(lambda _: bytes(size))


def test_a_secret_key_is_not_shown_pickled_or_copied() -> None:
    key = SecretKey.generate()
    for shown in (repr(key), str(key), f"{key}"):
        assert "redacted" in shown
        assert key.seed().hex()[:8] not in shown
    for copied in (
        copy.copy,
        copy.deepcopy,
        methodcaller("__reduce_ex__", 2),
        methodcaller("__reduce_ex__", 4),
    ):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            copied(key)
