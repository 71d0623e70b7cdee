"""What is read and written as entries in key order: the interface that all others use, whatever keeps the entries.

Implementations need not inherit from these classes, and a call goes to them directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self


class Lookup(Protocol):
    """Entries by key. A dictionary is one, too."""

    def get(self, key: bytes, /) -> bytes | None: ...


class KeyValue(Lookup, Protocol):
    """A read-only view of entries in key order."""

    def scan(self, prefix: bytes, start: bytes = b"", /) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order; only those from the key `start` on."""


class StoreReader(KeyValue, Protocol):
    """What can be read of a broker's store: all that is written so far."""

    def last_at_or_before(self, prefix: bytes, key: bytes, /) -> tuple[bytes, bytes] | None:
        """The entry under `prefix` with the highest key that is not above `key`, which lies under `prefix` itself."""

    def frozen(self) -> KeyValue:
        """A view of all that is written now, which later writes do not change. It is free when it is dropped."""


class Store(StoreReader, Protocol):
    """A broker's store on disk. Methods raise `StoreFailed` when the disk fails, and writes do ever after.

    All is called from one thread, but `sync_log` and `copy_to` may run in others meanwhile.
    """

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], *, sync: bool) -> None:
        """All entries or none; a value of None deletes. `sync`: they and all writes before them are on disk on return.

        Keys that begin with a zero byte are the store's own.
        """

    def hand_on(self) -> None:
        """Give the store's library what `write` may have gathered, without a sync."""

    def sync_log(self) -> None:
        """All that was handed on is on disk on return. Other threads run meanwhile."""

    def copy_to(self, path: Path) -> None:
        """Make `path`, which must not exist, a store with all that was handed on, while this one goes on.

        It appears whole or not at all; `StoreError` says why not, and this store goes on in any case.
        """

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Numbers to watch, by the names of `METRICS` in `parley.store.disk`; those that are not known now are left out."""

    @property
    def lock(self) -> Path:
        """A file that stays the same for as long as the store is open. It must not be opened."""

    def close(self) -> None:
        """Everything written is kept; frozen views end."""

    def abandon(self) -> None:
        """Leave everything as it is, as if the process were killed. The process has to end soon."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Metric(NamedTuple):
    """A gauge that a store offers, with its name for Prometheus and one sentence about it."""

    name: str
    about: str
