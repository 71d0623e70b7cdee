"""What clients and brokers say to each other, and the one decoder of it.

A client asks with an `id` of its choice and gets answers with the same `id`. Every answer about the ledger names the
certified header that proves it; readers that trust their broker may leave the proofs unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from operator import or_
from typing import Annotated, TypeVar

from msgspec import Meta, Raw, Struct, msgpack

from parley.consensus.types import MAX_BATCHES, Header
from parley.crypto.merkle import MultiProof, Proof
from parley.ledger.erasure import Remains
from parley.ledger.layout import StoredBlock
from parley.ledger.proofs import Anchor, BlockProof, StateEntry
from parley.model.advisories import MAX_ADVISORY
from parley.model.batches import MAX_BATCH_BYTES, MAX_MESSAGES, BatchHeader, Message, Withheld
from parley.model.codec import DECODE_ERRORS
from parley.model.credentials import Credential
from parley.model.names import U32, U64, Hash, Name, Position, Signature
from parley.model.refusals import Fields, Refusal, Refused, Word
from parley.model.texts import add_texts
from parley.net.texts import TEXTS

MAX_QUESTION = MAX_BATCH_BYTES + 4096
MAX_TOLD = 512  # proofs of misbehaviour in a status: all that a committee can be kept for
MAX_WORDS = 4096  # characters of a sentence in a status, and of a text in a refusal
MAX_ANSWER = 16 * 1024 * 1024  # the matches of a full block, with their proofs
MAX_STREAMS = 256  # of one connection
MAX_KEYS = 256
MAX_KEY = 4_096  # bytes of an entry's key
MAX_RECEIPTS = 256  # that one answer shows
MAX_BLOCKS = 512  # that one answer shows
MAX_BLOCK_LEAVES = 2**20  # receipts, and what matched: no more than a block may compare
MAX_READERS = 256  # whose advisories a status tells
VERSION = 6

T = TypeVar("T")
Id = U32


class WireError(ValueError):
    """The bytes are not a message of this protocol; the connection is of no more use."""


# -- opening a connection ------------------------------------------------------------------------------------------


class PeerHello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The first frame of a broker that dials another: both must have started from the same genesis file.

    `time` is its clock, so that a broker whose clock is slow learns it from the others (P5).
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
    """The credential, its key's signature over nonce and the broker's certificate (P4), and the shard that is asked for."""

    credential: Credential
    signature: Signature
    shard: U32


class Welcome(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    broker: Name
    time: U64  # the broker's clock, ms


_Key = Annotated[bytes, Meta(max_length=MAX_KEY)]


class Question(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a client asks, under a number of its choice. `EXCHANGES` lists all of them."""

    id: Id


class Answer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a broker answers, under the number of the question."""

    id: Id


# -- heartbeat between brokers ---------------------------------------------------------------------------------------


class Ping(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=50):
    """Sent by a broker that has dialled another, every second. No message of a replica has this tag."""

    number: U32


class Pong(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=51):
    """The answer to the newest ping that was read. `time` is the clock of who answers, so that others know it (P5)."""

    number: U32
    time: U64


class Envelope(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=52):
    """A message of a replica, and the committee to which it is addressed (P28)."""

    shard: U32
    epoch: U64
    message: bytes


# -- questions -----------------------------------------------------------------------------------------------------


class Submit(Question, frozen=True, tag=10):
    """Order this batch; answered by `Receipted` once its receipt is certified, at once if it was ordered before."""

    batch: Annotated[bytes, Meta(min_length=1, max_length=MAX_BATCH_BYTES)]


class Fetch(Question, frozen=True, tag=11):
    """Read a partition from `offset` on; if there is nothing yet, wait up to `wait` ms for something."""

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


class OpenStream(Question, frozen=True, tag=12):
    """Push what matches a constraint, from these positions on, no more than `credit` messages ahead of `Credit`."""

    topic: str
    constraint: Hash
    positions: Annotated[tuple[StreamPosition, ...], Meta(min_length=1, max_length=64)]
    credit: Annotated[int, Meta(ge=1, le=1_000_000)]


class Credit(Question, frozen=True, tag=13):
    """The stream's reader has taken in `messages` more."""

    messages: Annotated[int, Meta(ge=1, le=1_000_000)]


