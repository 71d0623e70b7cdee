"""The entries of the replicated state that the application keeps for itself."""

from __future__ import annotations

from msgspec import Struct

from parley.crypto.encoding import u32, u64
from parley.model.names import U32, U64, Hash, Key, Pairs, Position, Session, Value

__all__ = [
    "AGES",
    "BEHIND",
    "CHUNKS",
    "COMMITTED",
    "ENDING",
    "LINES",
    "OVER",
    "PENDING",
    "REMEMBERED_STRANGERS",
    "STAGED",
    "STAGED_BYTES",
    "STRANGERS",
    "TOPICS",
    "WRITERS",
    "AgesRecord",
    "ChunkRecord",
    "CommittedRecord",
    "ContentRecord",
    "GuardRecord",
    "LineRecord",
    "PendingRecord",
    "StagedRecord",
    "StrangerRecord",
    "UseRecord",
    "ages_key",
    "chunk_key",
    "committed_key",
    "content_key",
    "ending_key",
    "expiry_key",
    "expiry_prefix",
    "guard_key",
    "line_key",
    "lines_key",
    "over_key",
    "pending_key",
    "staged_key",
    "staging_key",
    "staging_prefix",
    "stranger_key",
    "use_key",
    "weight_key",
]

TOPICS = b"count/topics"  # deleted ones too: their records stay
REMEMBERED_STRANGERS = b"count/strangers"
LINES = b"line/"
CHUNKS = b"chunk/"  # sorts before lines: where both are listed for one height, a line goes after its chunks
STRANGERS = b"stranger/"
ENDING = b"ending/"
AGES = b"age/"
STAGED = b"staged/"
COMMITTED = b"committed/"
OVER = b"over/"
PENDING = b"count/pending"  # staged batches that were committed and wait to be numbered
STAGED_BYTES = b"count/staged bytes"
WRITERS = b"count/writers"
BEHIND = b"count/behind"  # the height whose expiries are still being worked off; none: nothing is left over


class LineRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`line/<id>`: one sequence line (P3) and its newest batches."""

    publisher: Key
    next: U64
    last: U64  # the highest not_after of the batches that must be known
    sealed: U32  # how many chunks have left for keys of their own
    first: U64  # the sequence of the first batch in `open`
    open: bytes  # entries of `lines.ENTRY`, oldest first


class ChunkRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`chunk/<id><ordinal>`: a full chunk of a line's older batches."""

    first: U64
    entries: bytes


class StrangerRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`stranger/<digest>`: where a batch of an unknown key was refused."""

    original: Position


class GuardRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`guard/<topic>/<constraint>`: the equalities that a live constraint waits under; None: it is always asked."""

    equalities: tuple[tuple[str, Value], ...] | None


class AgesRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`age/<topic>/<partition>`: the granules of a log with a retention, oldest first; none: no entry.

    Each is its first offset, and a time before which all of it was published.
    """

    granules: tuple[tuple[U64, U64], ...]


class StagedRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`staged/<digest>`: a staged batch, with all that numbering needs to know of it: its body may not be here then."""

    publisher: Key
    topic: str
    partition: U32
    writer: Session
    stage: U64
    count: U32
    size: U32  # bytes, as it was signed
    until: U64
    at: Position  # of its receipt
    parts: U32  # its `ContentRecord`s
    compared: U64  # what matching it cost when it was staged, in comparisons
    weight: U64  # of all that had ever been asked on the topic then


class ContentRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`content/<digest><ordinal>`: what matching needs of some messages of a staged batch."""

    leaves: bytes
    tags: tuple[tuple[U32, Pairs], ...]  # of so many messages in a row each


class CommittedRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`committed/<height><position><ordinal>`: some batches of a committed stage that wait to be numbered."""

    publisher: Key
    topic: str
    writer: Session
    digests: tuple[Hash, ...]


class PendingRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`pending/<topic>`: how many batches wait there to be numbered, and what may still be added to what is asked."""

    batches: U32
    room: (
        U64  # comparisons that each of their messages may take more before one of the batches costs too much
    )


class UseRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`use/<key>`: what one client holds of the things that are limited."""

    subscriptions: U32 = 0
    advertised: tuple[str, ...] = ()  # topics
    staged: U64 = 0  # bytes
    writers: U32 = 0


def line_key(line: bytes) -> bytes:
    return LINES + line


def chunk_key(line: bytes, ordinal: int) -> bytes:
    return CHUNKS + line + u64(ordinal)


def stranger_key(digest: bytes) -> bytes:
    return STRANGERS + digest


def lines_key(publisher: bytes) -> bytes:
    """Holds how many lines a key has."""
    return b"count/lines/" + publisher


def guard_key(topic: str, constraint: bytes) -> bytes:
    return b"guard/" + topic.encode() + b"\0" + constraint


def ending_key(topic: str) -> bytes:
    """Lists a deleted topic as long as there is something of it to clear away."""
    return ENDING + topic.encode()


def ages_key(topic: str, partition: int) -> bytes:
    return AGES + topic.encode() + b"\0" + u32(partition)


def use_key(client: bytes) -> bytes:
    return b"use/" + client


def staged_key(digest: bytes) -> bytes:
    return STAGED + digest


def content_key(digest: bytes, ordinal: int) -> bytes:
    return b"content/" + digest + u32(ordinal)


def staging_prefix(topic: str) -> bytes:
    return b"staging/" + topic.encode() + b"\0"


def staging_key(topic: str, publisher: bytes, writer: bytes, stage: int, digest: bytes) -> bytes:
    """Lists a staged batch that was not committed."""
    return staging_prefix(topic) + publisher + writer + u64(stage) + digest


def committed_key(at: Position, ordinal: int) -> bytes:
    height, position = at
    return COMMITTED + u64(height) + u32(position) + u32(ordinal)


def over_key(topic: str, publisher: bytes, writer: bytes) -> bytes:
    """Lists a writer that has committed a stage, until what else it had staged up to there is dropped."""
    return OVER + topic.encode() + b"\0" + publisher + writer


def pending_key(topic: str) -> bytes:
    return b"pending/" + topic.encode()


def weight_key(topic: str) -> bytes:
    """Holds how much was ever asked on a topic: it grows with each new constraint and never shrinks."""
    return b"count/weight/" + topic.encode()


def expiry_prefix(height: int) -> bytes:
    return b"exp/" + u64(height)


def expiry_key(height: int, key: bytes) -> bytes:
    """Lists the entry `key`, which the block at `height` looks at again."""
    return expiry_prefix(height) + key
