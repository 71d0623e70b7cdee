"""Sequence lines: every batch takes effect once, whoever orders it again (P3).

A batch must be known until its not_after, but an entry of the state map for each would cost more than the batch. So a
line keeps its newest 64 in its own record; full chunks get keys of their own and are found by their ordinal.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Layout

from msgspec.structs import replace

from parley.crypto.encoding import u32
from parley.crypto.hashing import DIGEST_SIZE, digest
from parley.model.batches import BatchHeader
from parley.model.errors import Code, Refusal
from parley.model.names import Position
from parley.pubsub.records import ChunkRecord, LineRecord, chunk_key, expiry_key, line_key, lines_key
from parley.pubsub.state import State

__all__ = ["CHUNK", "MAX_LINES", "Line", "expire"]

CHUNK = 64  # batches
MAX_LINES = 4_096  # of one key
ENTRY = Layout(">32sQI")  # digest, and the height and position of its receipt


class Line:
    """One line as the state has it; `next` is 0 where there is none."""

    __slots__ = ("_id", "_record", "_state")

    def __init__(self, state: State, header: BatchHeader) -> None:
        self._state = state
        self._id = line_id(header)
        self._record = state.get(LineRecord, line_key(self._id))

    @property
    def exists(self) -> bool:
        return self._record is not None

    @property
    def next(self) -> int:
        return 0 if self._record is None else self._record.next

    def original(self, sequence: int, name: bytes) -> Position | None:
        """Where the batch of this digest was applied or refused, if it was and may not have expired since."""
        record = self._record
        if record is None or sequence >= record.next:
            return None
        entries = record.open if sequence >= record.first else self._sealed(sequence, record.sealed)
        for at in range(0, len(entries), ENTRY.size):
            if entries[at : at + DIGEST_SIZE] == name:
                _, height, position = ENTRY.unpack_from(entries, at)
                return height, position
        return None

    def require_room(self, header: BatchHeader) -> None:
        """That the line exists or may begin. If not, nothing is decided: a line ends when its batches have expired."""
        if self._record is None and self._state.count(lines_key(header.publisher)) >= MAX_LINES:
            raise Refusal(
                Code.BUSY,
                f"the key has the {MAX_LINES} sequence lines that it may have, one for each session, topic and "
                f"partition; use fewer sessions. This may yet be applied, up to height {header.not_after}",
            )

    def take(self, header: BatchHeader, name: bytes, at: Position) -> None:
        """The batch was applied or refused in its turn; either way its sequence is used and its digest known."""
        entry = ENTRY.pack(name, *at)
        old = self._record
        if old is None:
            self._state.put(expiry_key(header.not_after + 1, line_key(self._id)), b"")
            self._state.add(lines_key(header.publisher), 1)
            new = LineRecord(header.publisher, header.count, header.not_after, 0, header.sequence, entry)
        else:
            last = max(old.last, header.not_after)
            sealed, first, entries = old.sealed, old.first, old.open
            if len(entries) >= CHUNK * ENTRY.size:
                self._seal(old, last)
                sealed, first, entries = sealed + 1, header.sequence, b""
            new = LineRecord(old.publisher, old.next + header.count, last, sealed, first, entries + entry)
        self._put(new)

    def hold(self, not_after: int) -> None:
        """Live on until a batch has expired that would apply if the line began anew."""
        if self._record is not None and self._record.last < not_after:
            self._put(replace(self._record, last=not_after))

    def _put(self, record: LineRecord) -> None:
        self._record = record
        self._state.put(line_key(self._id), record)

    def _seal(self, record: LineRecord, last: int) -> None:
        # By the line's highest not_after so far, so that chunks expire in the order of their ordinals.
        key = chunk_key(self._id, record.sealed)
        self._state.put(key, ChunkRecord(record.first, record.open))
        self._state.put(expiry_key(last + 1, key), b"")

    def _sealed(self, sequence: int, sealed: int) -> bytes:
        """The entries of the last chunk that begins at or before the sequence; older chunks expire first."""
        low, high, found = 0, sealed, b""
        while low < high:
            middle = (low + high) // 2
            chunk = self._state.get(ChunkRecord, chunk_key(self._id, middle))
            if chunk is None:
                low = middle + 1
            elif chunk.first <= sequence:
                low, found = middle + 1, chunk.entries
            else:
                high = middle
        return found


def line_id(header: BatchHeader) -> bytes:
    return _line_id(header.publisher, header.session, header.kind, header.topic, header.partition)


@lru_cache(maxsize=4_096)  # a session's batches come one after the other
def _line_id(publisher: bytes, session: bytes, kind: int, topic: str, partition: int) -> bytes:
    return digest("pubsub/line", publisher, session, u32(kind), topic.encode(), u32(partition))


def expire(state: State, key: bytes, listed: int, height: int) -> None:
    """The height for which a line is listed has come: it goes, or is listed anew if it was used since.

    Judged by the listed height, which may be past: so all its chunks were listed before and have gone.
    """
    record = state.get(LineRecord, key)
    assert record is not None, "a line goes only here"
    if record.last < listed:
        state.delete(key)
        state.add(lines_key(record.publisher), -1)
    else:
        state.put(expiry_key(max(record.last, height) + 1, key), b"")