class CloseStream(Question, frozen=True, tag=14):
    """Push no more on this stream."""


class Prove(Question, frozen=True, tag=15):
    """Show these entries of the certified state, or that they do not exist."""

    keys: Annotated[tuple[_Key, ...], Meta(min_length=1, max_length=MAX_KEYS)]


class ListKeys(Question, frozen=True, tag=16):
    """Name the entries under a prefix, after a key. No broker can prove that a list is complete."""

    prefix: Annotated[bytes, Meta(max_length=512)]
    after: _Key


class StatusRequest(Question, frozen=True, tag=17):
    """How the broker says it is; answered by `Status`."""


class ReadBlocks(Question, frozen=True, tag=18):
    """For auditors: whole blocks from a height on, with their receipts and, if asked for, the bodies of their batches."""

    height: Annotated[int, Meta(ge=1, lt=2**62)]
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_ANSWER)]
    bodies: bool


class ReadBodies(Question, frozen=True, tag=19):
    """For auditors: batches by their digests. Another broker may have what the first one has not, or does not show."""

    digests: Annotated[tuple[Hash, ...], Meta(min_length=1, max_length=MAX_BATCHES)]


class ReadEvidence(Question, frozen=True, tag=20):
    """For auditors: the proofs of misbehaviour that this broker holds, but for the first `skip` of them."""

    skip: Annotated[int, Meta(ge=0, le=MAX_TOLD)]


class Advise(Question, frozen=True, tag=21):
    """Where a reader says it stands, for those who look after it. No broker does anything else with it."""

    advisory: Annotated[bytes, Meta(min_length=1, max_length=MAX_ADVISORY)]
    signature: Signature


class ReadHeader(Question, frozen=True, tag=22):
    """Which block stands at this height of the certified history; 0: the newest one."""

    height: Annotated[int, Meta(ge=0, lt=2**62)]


# -- answers -------------------------------------------------------------------------------------------------------


class CertifiedAnswer(Answer, frozen=True):
    """An answer about the ledger, and the header that proves it."""

    anchor: Anchor


class Failure(Answer, frozen=True, tag=30):
    """A refusal as data: this broker cannot or will not answer. It is the end of a stream, too."""

    code: Word
    reason: Word
    fields: Fields

    @classmethod
    def of(cls, id_: int, refused: Refused) -> Failure:
        """Texts may quote what was sent, so they are cut."""
        data = refused.data
        return cls(
            id_,
            data.code,
            data.reason,
            tuple(
                (name, value[:MAX_WORDS] if isinstance(value, str) else value) for name, value in data.fields
            ),
        )

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.code, self.reason, self.fields)

    @property
    def detail(self) -> str:
        """What a person reads."""
        return self.refusal.text

    def error(self) -> Refused:
        return self.refusal.error()


class Receipted(CertifiedAnswer, frozen=True, tag=31):
    """The receipts of batches that came in one block: the proof's leaves are those of `id` and then of `others`."""

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


class Fetched(CertifiedAnswer, frozen=True, tag=32):
    """`head` is the partition's record; `reader` the asking client's, if anything is withheld from it."""

    head: StateEntry
    reader: StateEntry | None
    blocks: tuple[FetchedBlock, ...]


