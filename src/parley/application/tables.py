"""Typed tables over the replicated state: one declaration says all there is to know of a kind of entry.

An entry's key is the table's name and a tuple. Texts end with a zero byte and numbers are big-endian, so that keys sort
as their tuples do, and leading parts of a tuple are a prefix under which entries can be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

import msgspec
from msgspec import Struct

from parley.application.bounds import Bound
from parley.crypto.encoding import u32, u64
from parley.ledger import layout
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Position
from parley.model.principals import Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.store.interface import KeyValue

R = TypeVar("R")
T = TypeVar("T")
K = TypeVarTuple("K")

COUNT_SIZE = 8
REMEMBERED_KEYS = 1_024  # of each table whose keys have several parts
_END = b"\0"  # of a text in a key: names hold none


class Record(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """What an entry holds. `gc=False`, here and in other values: they form no cycles, and collections hold the loop."""


# -- parts of keys ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """How one value of a key's tuple is written. `size` is in bytes; None for texts, -1 for the rest of a key."""

    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]
    size: int | None

    def split(self, data: bytes, errors: str = "strict") -> tuple[Any, bytes] | None:
        """The value at the beginning of `data` and what follows; None if it is not complete. `errors`: as for `decode`."""
        if self.size is None:
            text, end, rest = data.partition(_END)
            return (text.decode(errors=errors), rest) if end else None
        return (self.unpack(data[: self.size]), data[self.size :]) if len(data) >= self.size else None


def fixed(size: int) -> Part:
    """Bytes of one length."""

    def pack(value: bytes) -> bytes:
        assert len(value) == size, "a key holds bytes of the length that its table says"
        return value

    return Part(pack, bytes, size)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _position(data: bytes) -> Position:
    return _number(data[:8]), _number(data[8:])


TEXT = Part(lambda text: text.encode() + _END, bytes.decode, None)
NUMBER = Part(u32, _number, 4)
LARGE = Part(u64, _number, 8)
POSITION = Part(lambda at: u64(at[0]) + u32(at[1]), _position, 12)
HASH = KEY = fixed(32)
SESSION = fixed(16)
REST = Part(bytes, bytes, -1)  # all that is left; the last part only


# -- who may see entries ---------------------------------------------------------------------------------------------


class Reader(Protocol):
    """Certified or replicated state, read by table."""

    def read(self, table: Table[R, *K], *key: *K) -> R | None: ...


@dataclass(frozen=True, slots=True)
class Visibility:
    """Who may be shown an entry, or that there is none: `check` says why not.

    It is asked with the tuple of the key, or with its first parts for a list of the entries under them; it looks at the
    first `parts` of them only. `about` completes "this is shown to ..." for people.
    """

    parts: int
    check: Callable[[Reader, Principal, tuple[Any, ...]], Refused | None]
    about: str = ""


HIDDEN = Visibility(0, lambda _reader, _principal, _key: PermissionDenied("hidden"), "no client")


# -- tables ----------------------------------------------------------------------------------------------------------


class Entries(Protocol):
    """Where a table's entries are read: the state during a block, or a store."""

    def load(self, key: bytes, decode: Callable[[bytes], T], /) -> T | None: ...


class Writable(Entries, Protocol):
    """The state during a block."""

    def put(self, key: bytes, value: Struct | bytes | int) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def keys(self, prefix: bytes, limit: int | None = None) -> list[bytes]: ...

    def stored_keys(self, prefix: bytes, limit: int) -> list[bytes]: ...


