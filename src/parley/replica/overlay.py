"""Writes that are on their way to the store are already visible to the replica that made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter

from parley.replica.ports import LocalStore


class Overlay:
    """The store as it will be once the effects of this step are executed; `clear` when they have been."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._written: dict[bytes, bytes | None] = {}

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._written.update(entries)

    def clear(self) -> None:
        self._written.clear()

    def get(self, key: bytes) -> bytes | None:
        return self._written[key] if key in self._written else self._store.get(key)

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan`, but only the entries from the key `start` on, read as they are asked for."""
        new = {key: value for key, value in self._written.items() if key >= start and key.startswith(prefix)}
        stored = (entry for entry in self._store.scan_from(prefix, start) if entry[0] not in new)
        both = merge(sorted(new.items()), stored, key=itemgetter(0))
        return ((key, value) for key, value in both if value is not None)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.scan_from(prefix, prefix)