class PackedBatch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `FetchedBatch` whose contents are left as they were sent, or stored: nobody looks at them one by one."""

    header: BatchHeader
    signature: Signature
    contents: Raw

    def opened(self) -> FetchedBatch:
        """Raises `WireError`."""
        return FetchedBatch(self.header, self.signature, _decode(_contents, self.contents))


class PackedBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    proof: BlockProof
    batches: tuple[PackedBatch, ...]


class PackedFetched(CertifiedAnswer, frozen=True, tag=32):
    """A `Fetched` of such batches; on the wire the two are the same."""

    head: StateEntry
    reader: StateEntry | None
    blocks: tuple[PackedBlock, ...]

    def opened(self) -> Fetched:
        """Message by message. Raises `WireError`."""
        return Fetched(
            self.id,
            self.anchor,
            self.head,
            self.reader,
            tuple(
                FetchedBlock(block.proof, tuple(batch.opened() for batch in block.batches))
                for block in self.blocks
            ),
        )


class SplicedBlock(Struct, frozen=True, array_like=True):
    """What a broker sends as a block of a page: batches as they are stored, and those that had to be gone through."""

    proof: BlockProof
    batches: tuple[PackedBatch | FetchedBatch, ...]


class SplicedFetched(Answer, frozen=True, tag=32):
    """A `Fetched` of such blocks; nobody can tell the two apart once they are sent."""

    anchor: Raw
    head: StateEntry
    reader: StateEntry | None
    blocks: tuple[SplicedBlock, ...]


class DeliveredBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The proof's last leaf is the constraint's `Match`, the ones before are the batches of its items."""

    proof: BlockProof
    contents: tuple[Message | Withheld, ...]


class Delivery(CertifiedAnswer, frozen=True, tag=33):
    reader: StateEntry | None
    blocks: Annotated[tuple[DeliveredBlock, ...], Meta(min_length=1)]


class PreparedBlock(Struct, frozen=True, array_like=True):
    """A `DeliveredBlock` whose parts were encoded before, because many are sent the same."""

    proof: Raw
    contents: Raw


class PreparedDelivery(Answer, frozen=True, tag=33):
    """A `Delivery` of such blocks; nobody can tell the two apart once they are sent."""

    anchor: Raw
    reader: StateEntry | None
    blocks: tuple[PreparedBlock, ...]


class Head(CertifiedAnswer, frozen=True, tag=34):
    """Proof that the stream is complete up to a fresh header: the constraint's record in each partition."""

    entries: tuple[StateEntry, ...]


class Proven(CertifiedAnswer, frozen=True, tag=35):
    entries: tuple[StateEntry, ...]


class Listed(Answer, frozen=True, tag=36):
    keys: Annotated[tuple[_Key, ...], Meta(max_length=MAX_KEYS)]
    more: bool


_Words = Annotated[str, Meta(max_length=MAX_WORDS)]


