"""Producer sequences: every batch takes effect once, however often it is ordered (P3).

A batch must be known until its not_after, but an entry of the state map for each would cost more than the batch. So a
sequence keeps its newest 64 in its own record; full chunks get keys of their own and are found by their ordinal.

Nothing of this may go before its `not_after`, or a batch could apply again. So its number is limited where it begins: a key
by its sessions, however many partitions they have, and sequences and chunks by a share for each organisation.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Layout

from msgspec.structs import replace

from parley.application.block import BlockContext
from parley.application.bounds import counted, following
from parley.application.expiry import look_again
from parley.application.quotas import HELD, Quota
from parley.application.tables import HASH, KEY, LARGE, SESSION, Record, Table
from parley.application.work import NEW_SEQUENCE, SEALING
from parley.crypto.encoding import u32, u64
from parley.crypto.hashing import DIGEST_SIZE, digest
from parley.model.batches import BatchHeader
from parley.model.names import U32, U64, Key, Position, Session
from parley.model.principals import Principal
from parley.model.refusals import Busy

CHUNK = 64  # batches
MAX_SESSIONS = 4_096  # of one key
MAX_SEQUENCES = 262_144  # in the network, each of up to 3 KB
# In the network, each of 3 KB. Where there are 4 organisations, one client alone may have 2 million batches in chunks:
# those of 2 000 full blocks, while batches are signed for some hundred heights.
MAX_CHUNKS = 262_144
ENTRY = Layout(">32sQI")  # digest, and the height and position of its receipt
# Heights until a sequence is looked at again that was to go and is in use: it costs a block three units, and its user none.
AGAIN = 1_024
FULL = CHUNK * ENTRY.size  # bytes: the next batch begins a chunk


class SequenceRecord(Record, frozen=True):
    """The next sequence of one session, and its newest batches."""

    publisher: Key
    session: Session
    organisation: str  # for which it is counted
    next: U64
    last: U64  # the highest not_after of the batches that must be known
    sealed: U32  # how many chunks have left for keys of their own
    first: U64  # the sequence of the first batch in `open`
    open: bytes  # entries of `ENTRY`, oldest first


class ChunkRecord(Record, frozen=True):
    """A full chunk of a sequence's older batches."""

    first: U64
    entries: bytes


BEGUN = Quota("sequences", refusal=Busy)
SEALED = Quota("chunks", refusal=Busy)
_SESSIONS = "sessions"  # what a key holds

SEQUENCES: Table[SequenceRecord, bytes] = Table(
    "sequence",
    SequenceRecord,
    HASH,
    about="One producer sequence, by the hash of (shard, publisher, session, kind, topic, topic id, partition).",
    expires=True,
    bound=counted(BEGUN, MAX_SEQUENCES),
)
# Sorts before sequences: where both are listed for one height, a sequence goes after its chunks.
CHUNKS: Table[ChunkRecord, bytes, int] = Table(
    "chunk",
    ChunkRecord,
    HASH,
    LARGE,
    about="Older batches of a producer sequence.",
    expires=True,
    bound=counted(SEALED, MAX_CHUNKS),
)
SESSIONS: Table[int, bytes, bytes] = Table(
    "session",
    int,
    KEY,
    SESSION,
    about="How many sequences a session of a key has.",
    bound=following(1, SEQUENCES),
)


