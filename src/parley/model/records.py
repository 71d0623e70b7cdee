"""The entries of the replicated state that a client checks by proof: their keys and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from parley.crypto.encoding import u32
from parley.crypto.hashing import digest
from parley.model.names import U32, U64, Hash, Key, Pairs, Position, Value
from parley.model.operations import Policy, Right

__all__ = [
    "AdvertisementRecord",
    "ClientRecord",
    "ConstraintRecord",
    "PartitionRecord",
    "StageRecord",
    "SubscriptionRecord",
    "TopicRecord",
    "advertisement_key",
    "advertisement_prefix",
    "client_key",
    "constraint_key",
    "decode_record",
    "digests_hash",
    "encode_record",
    "name_key",
    "organisation_prefix",
    "partition_key",
    "stage_key",
    "subscription_key",
    "subscription_prefix",
    "topic_key",
]

T = TypeVar("T", bound=Struct)

CLIENTS = b"client/"
NAMES = b"name/"
TOPICS = b"topic/"
STAGES = b"stage/"


class ClientRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`client/<key>`. A revoked client's record stays, so that its key can never be registered again."""

    organisation: str
    name: str
    key: Key
    attributes: Pairs
    revoked: bool
    changed: U64  # the height of the last change
    rights: tuple[Right, ...] = ()  # sorted

    def readable(self) -> dict[str, Value]:
        """What rules see: the attributes, and who the registry says it is (P26)."""
        return {**dict(self.attributes), "org": self.organisation, "client": self.name}


class TopicRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`topic/<name>`. A deleted topic's record stays: offsets go on where they ended if the name is used again."""

    name: str
    organisation: str
    partitions: U32
    policy: Policy
    publish: str
    subscribe: str
    created: Position
    deleted: bool


class PartitionRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`head/<topic>/<partition>`: the offsets that exist are log_start_offset up to, not including, next_offset (P5)."""

    next_offset: U64
    log_start_offset: U64


class ConstraintRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`ps/<topic>/<partition>/<constraint>`: the head of one order (P6). Gone when the order is closed."""

    constraint: str
    incarnation: Position
    next_ps: U64
    subscribers: U32


class SubscriptionRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`sub/<topic>/<constraint>/<client>`."""

    constraint: str
    lease_until: U64  # ms of block time


class AdvertisementRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`ad/<topic>/<client>`."""

    client: str
    text: str


class StageRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`stage/<topic>/<publisher>/<writer>`: the last stage that a writer has committed (P23)."""

    stage: U64
    at: Position  # the receipt of the commit
    digests: Hash  # of what it named, in its order: `digests_hash`
    pending: U32  # batches of this stage and earlier ones that wait to be numbered


def client_key(key: bytes) -> bytes:
    return CLIENTS + key


def name_key(organisation: str, name: str) -> bytes:
    """Holds the key of the live client of that name."""
    return organisation_prefix(organisation) + name.encode()


def organisation_prefix(organisation: str) -> bytes:
    return NAMES + organisation.encode() + b"/"


def topic_key(topic: str) -> bytes:
    return TOPICS + topic.encode()


def partition_key(topic: str, partition: int) -> bytes:
    return b"head/" + topic.encode() + b"\0" + u32(partition)


def constraint_key(topic: str, partition: int, constraint: bytes) -> bytes:
    return b"ps/" + topic.encode() + b"\0" + u32(partition) + constraint


def subscription_prefix(topic: str) -> bytes:
    return b"sub/" + topic.encode() + b"\0"


def subscription_key(topic: str, constraint: bytes, client: bytes) -> bytes:
    return subscription_prefix(topic) + constraint + client


def advertisement_prefix(topic: str) -> bytes:
    return b"ad/" + topic.encode() + b"\0"


def advertisement_key(topic: str, client: bytes) -> bytes:
    return advertisement_prefix(topic) + client


def stage_key(publisher: bytes, topic: str, writer: bytes) -> bytes:
    return STAGES + topic.encode() + b"\0" + publisher + writer


def digests_hash(digests: Sequence[bytes]) -> bytes:
    """What a commit of a stage is recognised by when it comes again."""
    return digest("stage/digests", *digests)


def encode_record(record: Struct) -> bytes:
    return _encode(record)


def decode_record(kind: type[T], data: bytes) -> T:
    """Of an entry whose proof was checked, or of one's own store."""
    return _decoder(kind).decode(data)


def _decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return found


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Struct], msgspec.msgpack.Decoder] = {}  # type: ignore[type-arg]
