"""A view of one moment of a RocksDB store: an iterator reads the store as of its creation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rocksdict import RdictIter

from parley.store.errors import StoreFailed

FIRST_KEY = b"\1"  # keys that begin with a zero byte are the store's own


class Frozen:
    """A view of one moment. It keeps the space of what is overwritten since, so it is to be dropped when it has served."""

    def __init__(self, failure: Callable[[str], StoreFailed], entries: RdictIter) -> None:
        self._failure = failure
        self._entries: RdictIter | None = entries

    def close(self) -> None:
        """Free the space that the view keeps. Nothing can be read from it any more."""
        self._entries = None

    def get(self, key: bytes) -> bytes | None:
        found = self._at_or_after(key)
        return None if found is None or found[0] != key else found[1]

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order, from the key `start` on; other reads may come between two entries."""
        found = self._at_or_after(max(prefix, start, FIRST_KEY))
        while found is not None and found[0].startswith(prefix):
            yield found
            found = self._at_or_after(found[0] + b"\0")

    def _at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        entries = self._entries
        if entries is None:
            raise self._failure("cannot be read: the view is closed")
        try:
            entries.seek(key)
            if entries.valid():
                return entries.key(), entries.value()
            entries.status()  # an iterator that meets a damaged block just ends
        except Exception as error:
            raise self._failure(f"cannot be read: {error}") from error
        return None
