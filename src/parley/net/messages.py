"""What clients and brokers say to each other, and the one decoder of it.

A client asks with an `id` of its choice and gets answers with the same `id`. Every answer about the ledger names the
certified header that proves it; readers that trust their broker may leave the proofs unchecked.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from parley.ledger.proofs import Anchor, BlockProof, StateEntry
from parley.model.batches import MAX_BATCH_BYTES, MAX_MESSAGES, BatchHeader, Message, Withheld
from parley.model.codec import DECODE_ERRORS
from parley.model.credentials import Credential
from parley.model.errors import Code
from parley.model.names import U32, U64, Hash, Name, Position, Signature

__all__ = [
    "MAX_ANSWER",
    "MAX_QUESTION",
    "MAX_RECEIPTS",
    "MAX_STREAMS",
    "MAX_TOLD",
    "MAX_WORDS",
    "VERSION",
    "Answer",
    "Authenticate",
    "Challenge",
    "CloseStream",
    "Content",
    "Credit",
    "DeliveredBlock",
    "Delivery",
    "Failure",
    "Fetch",
    "Fetched",
    "FetchedBatch",
    "FetchedBlock",
    "Head",
    "ListKeys",
    "Listed",
    "Misbehaviour",
    "OpenStream",
    "Opening",
    "PeerHello",
    "PeerStatus",
    "PreparedBlock",
    "PreparedDelivery",
    "Prove",
    "Proven",
    "Question",
    "Receipted",
    "Skipped",
    "Status",
    "StatusRequest",
    "StreamPosition",
    "Submit",
    "Welcome",
    "WireError",
    "decode_answer",
    "decode_opening",
    "decode_question",
    "encode",
]

MAX_QUESTION = MAX_BATCH_BYTES + 4096
MAX_TOLD = 512  # proofs of misbehaviour in a status: all that a committee can be kept for
MAX_WORDS = 4096  # characters of a sentence in a status
MAX_ANSWER = 16 * 1024 * 1024  # the matches of a full block, with their proofs
MAX_STREAMS = 256  # of one connection
MAX_KEYS = 256
MAX_RECEIPTS = 256  # that one answer shows
VERSION = 3

T = TypeVar("T")
Id = U32


class WireError(ValueError):
    """The bytes are not a message of this protocol; the connection is of no more use."""


# -- opening a connection ------------------------------------------------------------------------------------------


class PeerHello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The first frame of a broker that dials another: both must have started from the same genesis file.

    `time` is its clock, so that a broker whose clock is off learns it from the others (P5).
    """

    version: U32
    chain: Hash
    time: U64


class Challenge(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """The first frame that a client gets."""

    version: U32
    chain: Hash
    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Authenticate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """The credential, and its key's signature over nonce and the broker's certificate (P4)."""

    credential: Credential
    signature: Signature


class Welcome(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    broker: Name
    time: U64  # the broker's clock, ms


# -- questions -----------------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=10):
    """Order this batch; answered by `Receipted` once its receipt is certified, at once if it was ordered before."""

    id: Id
    batch: Annotated[bytes, Meta(min_length=1, max_length=MAX_BATCH_BYTES)]


class Fetch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=11):
    """Read a partition from `offset` on; if there is nothing yet, wait up to `wait` ms for something."""

    id: Id
    topic: str
    partition: U32
    offset: U64
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_ANSWER)]
    wait: Annotated[int, Meta(ge=0, le=60_000)]


class StreamPosition(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The next number that a subscriber expects in one partition."""

    partition: U32
    incarnation: Position
    next_ps: U64


class OpenStream(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=12):
    """Push what matches a constraint, from these positions on, no more than `credit` messages ahead of `Credit`."""

    id: Id
    topic: str
    constraint: Hash
    positions: Annotated[tuple[StreamPosition, ...], Meta(min_length=1, max_length=64)]
    credit: Annotated[int, Meta(ge=1, le=1_000_000)]


class Credit(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=13):
    """The stream's reader has taken in `messages` more."""

    id: Id
    messages: Annotated[int, Meta(ge=1, le=1_000_000)]


class CloseStream(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=14):
    id: Id


class Prove(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=15):
    """Show these entries of the certified state, or that they do not exist."""

    id: Id
    keys: Annotated[
        tuple[Annotated[bytes, Meta(max_length=4096)], ...], Meta(min_length=1, max_length=MAX_KEYS)
    ]


class ListKeys(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=16):
    """Name the entries under a prefix, after a key. No broker can prove that a list is complete."""

    id: Id
    prefix: Annotated[bytes, Meta(max_length=512)]
    after: Annotated[bytes, Meta(max_length=4096)]


class StatusRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=17):
    id: Id