class Table(Generic[R, *K]):
    """Entries of one kind. `R` is a `Record`, `bytes`, or `int` for counters, of which there is no entry for zero.

    `listed`: how many leading parts of the key a client must name to ask for a list; None: it is never listed. `expires`:
    the host looks at entries again at a height for which they are listed. `index`: no part of the certified state, but
    derived from receipts, for brokers to serve from; entries of `passing` indices come by execution and go by erasure.
    `bound`: what limits the number of entries; no application takes a table without one.
    """

    def __init__(
        self,
        name: str,
        record: type[R],
        *parts: Part,
        about: str,
        visible: Visibility = HIDDEN,
        listed: int | None = None,
        expires: bool = False,
        index: bool = False,
        passing: bool = False,
        bound: Bound | None = None,
    ) -> None:
        assert "/" not in name, "a slash ends the name in a key"
        self.name, self.record, self.about, self.parts = name, record, about, parts
        self.visible, self.listed, self.expires = visible, listed, expires
        self.index, self.passing, self.bound = index, passing, bound
        self._prefix = f"{name}/".encode()
        # The entry's key in the state map or among the indices, from its tuple.
        self.key: Callable[[*K], bytes] = _packer(self._prefix, parts, remember=not index)
        self._decode: Callable[[bytes], R] = _decoder(record)

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    # -- keys --

    def prefix(self, *leading: object) -> bytes:
        """The prefix of all keys whose tuple begins with these values."""
        packed = [part.pack(value) for part, value in zip(self.parts, leading, strict=False)]
        return self._prefix + b"".join(packed)

    def place(self, *key: *K) -> bytes:
        """The key of the entry in a store of the application."""
        return (layout.INDICES if self.index else layout.ENTRIES) + self.key(*key)

    def places(self, *leading: object) -> bytes:
        """The prefix of these entries in a store of the application."""
        return (layout.INDICES if self.index else layout.ENTRIES) + self.prefix(*leading)

    def unpack(self, key: bytes) -> tuple[*K]:
        """The tuple of a key. Raises `ValueError` if it is none of this table's."""
        values, rest = self.leading(key)
        if len(values) != len(self.parts) or rest:
            raise ValueError(f"this is not a key of table {self.name}")
        return values  # of the types that the table says

    def leading(self, prefix: bytes, errors: str = "strict") -> tuple[tuple[Any, ...], bytes]:
        """The complete parts at the beginning of a key or of a prefix, and the bytes after them.

        With `errors="replace"`, bytes that are no text become a text that no entry has in its key.
        """
        if not prefix.startswith(self._prefix):
            raise ValueError(f"this is not a key of table {self.name}")
        rest = prefix[len(self._prefix) :]
        values: list[Any] = []
        for part in self.parts:
            if part.size == -1:
                return (*values, rest), b""
            if (found := part.split(rest, errors)) is None:
                break
            value, rest = found
            values.append(value)
        return tuple(values), rest

    # -- reading --

    def decode(self, data: bytes) -> R:
        """An entry's value; raises one of `DECODE_ERRORS` if it cannot be read."""
        return self._decode(data)

    def is_sound(self, key: bytes, value: bytes) -> bool:
        """Whether an entry can be read."""
        try:
            self.unpack(key)
            self._decode(value)
        except (*DECODE_ERRORS, ValueError):
            return False
        return self.record is not int or len(value) == COUNT_SIZE

    def get(self, entries: Entries, *key: *K) -> R | None:
        return entries.load(self.key(*key), self._decode)

    def count(self: Table[int, *K], entries: Entries, *key: *K) -> int:
        return entries.load(self.key(*key), self._decode) or 0

    def has(self, entries: Entries, *key: *K) -> bool:
        return entries.load(self.key(*key), self._decode) is not None

    def stored(self, store: KeyValue, *key: *K) -> R | None:
        """From a store of the application, which may be damaged where the table is an index: that counts as missing."""
        value = store.get(self.place(*key))
        try:
            return None if value is None else self._decode(value)
        except DECODE_ERRORS:
            if self.index:
                return None  # all of it can be derived again
            raise

    def scan_stored(self, store: KeyValue, *leading: object) -> Iterator[tuple[tuple[*K], R]]:
        """Every entry of a store of the application whose tuple begins with these values, in order."""
        space = len(layout.INDICES if self.index else layout.ENTRIES)
        for key, value in store.scan(self.places(*leading)):
            yield self.unpack(key[space:]), self._decode(value)

    def keys_stored(self, store: KeyValue, *leading: object) -> Iterator[tuple[*K]]:
        """The tuples of these entries alone; what the entries hold is not read."""
        space = len(layout.INDICES if self.index else layout.ENTRIES)
        return (self.unpack(key[space:]) for key, _ in store.scan(self.places(*leading)))

    # -- writing, in a block --

    def put(self, state: Writable, *key: *K, record: R) -> None:
        assert isinstance(record, Struct | bytes | int)
        state.put(self.key(*key), record)

    def delete(self, state: Writable, *key: *K) -> None:
        state.delete(self.key(*key))

    def add(self: Table[int, *K], state: Writable, *key: *K, by: int) -> None:
        packed = self.key(*key)
        total = (state.load(packed, self._decode) or 0) + by
        if total:
            state.put(packed, total)
        else:
            state.delete(packed)

    def scan(self, state: Writable, *leading: object) -> list[tuple[tuple[*K], R]]:
        """Every entry whose tuple begins with these values, in order, with what this block has written."""
        found = ((key, state.load(key, self._decode)) for key in state.keys(self.prefix(*leading)))
        return [(self.unpack(key), record) for key, record in found if record is not None]

    def first(self, state: Writable, limit: int, *leading: object) -> list[tuple[*K]]:
        """The first tuples that begin with these values, with what this block has written."""
        return [self.unpack(key) for key in state.keys(self.prefix(*leading), limit)]

    def first_stored(self, state: Writable, limit: int, *leading: object) -> list[tuple[*K]]:
        """The first tuples that begin with these values, as they were before this block."""
        return [self.unpack(key) for key in state.stored_keys(self.prefix(*leading), limit)]


AnyTable = Table[Any, *tuple[Any, ...]]


def encode_value(value: Struct | bytes | int) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.to_bytes(COUNT_SIZE, "big") if isinstance(value, int) else _encode(value)


def _packer(prefix: bytes, parts: tuple[Part, ...], *, remember: bool) -> Any:  # noqa: ANN401 - Callable[[*K], bytes]
    """Keys are packed for every read and write, so the usual shapes have a function of their own.

    Keys of the state are those of the same few topic partitions, again and again; those of indices are all new.
    """
    packs = [part.pack for part in parts]
    if len(packs) == 1:
        (pack,) = packs
        return lambda value: prefix + pack(value)

    def packed(*key: object) -> bytes:
        return prefix + b"".join([pack(value) for pack, value in zip(packs, key, strict=True)])

    return lru_cache(maxsize=REMEMBERED_KEYS)(packed) if remember else packed


def _decoder(record: type[R]) -> Callable[[bytes], R]:
    if record is bytes:
        return bytes  # type: ignore[return-value]
    if record is int:
        return _number  # type: ignore[return-value]
    return msgspec.msgpack.Decoder(record).decode


_encode = msgspec.msgpack.Encoder().encode
