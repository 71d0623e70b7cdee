"""The entries of the replicated state that the application keeps for itself."""

from __future__ import annotations

from msgspec import Struct

from parley.crypto.encoding import u32, u64
from parley.model.names import U32, U64, Key, Position, Value

__all__ = [
    "AGES",
    "BEHIND",
    "CHUNKS",
    "ENDING",
    "LINES",
    "REMEMBERED_STRANGERS",
    "STRANGERS",
    "TOPICS",
    "AgesRecord",
    "ChunkRecord",
    "GuardRecord",
    "LineRecord",
    "StrangerRecord",
    "UseRecord",
    "ages_key",
    "chunk_key",
    "ending_key",
    "expiry_key",
    "expiry_prefix",
    "guard_key",
    "line_key",
    "lines_key",
    "stranger_key",
    "use_key",
]

TOPICS = b"count/topics"  # deleted ones too: their records stay
REMEMBERED_STRANGERS = b"count/strangers"
LINES = b"line/"
CHUNKS = b"chunk/"  # sorts before lines: where both are listed for one height, a line goes after its chunks
STRANGERS = b"stranger/"
ENDING = b"ending/"
AGES = b"age/"
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


class UseRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`use/<key>`: what one client holds of the things that are limited."""

    subscriptions: U32 = 0
    advertised: tuple[str, ...] = ()  # topics


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


def expiry_prefix(height: int) -> bytes:
    return b"exp/" + u64(height)


def expiry_key(height: int, key: bytes) -> bytes:
    """Lists the entry `key`, which the block at `height` looks at again."""
    return expiry_prefix(height) + key