Question = Submit | Fetch | OpenStream | Credit | CloseStream | Prove | ListKeys | StatusRequest


# -- answers -------------------------------------------------------------------------------------------------------


class Failure(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=30):
    """This broker cannot or will not answer; the end of a stream, too."""

    id: Id
    code: Code
    detail: Annotated[str, Meta(max_length=2048)]


class Receipted(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=31):
    """The receipts of batches that came in one block: the proof's leaves are those of `id` and then of `others`."""

    id: Id
    anchor: Anchor
    proof: BlockProof
    others: Annotated[tuple[Id, ...], Meta(max_length=MAX_RECEIPTS - 1)] = ()


class Skipped(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A message before the asked-for offset: only what the batch's digest needs of it."""

    hash: Hash

    def leaf(self) -> bytes:
        return self.hash


Content = Message | Withheld | Skipped


class FetchedBatch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A whole batch, message by message, as far as the reader may see them."""

    header: BatchHeader
    signature: Signature
    contents: Annotated[tuple[Content, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]


class FetchedBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The proof's leaves are the receipts of the batches, in order."""

    proof: BlockProof
    batches: tuple[FetchedBatch, ...]


class Fetched(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=32):
    """`head` is the partition's record; `reader` the asking client's, if anything is withheld from it."""

    id: Id
    anchor: Anchor
    head: StateEntry
    reader: StateEntry | None
    blocks: tuple[FetchedBlock, ...]


class DeliveredBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The proof's last leaf is the constraint's `Match` or `Closed`, the ones before are the batches of its items."""

    proof: BlockProof
    contents: tuple[Message | Withheld, ...]


class Delivery(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=33):
    id: Id
    anchor: Anchor
    reader: StateEntry | None
    blocks: Annotated[tuple[DeliveredBlock, ...], Meta(min_length=1)]


class PreparedBlock(Struct, frozen=True, array_like=True):
    """A `DeliveredBlock` whose parts were encoded before, because many are sent the same."""

    proof: Raw
    contents: Raw


class PreparedDelivery(Struct, frozen=True, array_like=True, tag=33):
    """A `Delivery` of such blocks; nobody can tell the two apart once they are sent."""

    id: int
    anchor: Raw
    reader: StateEntry | None
    blocks: tuple[PreparedBlock, ...]


class Head(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=34):
    """Proof that the stream is complete up to a fresh header: the constraint's record in each partition."""

    id: Id
    anchor: Anchor
    entries: tuple[StateEntry, ...]


class Proven(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=35):
    id: Id
    anchor: Anchor
    entries: tuple[StateEntry, ...]


class Listed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=36):
    id: Id
    keys: tuple[bytes, ...]
    more: bool


_Words = Annotated[str, Meta(max_length=MAX_WORDS)]


class PeerStatus(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: _Words
    connected: bool


class Misbehaviour(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a broker holds the proof that another one signed two contradicting things in a view."""

    broker: _Words
    kind: _Words
    view: U64


class Status(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=37):
    """A broker's own word on how it is; `state` is ready, starting, lagging, recovering, rebuilding or halted.

    `damage` are the newest damaged entries of its store that it found, and what became of them.
    """

    id: Id
    broker: _Words
    organisation: _Words
    index: U32
    version: _Words
    state: _Words
    note: _Words
    epoch: U64
    view: U64
    height: U64
    certified: U64
    leader: _Words
    time: U64
    clients: U32
    peers: Annotated[tuple[PeerStatus, ...], Meta(max_length=MAX_TOLD)]
    misbehaviour: Annotated[tuple[Misbehaviour, ...], Meta(max_length=MAX_TOLD)]
    damage: Annotated[tuple[_Words, ...], Meta(max_length=MAX_TOLD)]


Answer = Failure | Receipted | Fetched | Delivery | Head | Proven | Listed | Status

Opening = PeerHello | Challenge | Authenticate | Welcome | Failure


def decode_question(data: bytes) -> Question:
    return _decode(_questions, data)


def decode_answer(data: bytes) -> Answer:
    return _decode(_answers, data)


def decode_opening(data: bytes) -> Opening:
    return _decode(_openings, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except DECODE_ERRORS as error:
        raise WireError(str(error)) from None


encode = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_openings: msgspec.msgpack.Decoder[Opening] = msgspec.msgpack.Decoder(Opening)