class PeerStatus(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a broker says of another one. `connected`: messages get through both ways, as of the last 3 s."""

    name: _Words
    connected: bool
    slow: bool = False  # its answers take much longer than those of the others
    round_trip_ms: U32 | None = None  # None: not measured


class Misbehaviour(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a broker holds the proof that another one signed two contradicting things in a view."""

    broker: _Words
    kind: _Words
    view: U64


class SignedAdvisory(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An advisory as its reader signed it."""

    advisory: Annotated[bytes, Meta(max_length=MAX_ADVISORY)]
    signature: Signature


class Status(Answer, frozen=True, tag=37):
    """A broker's own word on how it is in a shard; `state` is ready, starting, waiting, lagging, recovering, rebuilding or halted.

    A broker is waiting while nothing is certified because too few others take part, and lagging if it is behind them.
    `damage` are the newest damaged entries of its store that it found, and what became of them. `readers` are the
    advisories that concern the one who asks. `votes` and `failed_views` are by member of its committee, in their order:
    votes in the certificates of the last `blocks` blocks, and views since its start that ended without one of theirs.
    """

    broker: _Words
    organisation: _Words
    index: U32
    version: _Words
    state: _Words
    note: _Words
    shard: U32
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
    blocks: U32 = 0
    votes: Annotated[tuple[U32, ...], Meta(max_length=MAX_TOLD)] = ()
    failed_views: Annotated[tuple[U64, ...], Meta(max_length=MAX_TOLD)] = ()
    readers: Annotated[tuple[SignedAdvisory, ...], Meta(max_length=MAX_READERS)] = ()


Body = bytes | Remains | None  # a batch; what stays of an erased one; None: not asked for, or not here


class RawBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A whole block; `bodies` are in the order of its batches."""

    block: StoredBlock
    leaves: Annotated[tuple[bytes, ...], Meta(max_length=MAX_BLOCK_LEAVES)]
    bodies: Annotated[tuple[Body, ...], Meta(max_length=MAX_BATCHES)]


class Blocks(CertifiedAnswer, frozen=True, tag=38):
    """Blocks in a row, and one proof that they stand in the certified history. None: the first is not certified yet."""

    blocks: Annotated[tuple[RawBlock, ...], Meta(max_length=MAX_BLOCKS)]
    history: MultiProof | None


class Bodies(CertifiedAnswer, frozen=True, tag=39):
    """As many of the asked-for batches, in their order, as fit; at least one."""

    bodies: Annotated[tuple[Body, ...], Meta(min_length=1, max_length=MAX_BATCHES)]


class EvidenceList(Answer, frozen=True, tag=40):
    """Pairs of contradicting messages as they are stored; whoever reads them checks the signatures."""

    entries: Annotated[tuple[bytes, ...], Meta(max_length=MAX_TOLD)]
    more: bool


class Advised(Answer, frozen=True, tag=41):
    """The advisory is kept."""


class ShownHeader(CertifiedAnswer, frozen=True, tag=42):
    """A block's header and its place in the certified history; None: there is no block of that height yet."""

    # With the root and the number of its receipts, which the history's leaf holds too.
    block: tuple[Header, Hash, U32, Proof] | None


# -- the table -----------------------------------------------------------------------------------------------------

# Every question, and what answers it besides `Failure`. What brokers and clients decode follows from it; who may ask and
# what it costs stands in the broker's table of services.
EXCHANGES: dict[type[Question], tuple[type[Answer], ...]] = {
    Submit: (Receipted,),
    Fetch: (Fetched,),
    OpenStream: (Delivery, Head),
    Credit: (),
    CloseStream: (),
    Prove: (Proven,),
    ListKeys: (Listed,),
    StatusRequest: (Status,),
    ReadBlocks: (Blocks,),
    ReadBodies: (Bodies,),
    ReadEvidence: (EvidenceList,),
    Advise: (Advised,),
    ReadHeader: (ShownHeader,),
}

Opening = PeerHello | Challenge | Authenticate | Welcome | Failure


def _decode(decoder: msgpack.Decoder[T], data: bytes | Raw) -> T:
    try:
        return decoder.decode(data)
    except DECODE_ERRORS as error:
        raise WireError(str(error)) from None


def decoder_of(kinds: Iterable[type[T]]) -> Callable[[bytes], T]:
    """A function that decodes a message of one of these kinds. It raises `WireError`."""
    return partial(_decode, msgpack.Decoder(reduce(or_, kinds)))


encode = msgpack.Encoder().encode
_contents: msgpack.Decoder[tuple[Content, ...]] = msgpack.Decoder(
    Annotated[tuple[Content, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
)
# Each raises `WireError`.
decode_opening: Callable[[bytes], Opening] = partial(_decode, msgpack.Decoder(Opening))
decode_envelope: Callable[[bytes], Envelope] = partial(_decode, msgpack.Decoder(Envelope))
decode_ping: Callable[[bytes], Ping] = partial(_decode, msgpack.Decoder(Ping))
# What a broker hears from another one that it has dialled.
decode_reply: Callable[[bytes], Pong | Failure] = partial(_decode, msgpack.Decoder(Pong | Failure))
decode_question: Callable[[bytes], Question] = decoder_of(EXCHANGES)
_answers: set[type[Answer]] = {Failure}.union(*EXCHANGES.values())
decode_answer: Callable[[bytes], Answer] = decoder_of(_answers)
# An answer whose pages are left packed.
decode_packed: Callable[[bytes], Answer] = decoder_of(_answers - {Fetched} | {PackedFetched})
# How every ping begins, and nothing else that a broker may say.
PING = encode(Ping(0))[:2]
# By how much an envelope is larger than its message, at most.
ENVELOPE_BYTES = len(encode(Envelope(2**32 - 1, 2**62 - 1, b""))) + 4
add_texts(TEXTS)
