"""The replicated state during one block: typed records, read once, written back once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from parley.ledger.application import KeyValue
from parley.model.records import decode_record, encode_record

__all__ = ["ENTRIES", "NODES", "State"]

T = TypeVar("T", bound=Struct)

ENTRIES = b"k"  # what the state map is over
NODES = b"n"  # the map's own nodes

_COUNT_SIZE = 8


class State:
    """A write-back cache over the store; it lives for one block, whose size bounds it.

    Transitions check everything before they write anything, so a refused operation leaves nothing to undo.
    """

    __slots__ = ("_dirty", "_records", "_store")

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._records: dict[bytes, Struct | bytes | None] = {}
        self._dirty: set[bytes] = set()

    def get(self, kind: type[T], key: bytes) -> T | None:
        if key in self._records:
            record = self._records[key]
            assert record is None or isinstance(record, kind)
            return record
        data = self._store.get(ENTRIES + key)
        found = self._records[key] = None if data is None else decode_record(kind, data)
        return found

    def get_bytes(self, key: bytes) -> bytes | None:
        if key in self._records:
            value = self._records[key]
            assert value is None or isinstance(value, bytes)
            return value
        found = self._records[key] = self._store.get(ENTRIES + key)
        return found

    def put(self, key: bytes, record: Struct | bytes) -> None:
        self._records[key] = record
        self._dirty.add(key)

    def delete(self, key: bytes) -> None:
        self._records[key] = None
        self._dirty.add(key)

    def count(self, key: bytes) -> int:
        """A number under a key of its own; there is no entry for zero."""
        return int.from_bytes(self.get_bytes(key) or b"", "big")

    def add(self, key: bytes, by: int) -> None:
        total = self.count(key) + by
        if total:
            self.put(key, total.to_bytes(_COUNT_SIZE, "big"))
        else:
            self.delete(key)

    def scan(self, kind: type[T], prefix: bytes) -> list[tuple[bytes, T]]:
        """Every record under `prefix`, in key order, with what this block has written."""
        stored = {key[len(ENTRIES) :] for key, _ in self._store.scan(ENTRIES + prefix)}
        written = {key for key in self._dirty if key.startswith(prefix)}
        records = ((key, self.get(kind, key)) for key in sorted(stored | written))
        return [(key, record) for key, record in records if record is not None]

    def keys(self, prefix: bytes, limit: int) -> list[bytes]:
        """The first keys under `prefix`, in their order, with what this block has written."""
        written = {key for key in self._dirty if key.startswith(prefix)}
        stored = (key[len(ENTRIES) :] for key, _ in self._store.scan(ENTRIES + prefix))
        kept = set(islice((key for key in stored if key not in written), limit))
        kept.update(key for key in written if self._records[key] is not None)
        return sorted(kept)[:limit]

    def stored_keys(self, prefix: bytes, limit: int) -> list[bytes]:
        """The first keys under `prefix` as they were before this block."""
        return [key[len(ENTRIES) :] for key, _ in islice(self._store.scan(ENTRIES + prefix), limit)]

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """What to write, in key order; None deletes."""
        for key in sorted(self._dirty):
            record = self._records[key]
            yield key, encode_record(record) if isinstance(record, Struct) else record
