"""The disk of measurements that are not about disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator


class Memory:
    """A store in memory. Entries that share their first `width` bytes lie together, so that a scan looks only at those."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._kinds: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in entries:
            kind = self._kinds[key[: self._width]]
            if value is None:
                kind.pop(key, None)
            else:
                kind[key] = value

    def get(self, key: bytes) -> bytes | None:
        return self._kinds[key[: self._width]].get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        assert len(prefix) >= self._width, "a shorter prefix spans kinds"
        kind = self._kinds[prefix[: self._width]]
        return ((key, kind[key]) for key in sorted(kind) if key.startswith(prefix))

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in self.scan(prefix) if key >= start)

    def frozen(self) -> Memory:
        copy = Memory(self._width)
        copy._kinds.update({width: dict(kind) for width, kind in self._kinds.items()})
        return copy
