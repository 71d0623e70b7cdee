"""The replicated state during one block: typed records, read once, written back once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar, TypeVarTuple

from msgspec import Struct

from parley.application.tables import Table, encode_value
from parley.ledger.layout import ENTRIES
from parley.store.interface import KeyValue

R = TypeVar("R")
T = TypeVar("T")
K = TypeVarTuple("K")

_Value = Struct | bytes | int


class State:
    """A write-back cache over the store; it lives for one block, whose size bounds it.

    Transitions check everything before they write anything, so a refused operation leaves nothing to undo.
    """

    __slots__ = ("_dirty", "_store", "_values")

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._values: dict[bytes, _Value | None] = {}
        self._dirty: set[bytes] = set()

    def load(self, key: bytes, decode: Callable[[bytes], T]) -> T | None:
        if key in self._values:
            return self._values[key]  # type: ignore[return-value]  # a key has records of one kind
        data = self._store.get(ENTRIES + key)
        found = None if data is None else decode(data)
        self._values[key] = found  # type: ignore[assignment]
        return found

    def read(self, table: Table[R, *K], *key: *K) -> R | None:
        return table.get(self, *key)

    def put(self, key: bytes, value: _Value) -> None:
        self._values[key] = value
        self._dirty.add(key)

    def delete(self, key: bytes) -> None:
        self._values[key] = None
        self._dirty.add(key)

    def keys(self, prefix: bytes, limit: int | None = None) -> list[bytes]:
        """The first keys under `prefix`, in their order, with what this block has written."""
        written = {key for key in self._dirty if key.startswith(prefix)}
        stored = (key[len(ENTRIES) :] for key, _ in self._store.scan(ENTRIES + prefix))
        kept = set(islice((key for key in stored if key not in written), limit))
        kept.update(key for key in written if self._values[key] is not None)
        return sorted(kept)[:limit]

    def stored_keys(self, prefix: bytes, limit: int) -> list[bytes]:
        """The first keys under `prefix` as they were before this block."""
        return [key[len(ENTRIES) :] for key, _ in islice(self._store.scan(ENTRIES + prefix), limit)]

    def written(self) -> Iterator[tuple[bytes, bool]]:
        """The keys that this block has written or deleted, in no order, and whether each has an entry now."""
        return ((key, self._values[key] is not None) for key in self._dirty)

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """What to write, in key order; None deletes."""
        for key in sorted(self._dirty):
            value = self._values[key]
            yield key, None if value is None else encode_value(value)
