"""Signature aggregates of a fixed committee: who signed is part of the certificate and cannot be ambiguous.

Signers are a bitmap, so no certificate can name one member twice. How many signers are enough is
for consensus to decide, not for this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NoReturn, Protocol

import msgspec

from parley.crypto import ed25519

# Above this a list of signatures costs more bytes and time than a multisignature.
MAX_ED25519_MEMBERS = 32

NOTHING: Mapping[int, bytes] = MappingProxyType({})

_CACHED_BITMAPS = 4096


class Aggregate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Signatures of the committee members whose bits are set."""

    bitmap: bytes
    signature: bytes


class Signer(Protocol):
    """One member's right to sign."""

    @property
    def index(self) -> int: ...

    def sign(self, message: bytes) -> bytes: ...


class QCScheme(Protocol):
    """How one committee's signatures are checked and aggregated."""

    @property
    def size(self) -> int:
        """The number of committee members."""
        ...

    @property
    def signature_size(self) -> int:
        """The bytes of a single member's signature."""
        ...

    def verify(self, signer: int, message: bytes, signature: bytes) -> bool: ...

    def aggregate(self, signatures: Mapping[int, bytes]) -> Aggregate:
        """Aggregate signatures by member; they are not verified here."""
        ...

    def verify_aggregate(
        self, messages: Sequence[bytes], aggregate: Aggregate, known: Mapping[int, bytes] = NOTHING
    ) -> bool:
        """Whether each signer, the i-th in bitmap order, signed `messages[i]`; never for no signer.

        `known` are signatures by signer that the caller made itself for just these messages: they need no check.
        """
        ...


def voters(bitmap: bytes, size: int) -> tuple[int, ...] | None:
    """The members whose bits are set, ascending; None when the bitmap is not canonical for this size."""
    # Before the cache: a bitmap of a wrong length may be long, and must not be kept.
    if len(bitmap) != (size + 7) // 8:
        return None
    return _members(bitmap, size)


def bitmap_of(signers: Iterable[int], size: int) -> bytes:
    """The canonical bitmap of distinct members; member i is bit i % 8 of byte i // 8."""
    bits = 0
    for signer in signers:
        if not 0 <= signer < size:
            raise ValueError(f"there is no member {signer} in a committee of {size}")
        if bits >> signer & 1:
            raise ValueError(f"member {signer} is named twice")
        bits |= 1 << signer
    return bits.to_bytes((size + 7) // 8, "little")


def join_signatures(signatures: Mapping[int, bytes], size: int, signature_size: int) -> Aggregate:
    """The aggregate of a list scheme: signatures concatenated in bitmap order."""
    for signer, signature in signatures.items():
        if len(signature) != signature_size:
            raise ValueError(f"the signature of member {signer} is not {signature_size} bytes long")
    signers = sorted(signatures)
    return Aggregate(bitmap_of(signers, size), b"".join([signatures[signer] for signer in signers]))


def split_signatures(
    aggregate: Aggregate, size: int, signature_size: int
) -> tuple[tuple[int, bytes], ...] | None:
    """Members and their signatures, ascending; None unless the aggregate is canonical and has a signer."""
    signers = voters(aggregate.bitmap, size)
    signature = aggregate.signature
    if not signers or len(signature) != signature_size * len(signers):
        return None
    starts = range(0, len(signature), signature_size)
    return tuple((i, signature[at : at + signature_size]) for i, at in zip(signers, starts, strict=True))


class Ed25519Signer:
    """A committee member's index together with its secret key."""

    __slots__ = ("_key", "index")

    def __init__(self, index: int, key: ed25519.SecretKey) -> None:
        self.index = index
        self._key = key

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"<Ed25519Signer of member {self.index}, redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signer is neither pickled nor copied")


class Ed25519List:
    """A certificate is the list of its signers' Ed25519 signatures: the scheme of small committees."""

    __slots__ = ("_public_keys", "size")

    signature_size = ed25519.SIGNATURE_SIZE

    def __init__(self, public_keys: Sequence[bytes]) -> None:
        if not 0 < len(public_keys) <= MAX_ED25519_MEMBERS:
            raise ValueError(f"a committee has 1 to {MAX_ED25519_MEMBERS} members, not {len(public_keys)}")
        if any(len(key) != ed25519.PUBLIC_KEY_SIZE for key in public_keys):
            raise ValueError(f"an Ed25519 public key has {ed25519.PUBLIC_KEY_SIZE} bytes")
        # One key in two seats would let one member's signature count twice.
        if len(set(public_keys)) != len(public_keys):
            raise ValueError("two members have the same public key")
        self._public_keys = tuple(public_keys)
        self.size = len(public_keys)

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        return self._public_keys

    def verify(self, signer: int, message: bytes, signature: bytes) -> bool:
        return 0 <= signer < self.size and ed25519.verify(self._public_keys[signer], message, signature)

    def aggregate(self, signatures: Mapping[int, bytes]) -> Aggregate:
        return join_signatures(signatures, self.size, self.signature_size)

    def verify_aggregate(
        self, messages: Sequence[bytes], aggregate: Aggregate, known: Mapping[int, bytes] = NOTHING
    ) -> bool:
        signed = split_signatures(aggregate, self.size, self.signature_size)
        if signed is None or len(messages) != len(signed):
            return False
        keys, verify = self._public_keys, ed25519.verify
        return all(
            known.get(signer) == signature or verify(keys[signer], message, signature)
            for message, (signer, signature) in zip(messages, signed, strict=True)
        )


@lru_cache(maxsize=_CACHED_BITMAPS)
def _members(bitmap: bytes, size: int) -> tuple[int, ...] | None:
    bits = int.from_bytes(bitmap, "little")
    if size < 0 or bits >> size:
        return None
    return tuple(i for i in range(size) if bits >> i & 1)