class ProducerSequence:
    """One producer sequence as the state has it; `next` is 0 where there is none. `by` is its publisher."""

    __slots__ = ("_block", "_by", "_id", "_record", "_session", "_state")

    def __init__(self, block: BlockContext, by: Principal, header: BatchHeader) -> None:
        self._block, self._by, self._state = block, by, block.state
        self._session = header.session
        self._id = sequence_id(header)
        self._record = SEQUENCES.get(block.state, self._id)

    @property
    def exists(self) -> bool:
        return self._record is not None

    @property
    def next(self) -> int:
        return 0 if self._record is None else self._record.next

    @property
    def work(self) -> int:
        """What the next batch touches besides the sequence itself."""
        if self._record is None:
            return NEW_SEQUENCE
        return SEALING if len(self._record.open) >= FULL else 0

    def original(self, sequence: int, digest: bytes) -> Position | None:
        """Where the batch of this digest was applied or refused, if it was and may not have expired since."""
        record = self._record
        if record is None or sequence >= record.next:
            return None
        entries = record.open if sequence >= record.first else self._sealed(sequence, record.sealed)
        for at in range(0, len(entries), ENTRY.size):
            if entries[at : at + DIGEST_SIZE] == digest:
                _, height, position = ENTRY.unpack_from(entries, at)
                return height, position
        return None

    def require_room(self, header: BatchHeader) -> None:
        """Raises `Busy` unless the sequence may begin, or take one more batch: there is room when others have expired."""
        record = self._record
        if record is None:
            self._require_session(header)
            organisation, limit = self._by.member_of, MAX_SEQUENCES
            BEGUN.require_of_key(self._block, organisation, self._by, limit, not_after=header.not_after)
        elif len(record.open) >= FULL:
            organisation, limit = record.organisation, MAX_CHUNKS
            SEALED.require_of_key(self._block, organisation, self._by, limit, not_after=header.not_after)

    def _require_session(self, header: BatchHeader) -> None:
        """Raises `Busy` unless the session has a sequence already or may begin."""
        if SESSIONS.has(self._state, header.publisher, self._session):
            return
        if HELD.count(self._state, _SESSIONS, header.publisher) >= MAX_SESSIONS:
            raise Busy("sessions", limit=MAX_SESSIONS, not_after=header.not_after)

    def take(self, header: BatchHeader, digest: bytes, at: Position) -> None:
        """Note that the batch was applied or refused in its turn: its sequence is used, and its digest known."""
        entry = ENTRY.pack(digest, *at)
        old = self._record
        if old is None:
            new = self._begin(header, entry)
        else:
            last = max(old.last, header.not_after)
            sealed, first, entries = old.sealed, old.first, old.open
            if len(entries) >= FULL:
                self._seal(old, last)
                sealed, first, entries = sealed + 1, header.sequence, b""
            whose = (old.publisher, old.session, old.organisation)
            new = SequenceRecord(*whose, old.next + header.count, last, sealed, first, entries + entry)
        self._put(new)

    def hold(self, not_after: int) -> None:
        """Keep the sequence up to this height: a batch that lives so long would apply if the sequence began again."""
        if self._record is not None and self._record.last < not_after:
            self._put(replace(self._record, last=not_after))

    def _put(self, record: SequenceRecord) -> None:
        self._record = record
        SEQUENCES.put(self._state, self._id, record=record)

    def _begin(self, header: BatchHeader, entry: bytes) -> SequenceRecord:
        state, organisation = self._state, self._by.member_of
        look_again(state, header.not_after + 1, SEQUENCES.key(self._id))
        BEGUN.add_of_key(state, organisation, header.publisher)
        if not SESSIONS.has(state, header.publisher, self._session):
            HELD.add(state, _SESSIONS, header.publisher, by=1)
        SESSIONS.add(state, header.publisher, self._session, by=1)
        whose = (header.publisher, self._session, organisation)
        return SequenceRecord(*whose, header.count, header.not_after, 0, header.sequence, entry)

    def _seal(self, record: SequenceRecord, last: int) -> None:
        # By the sequence's highest not_after so far, so that chunks expire in the order of their ordinals.
        CHUNKS.put(self._state, self._id, record.sealed, record=ChunkRecord(record.first, record.open))
        look_again(self._state, last + 1, CHUNKS.key(self._id, record.sealed))
        SEALED.add_of_key(self._state, record.organisation, record.publisher)

    def _sealed(self, sequence: int, sealed: int) -> bytes:
        """The entries of the last chunk that begins at or before the sequence; older chunks expire first."""
        low, high, found = 0, sealed, b""
        while low < high:
            middle = (low + high) // 2
            chunk = CHUNKS.get(self._state, self._id, middle)
            if chunk is None:
                low = middle + 1
            elif chunk.first <= sequence:
                low, found = middle + 1, chunk.entries
            else:
                high = middle
        return found


def sequence_id(header: BatchHeader) -> bytes:
    place = (header.topic, header.topic_id, header.partition)
    return _sequence_id(header.shard, (header.publisher, header.session), header.kind, place)


@lru_cache(maxsize=4_096)  # a session's batches come one after the other
def _sequence_id(
    shard: int, whose: tuple[bytes, bytes], kind: int, place: tuple[str, Position, int]
) -> bytes:
    topic, (height, position), partition = place
    parts = (u32(shard), *whose, u32(kind), topic.encode(), u64(height), u32(position), u32(partition))
    return digest("application/sequence", *parts)


def expire_sequence(block: BlockContext, key: tuple[bytes], listed: int) -> int:
    """The height for which a sequence is listed has come: it goes, or is listed again if it was used since.

    Judged by the listed height, which may be past: so all its chunks were listed before and have gone.
    """
    state = block.state
    record = SEQUENCES.get(state, *key)
    assert record is not None, "a sequence goes only here"
    if record.last < listed:
        SEQUENCES.delete(state, *key)
        BEGUN.add_of_key(state, record.organisation, record.publisher, -1)
        SESSIONS.add(state, record.publisher, record.session, by=-1)
        if not SESSIONS.has(state, record.publisher, record.session):
            HELD.add(state, _SESSIONS, record.publisher, by=-1)
    else:
        # Not sooner than that: a sequence in use would be looked at in every block.
        look_again(state, max(record.last, block.height + AGAIN) + 1, SEQUENCES.key(*key))
    return 3


def expire_chunk(block: BlockContext, key: tuple[bytes, int], _listed: int) -> int:
    record = SEQUENCES.get(block.state, key[0])
    assert record is not None, "a sequence goes after its chunks"
    CHUNKS.delete(block.state, *key)
    SEALED.add_of_key(block.state, record.organisation, record.publisher, -1)
    return 2
