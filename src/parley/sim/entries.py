"""Entries in memory that can be scanned by prefix: what disks hold, and the observer's own copy of the state."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping


class Entries:
    """A `KeyValue` that can be written."""

    def __init__(self, values: Mapping[bytes, bytes] | None = None) -> None:
        self._values = dict(values or {})
        self._keys = sorted(self._values)

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix` as of now, in key order."""
        return self.scan_from(prefix, prefix)

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan`, but only the entries from the key `start` on."""
        first = last = bisect_left(self._keys, max(prefix, start))
        while last < len(self._keys) and self._keys[last].startswith(prefix):
            last += 1
        return iter([(key, self._values[key]) for key in self._keys[first:last]])

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """In order; a value of None deletes."""
        for key, value in entries:
            if value is None:
                if self._values.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value

    def copy(self) -> Entries:
        other = Entries()
        other._values, other._keys = dict(self._values), list(self._keys)
        return other
