"""Simulated signatures differ by member, message and seed, and a verifier offers no way to sign."""

import copy
import hashlib
from operator import methodcaller

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.crypto.encoding import u32
from parley.crypto.hashing import digest
from parley.crypto.simulated import SIGNATURE_SIZE, SimulatedAuthority


@given(st.binary(max_size=40), st.binary(max_size=200), st.integers(0, 3))
def test_a_signature_is_the_keyed_hash_of_the_message(seed: bytes, message: bytes, index: int) -> None:
    secret = digest("simulated/member", seed, u32(index))
    expected = hashlib.blake2b(message, key=secret, digest_size=SIGNATURE_SIZE).digest()
    assert SimulatedAuthority(seed, 4).signer(index).sign(message) == expected


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_members_and_seeds_sign_differently(one: bytes, other: bytes, message: bytes) -> None:
    first, second = SimulatedAuthority(one, 4), SimulatedAuthority(other, 4)
    signatures = [first.signer(i).sign(message) for i in range(4)]
    assert len(set(signatures)) == 4
    theirs = {second.signer(i).sign(message) for i in range(4)}
    assert theirs == set(signatures) if one == other else theirs.isdisjoint(signatures)


def test_the_same_seed_gives_the_same_world() -> None:
    signature = SimulatedAuthority(b"seed", 4).signer(2).sign(b"vote")
    assert SimulatedAuthority(b"seed", 4).scheme().verify(2, b"vote", signature)
    assert not SimulatedAuthority(b"other", 4).scheme().verify(2, b"vote", signature)


def test_the_scheme_only_verifies_and_aggregates() -> None:
    scheme = SimulatedAuthority(b"seed", 4).scheme()
    public = {name for name in dir(scheme) if not name.startswith("_")}
    assert public == {"aggregate", "signature_size", "size", "verify", "verify_aggregate"}


def test_only_members_get_signers() -> None:
    authority = SimulatedAuthority(b"seed", 4)
    for stranger in (-1, 4):
        with pytest.raises(ValueError, match="there is no member"):
            authority.signer(stranger)
    with pytest.raises(ValueError, match="at least one member"):
        SimulatedAuthority(b"seed", 0)


def test_the_authority_is_not_shown_pickled_or_copied() -> None:
    authority = SimulatedAuthority(b"seed", 4)
    assert repr(authority) == "<SimulatedAuthority of 4 members, redacted>"
    for copied in (copy.copy, copy.deepcopy, methodcaller("__reduce_ex__", 4)):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            copied(authority)
