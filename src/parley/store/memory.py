"""A store in memory: where blocks are executed without a disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

PIECE = 512  # keys


class MemoryStore:
    """What a broker's store is without a disk: every write is there at once, and nothing outlives the process."""

    def __init__(self, values: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.reset(values)

    def reset(self, values: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]) -> None:
        self._values = dict(values)
        keys = sorted(self._values)
        # All keys in order, in pieces: so one more moves few others.
        self._pieces = [keys[at : at + PIECE] for at in range(0, len(keys), PIECE)] or [[]]
        self._firsts = [piece[0] for piece in self._pieces[1:]]  # where each piece after the first begins

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix` as of now, in key order, from the key `start` on."""
        begin = max(prefix, start)
        found: list[tuple[bytes, bytes]] = []
        for piece in islice(self._pieces, self._place(begin), None):
            for key in islice(piece, bisect_left(piece, begin), None):
                if not key.startswith(prefix):
                    return iter(found)
                found.append((key, self._values[key]))
        return iter(found)

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], *, sync: bool = True) -> None:  # noqa: ARG002
        """Write entries in their order; a value of None deletes. There is nothing to `sync`."""
        for key, value in entries:
            if value is None:
                if self._values.pop(key, None) is not None:
                    self._remove(key)
            else:
                if key not in self._values:
                    self._add(key)
                self._values[key] = value

    def last_at_or_before(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """The entry under `prefix` with the highest key that is not above `key`, which lies under `prefix` itself."""
        assert key.startswith(prefix), "what is not under the prefix says nothing of it"
        for piece in reversed(self._pieces[: self._place(key) + 1]):
            if at := bisect_right(piece, key):
                found = piece[at - 1]
                return (found, self._values[found]) if found.startswith(prefix) else None
        return None

    def frozen(self) -> MemoryStore:
        """A copy of all that is written now."""
        other = MemoryStore()
        other._values, other._firsts = dict(self._values), list(self._firsts)
        other._pieces = list(map(list, self._pieces))
        return other

    def _place(self, key: bytes) -> int:
        """The index of the piece that the key belongs to."""
        return bisect_right(self._firsts, key)

    def _add(self, key: bytes) -> None:
        place = self._place(key)
        piece = self._pieces[place]
        insort(piece, key)
        if len(piece) > 2 * PIECE:
            self._pieces[place : place + 1] = [piece[:PIECE], piece[PIECE:]]
            self._firsts.insert(place, piece[PIECE])

    def _remove(self, key: bytes) -> None:
        place = self._place(key)
        piece = self._pieces[place]
        del piece[bisect_left(piece, key)]
        if not piece and self._firsts:
            del self._pieces[place], self._firsts[max(place - 1, 0)]
