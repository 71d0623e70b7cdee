"""What a client may ask the ledger to do besides publishing: the payload of a control batch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Code, Refusal, malformed
from parley.model.names import (
    U64,
    ClientName,
    Hash,
    Key,
    Pairs,
    RuleText,
    Session,
    Signature,
    TopicName,
    unsorted_pair,
)

__all__ = [
    "MAX_PARTITIONS",
    "MAX_STAGED_BATCHES",
    "Advertise",
    "AlterClient",
    "AlterTopic",
    "CommitStage",
    "CreateTopic",
    "DeleteTopic",
    "GrantRight",
    "Operation",
    "Policy",
    "RegisterClient",
    "RevokeClient",
    "RevokeRight",
    "Right",
    "Subscribe",
    "Unsubscribe",
    "decode_operation",
    "encode_operation",
]

MAX_PARTITIONS = 64
MAX_ADVERTISEMENT = 1024
MAX_STAGED_BATCHES = 16_384  # that one commit names: half a control batch

Partitions = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
Right = Literal["auditor"]  # to read raw blocks, which hold everybody's publications (P22)
ConstraintText = Annotated[str, Meta(max_length=4096)]


class Policy(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic's three dials (DESIGN 1). Settings that brokers do not have yet are refused when a topic is created."""

    matching: Literal["clear", "sse", "split"] = "clear"
    payload: Literal["plain", "threshold", "hybrid", "broadcast", "attribute", "shared"] = "plain"
    retention: Annotated[int, Meta(ge=0, lt=2**62)] = 0  # ms of block time that messages stay; 0: for ever


class RegisterClient(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A client of the administrator's own organisation.

    `proof` is the key's signature over `credentials.registration`: nobody registers the key of somebody else.
    """

    name: ClientName
    key: Key
    attributes: Pairs
    proof: Signature


class AlterClient(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Set some attributes and remove others."""

    name: ClientName
    set: Pairs
    remove: Annotated[tuple[str, ...], Meta(max_length=64)]


class RevokeClient(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """For ever: a revoked key never becomes valid again; its name may be given to a new key."""

    name: ClientName


class CreateTopic(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    name: TopicName
    partitions: Partitions
    policy: Policy
    publish: RuleText  # who may publish; empty: any live client (P26)
    subscribe: RuleText


class AlterTopic(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """None leaves a setting as it is. Partitions only grow: a key's messages would change partitions silently otherwise."""

    name: TopicName
    partitions: Partitions | None
    retention: Annotated[int, Meta(ge=0, lt=2**62)] | None
    publish: RuleText | None
    subscribe: RuleText | None


class DeleteTopic(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    name: TopicName


class Advertise(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """Say what one publishes, to whoever may subscribe; empty withdraws it."""

    topic: TopicName
    text: Annotated[str, Meta(max_length=MAX_ADVERTISEMENT)]


class Subscribe(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """Take an interest, or renew its lease. Covers every partition of the topic."""

    topic: TopicName
    constraint: ConstraintText


class Unsubscribe(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9):
    topic: TopicName
    constraint: ConstraintText


class GrantRight(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=10):
    """Give a client of one's own organisation a right that the genesis file gives the organisation."""

    name: ClientName
    right: Right


class RevokeRight(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=11):
    name: ClientName
    right: Right


class CommitStage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=12):
    """Number these staged batches of the asking client's writer: all of them or none, and each stage once (P23)."""

    topic: TopicName
    writer: Session
    stage: U64
    digests: Annotated[tuple[Hash, ...], Meta(max_length=MAX_STAGED_BATCHES)]


Operation = (
    RegisterClient
    | AlterClient
    | RevokeClient
    | CreateTopic
    | AlterTopic
    | DeleteTopic
    | Advertise
    | Subscribe
    | Unsubscribe
    | GrantRight
    | RevokeRight
    | CommitStage
)


def encode_operation(operation: Operation) -> bytes:
    return _encode(operation)


def decode_operation(data: bytes) -> Operation:
    """Raises `Refusal` for anything but the one canonical form of a known operation."""
    try:
        operation = _operations.decode(data)
    except DECODE_ERRORS as error:
        raise malformed(f"not an operation: {error}") from None
    if _encode(operation) != data:
        raise Refusal(Code.MALFORMED, "the operation is not in its one canonical encoding")
    pairs = _pairs(operation)
    if (name := unsorted_pair(pairs)) is not None:
        raise Refusal(Code.MALFORMED, f"attribute {name!r} is repeated or not in order")
    return operation


def _pairs(operation: Operation) -> Pairs:
    match operation:
        case RegisterClient():
            return operation.attributes
        case AlterClient():
            return operation.set
        case _:
            return ()


_encode = msgspec.msgpack.Encoder().encode
_operations: msgspec.msgpack.Decoder[Operation] = msgspec.msgpack.Decoder(Operation)
