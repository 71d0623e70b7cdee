"""Writes that are on their way to the store are already visible to the replica that made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parley.replica.ports import KeyValue

__all__ = ["Overlay"]


class Overlay:
    """The store as it will be once the effects of this step are executed; `clear` when they have been."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._written: dict[bytes, bytes | None] = {}

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._written.update(entries)

    def clear(self) -> None:
        self._written.clear()

    def get(self, key: bytes) -> bytes | None:
        return self._written[key] if key in self._written else self._store.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        written = {key: value for key, value in self._written.items() if key.startswith(prefix)}
        found = {**dict(self._store.scan(prefix)), **written}
        return ((key, value) for key in sorted(found) if (value := found[key]) is not None)
