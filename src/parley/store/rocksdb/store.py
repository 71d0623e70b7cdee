"""The store on disk, on RocksDB: atomic writes, synced where an effect says so, and bounded memory.

Writes that need no sync are gathered in memory, where reads see them, and reach RocksDB as one with the next that does:
each call of RocksDB costs as much as many entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from rocksdict import AccessType, Rdict, RdictIter, WriteBatch

from parley.store.errors import StoreError, StoreFailed, StoreInUse
from parley.store.rocksdb.copying import clear_copy, copy_files
from parley.store.rocksdb.files import LOCK, require_place
from parley.store.rocksdb.frozen import FIRST_KEY, Frozen
from parley.store.rocksdb.metrics import PROPERTIES
from parley.store.rocksdb.options import CACHE_BYTES, SCANNING, options_of

# Of writes that wait for the next sync. Handing on a megabyte of small entries at once takes up to 70 ms.
GATHERED_BYTES = 256 * 1024

FORMAT = b"parley store 6"
_FORMAT_KEY = b"\0format"


# RocksDB's errors are texts.
_LOCKED = ("While lock file", "lock hold by current process")

# Stores that must not be closed, and are not collected either, because that closes them.
_abandoned: list[Rdict] = []


def open_store(
    path: Path, *, create: bool, cache_bytes: int = CACHE_BYTES, read_only: bool = False
) -> RocksStore:
    """The store in a directory; with `create`, a new one if the directory is missing or empty.

    With `read_only` no entry changes, and many processes may read at a time, as long as none writes: see `unused`.
    """
    require_place(path, create=create)
    access = AccessType.read_only() if read_only else AccessType.read_write()
    try:
        options = options_of(cache_bytes)
        # Given twice: for the column family of an existing store the library would read them from a file, which has no cache.
        db = Rdict(str(path), options, column_families={"default": options}, access_type=access)
    except Exception as error:
        raise _unopened(path, error) from error
    store = RocksStore(path, db, read_only=read_only)
    try:
        if not read_only:
            clear_copy(path)
        store.require_format(create=create)
    except StoreError:
        store.close()
        raise
    return store


class RocksStore(AbstractContextManager["RocksStore"]):
    """Made by `open_store`. One process at a time has it open."""

    def __init__(self, path: Path, db: Rdict, *, read_only: bool = False) -> None:
        self._path = path
        self._db = db
        self._read_only = read_only
        self._open = True
        self._views: WeakSet[Frozen] = WeakSet()
        self._broken: Exception | None = None
        self._gathered: dict[bytes, bytes | None] = {}
        self._gathered_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        if key in self._gathered:
            return self._gathered[key]
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self.failure(f"cannot read an entry: {error}") from error
        return value

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix` as of now, in key order, from the key `start` on, read as they are asked for."""
        self._hand_on()
        try:
            entries = self._db.iter(SCANNING)
            entries.seek(max(prefix, start, FIRST_KEY))
        except Exception as error:
            raise self.failure(f"cannot be scanned: {error}") from error
        return self._entries(entries, prefix)

    def last_at_or_before(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """The entry under `prefix` with the highest key that is not above `key`, which lies under `prefix` itself."""
        assert key.startswith(prefix), "what is not under the prefix says nothing of it"
        self._hand_on()
        try:
            entries = self._db.iter()
            entries.seek_for_prev(key)
            if not entries.valid():
                entries.status()
                return None
            found: tuple[bytes, bytes] = (entries.key(), entries.value())
        except Exception as error:
            raise self.failure(f"cannot be scanned: {error}") from error
        return found if found[0].startswith(prefix) and found[0] >= FIRST_KEY else None

    def frozen(self) -> Frozen:
        """All that is written now, whatever is written later."""
        self._hand_on()
        try:
            # An iterator reads the store as of its creation. (rocksdict's own snapshots see later writes in raw mode.)
            view = Frozen(self.failure, self._db.iter())
        except Exception as error:
            raise self.failure(f"cannot be read: {error}") from error
        self._views.add(view)
        return view

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], *, sync: bool) -> None:
        """All entries or none; a value of None deletes. `sync`: they and all writes before them are on disk on return."""
        self._require_able()
        added = dict(entries)  # first all of them: what raises in between must not leave a part
        for key, value in added.items():
            assert not key.startswith(b"\0"), "keys that begin with a zero byte are the store's own"
            self._gathered_bytes += len(key) + len(value or b"")
        self._gathered.update(added)
        if sync:
            self.sync()
        elif self._gathered_bytes > GATHERED_BYTES:
            self._hand_on()

    def sync(self) -> None:
        """All writes so far are on disk on return: one wait for many of them."""
        self.hand_on()
        self.sync_log()

    def hand_on(self) -> None:
        """Give RocksDB all gathered entries as one write, without a sync."""
        self._require_able()
        self._hand_on()

    def sync_log(self) -> None:
        """Sync RocksDB's write-ahead log: all that was handed on is on disk on return. Other threads run meanwhile."""
        self._require_able()
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:
            raise self._break(error) from error

    def copy_to(self, path: Path) -> None:
        """Make `path` a store with all that was handed on, while this one goes on; on the same file system, of links."""
        self._require_able()
        if self._read_only:  # a checkpoint of such a one lacks what only the log has
            raise StoreError(
                self._path, "is open for reading only and cannot be copied. Open it for writing."
            )
        copy_files(self._db, self._path, path)

    def metrics(self) -> Iterator[tuple[str, int]]:
        """RocksDB's own numbers, by the names of `METRICS`."""
        for name, metric in PROPERTIES.items():
            try:
                found: int | None = self._db.property_int_value(name)
            except Exception as error:
                raise self.failure(f"cannot be measured: {error}") from error
            if found is not None:
                yield metric.name, found

    def close(self) -> None:
        """Everything written is kept. Frozen views end; a scan that is still going on keeps the directory in use until it
        is dropped.
        """
        if not self._open:
            return
        for view in self._views:
            view.close()
        try:
            self._hand_on()  # nothing is gathered any more in a store that has failed, and its caller knows that
        finally:
            self._close()

    def abandon(self) -> None:
        """Leave everything as it is, as if the process were killed: to be used when the directory is another one now.

        RocksDB opens files by their names, so closing it would write into that one. The process has to end soon.
        """
        for view in self._views:
            view.close()
        self._gathered, self._gathered_bytes = {}, 0
        _abandoned.append(self._db)
        self._open = False

    @property
    def lock(self) -> Path:
        """A file that stays the same for as long as the store is open."""
        return self._path / LOCK

    def _close(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            if self._broken is None:  # otherwise the caller knows it already
                raise self.failure(f"could not be closed: {error}") from error
        finally:
            self._open = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_able(self) -> None:
        if self._broken is not None:
            raise self.failure(f"takes no writes since one failed: {self._broken}")
        if not self._open:
            raise self.failure("takes no writes")

    def _hand_on(self) -> None:
        if not self._gathered:
            return
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in self._gathered.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._gathered, self._gathered_bytes = {}, 0
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._break(error) from error

    def _break(self, error: Exception) -> StoreFailed:
        """Take no more writes, and return the error to raise.

        What the disk kept is unknown, and a second sync may succeed without having written it.
        """
        self._broken = error
        return self.failure(f"could not be written: {error}")

    def _entries(self, entries: RdictIter, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # The upper bound of rocksdict's ReadOptions is not used: iterators outlive the memory it stands in.
        while entries.valid() and (key := entries.key()).startswith(prefix):
            yield key, entries.value()
            entries.next()
        try:
            entries.status()  # an iterator that meets a damaged block just ends
        except Exception as error:
            raise self.failure(f"cannot be scanned: {error}") from error

    def require_format(self, *, create: bool) -> None:
        found = self.get(_FORMAT_KEY)
        if found == FORMAT:
            return
        if found is not None:
            raise StoreError(
                self._path,
                f"has the format {found!r}, and this version of parley reads {FORMAT!r}. Use the version that wrote it.",
            )
        if not create or next(self.scan(b""), None) is not None:
            raise StoreError(
                self._path,
                "was not made by parley, or its creation was interrupted. Check the path; to make a new store, name a "
                "directory that is empty or does not exist.",
            )
        batch = WriteBatch(raw_mode=True)
        batch.put(_FORMAT_KEY, FORMAT)
        self._write(batch)
        self.sync_log()

    def failure(self, what: str) -> StoreFailed:
        if not self._open:
            return StoreFailed(self._path, "is closed.")
        return StoreFailed(
            self._path,
            f"{what}. Stop the broker, check the disk and its free space, then start again; if the store is damaged, "
            f"`parley node recover` makes a new one.",
        )


def _unopened(path: Path, error: Exception) -> StoreError:
    if any(sign in str(error) for sign in _LOCKED):
        return StoreInUse(path)
    return StoreFailed(
        path,
        f"cannot be opened: {error}. Check the path and the disk; if the store is damaged, run `parley node recover`.",
    )
