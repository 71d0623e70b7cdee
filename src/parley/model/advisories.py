"""Where a reader says it stands: signed by the reader, kept by brokers for a while, shown to those who look after it.

It is a reader's own word and never an acknowledgement: nothing that anybody gets depends on it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from parley.crypto import ed25519
from parley.crypto.encoding import enc
from parley.model.codec import DECODE_ERRORS
from parley.model.credentials import Credential, CredentialError, check_credential
from parley.model.genesis import Genesis
from parley.model.names import MAX_PARTITIONS, U32, U64, TopicName
from parley.model.refusals import BadSignature, Malformed, malformed

MAX_ADVISORY = 8 * 1024


class Standpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of one partition: the next offset that the reader wants, and the end that it knew of then."""

    partition: U32
    next_offset: U64
    end: U64

    @property
    def lag(self) -> int:
        return max(0, self.end - self.next_offset)


class Advisory(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One query's reading of one topic. The credential says who reads, to everybody who has the genesis file."""

    credential: Credential
    query: Annotated[str, Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]+\Z")]  # it is shown in one line
    run: Annotated[str, Meta(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
    topic: TopicName
    positions: Annotated[tuple[Standpoint, ...], Meta(min_length=1, max_length=MAX_PARTITIONS)]
    time: U64  # ms since 1970, by the reader's clock

    @property
    def reader(self) -> str:
        return f"{self.credential.organisation}/{self.credential.name}"

    @property
    def lag(self) -> int:
        return sum(position.lag for position in self.positions)


def sign_advisory(advisory: Advisory, key: ed25519.SecretKey) -> tuple[bytes, bytes]:
    """What is sent: the bytes, and the signature over them."""
    data = _encode(advisory)
    return data, key.sign(_signed(advisory.credential.chain, data))


def open_advisory(data: bytes, signature: bytes, genesis: Genesis, now: int) -> Advisory:
    """Raises `Refused` unless a client that an organisation of this network vouches for now has signed it."""
    try:
        advisory = _advisories.decode(data)
    except DECODE_ERRORS as error:
        raise malformed("advisory", error) from None
    if _encode(advisory) != data:
        raise Malformed("advisory_encoding")
    partitions = [position.partition for position in advisory.positions]
    if sorted(set(partitions)) != partitions:
        raise Malformed("advisory_order")
    try:
        check_credential(advisory.credential, genesis, now)
    except CredentialError as error:
        raise BadSignature("advisory_credential", fault=str(error)) from None
    if not ed25519.verify(advisory.credential.key, _signed(genesis.chain, data), signature):
        raise BadSignature("advisory")
    return advisory


def _signed(chain: bytes, data: bytes) -> bytes:
    return enc(b"PSB1/sig/advisory", chain, data)


_encode = msgspec.msgpack.Encoder().encode
_advisories = msgspec.msgpack.Decoder(Advisory)
