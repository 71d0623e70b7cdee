"""The replica's local store on disk, on RocksDB: atomic writes, synced where an effect says so, and bounded memory.

Writes that need no sync are gathered in memory, where reads see them, and reach RocksDB as one with the next that does:
each call of RocksDB costs as much as many entries.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from parley.ledger.safety_file import sync_directory

CACHE_BYTES = (
    64 * 1024 * 1024
)  # of memory for all that RocksDB keeps there: blocks, indices, filters, new entries
WRITE_BUFFER_BYTES = 16 * 1024 * 1024  # of new entries, at most a quarter of the cache
WRITE_BUFFERS = 3
# Compactions (decision 24): of how many new files, into a first level of this size, whose files have this size, and those of
# each level below it so many times as much.
COMPACTED_FILES = 6
LEVEL_BYTES = 32 * 1024 * 1024
FILE_BYTES, FILE_GROWTH = 4 * 1024 * 1024, 4
MOVED_BLOBS = 0.1  # of the files with large values, the oldest: what is not erased of them moves to new files
METADATA_BYTES = 4 * 1024  # of a piece of a file's index or filter
BLOB_BYTES = (
    2 * 1024
)  # values from this size on lie apart: sorting them again and again would cost more than they do
OPEN_FILES = 512
# Of writes that wait for the next sync. Handing on a megabyte of small entries at once takes up to 70 ms.
GATHERED_BYTES = 256 * 1024
COPIED_BYTES = 1024 * 1024  # at a time, of a file that cannot be linked
LOG_BYTES, LOG_FILES = 4 * 1024 * 1024, 4  # RocksDB's own diary

FORMAT = b"parley store 5"
_FORMAT_KEY = b"\0format"
_FIRST_KEY = b"\1"  # keys that begin with a zero byte are the store's own
_LOCK = "LOCK"  # in the directory of an open store as long as that is the one that was opened
_COPYING = (
    "copying"  # in the directory of a store: where a copy of it is made before it goes to its own place
)
_LOCKED = ("While lock file", "lock hold by current process")  # RocksDB's errors are texts


# Stores that must not be closed, and are not collected either, because that closes them.
_abandoned: list[Rdict] = []


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do about `path`."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"The store in {path} {what}")
        self.path = path


class StoreInUse(StoreError):  # noqa: N818 - the condition, not an error of the caller
    """Another process has the store open."""


class StoreFailed(StoreError):  # noqa: N818 - what happened to the disk, not an error of the caller
    """The disk refused or returned something wrong. After a failed write the store takes no other."""


class Store(AbstractContextManager["Store"]):
    """Made by `Store.open`. One process at a time has it open."""

    def __init__(self, path: Path, db: Rdict, *, read_only: bool = False) -> None:
        self._path = path
        self._db = db
        self._read_only = read_only
        self._open = True
        self._views: WeakSet[Frozen] = WeakSet()
        self._broken: Exception | None = None
        self._gathered: dict[bytes, bytes | None] = {}
        self._gathered_bytes = 0

    @classmethod
    def open(
        cls, path: Path, *, create: bool, cache_bytes: int = CACHE_BYTES, read_only: bool = False
    ) -> Store:
        """The store in a directory; with `create`, a new one if the directory is missing or empty.

        With `read_only` no entry changes, and many may read at a time, as long as nobody writes: see `unused`.
        """
        _require_place(path, create=create)
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            options = _options(cache_bytes)
            # Said twice: of a store that exists, the library would take those of its entries from a file, which names no cache.
            db = Rdict(str(path), options, column_families={"default": options}, access_type=access)
        except Exception as error:
            raise _unopened(path, error) from error
        store = cls(path, db, read_only=read_only)
        try:
            if not read_only:
                shutil.rmtree(path / _COPYING, ignore_errors=True)  # of a process that was killed meanwhile
            store._require_format(create=create)
        except StoreError:
            store.close()
            raise
        return store

    def get(self, key: bytes) -> bytes | None:
        if key in self._gathered:
            return self._gathered[key]
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self.failure(f"cannot read an entry: {error}") from error
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix` as of now, in key order, read as they are asked for."""
        return self.scan_from(prefix, prefix)

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan`, but only the entries from the key `start` on."""
        self._hand_on()
        try:
            entries = self._db.iter(_SCANNING)
            entries.seek(max(prefix, start, _FIRST_KEY))
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
        return found if found[0].startswith(prefix) and found[0] >= _FIRST_KEY else None

    def frozen(self) -> Frozen:
        """All that is written now, whatever is written later."""
        self._hand_on()
        try:
            # An iterator reads the store as of its creation. (rocksdict's own snapshots see later writes in raw mode.)
            view = Frozen(self, self._db.iter())
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
        """Make `path`, which must not exist, a store with all that was handed on, while this one goes on. Raises `StoreError`.

        It may run in a thread of its own and appears whole or not at all. On the same file system its tables are links.
        """
        self._require_able()
        if self._read_only:  # a checkpoint of such a one lacks what only the log has
            raise StoreError(
                self._path, "is open for reading only and cannot be copied. Open it for writing."
            )
        if os.path.lexists(path):
            raise StoreError(
                self._path, f"is not copied to {path}: that is there already. Choose another name."
            )
        copying = self._path / _COPYING  # here links are possible, and only the store's owner looks
        try:
            copying.mkdir(mode=0o700)
        except FileExistsError:
            raise StoreError(self._path, "is being copied already. Let that end first.") from None
        except OSError as error:
            raise self._not_copied(path, error) from error
        try:
            self._db.flush()  # or the checkpoint does it, and lets no other thread run meanwhile
            Checkpoint(self._db).create_checkpoint(str(copying / _COPYING))
            _move(copying / _COPYING, path)
        except Exception as error:  # those of RocksDB have no class of their own
            raise self._not_copied(path, error) from error
        finally:
            shutil.rmtree(copying, ignore_errors=True)

    def _not_copied(self, path: Path, error: Exception) -> StoreError:
        return StoreError(
            self._path,
            f"cannot be copied to {path}: {error}. Check that place, its rights and its free space.",
        )

    def measured(self, name: str) -> int | None:
        """One of RocksDB's own numbers, by the name that it has there; None if it does not tell."""
        try:
            found: int | None = self._db.property_int_value(name)
        except Exception as error:
            raise self.failure(f"cannot be measured: {error}") from error
        return found

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
        """The file that is there, one and the same, for as long as the store is open."""
        return self._path / _LOCK

    def _close(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            if self._broken is None:  # or the caller has been told already
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

    def _require_format(self, *, create: bool) -> None:
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


class Frozen:
    """A view of one moment. It keeps the space of what is overwritten since, so it is to be dropped when it has served."""

    def __init__(self, store: Store, entries: RdictIter) -> None:
        self._store = store
        self._entries: RdictIter | None = entries

    def close(self) -> None:
        """The space is free again, and nothing can be read any more."""
        self._entries = None

    def get(self, key: bytes) -> bytes | None:
        found = self._at_or_after(key)
        return None if found is None or found[0] != key else found[1]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order; other reads may come between two entries."""
        return self.scan_from(prefix, prefix)

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan`, but only the entries from the key `start` on."""
        found = self._at_or_after(max(prefix, start, _FIRST_KEY))
        while found is not None and found[0].startswith(prefix):
            yield found
            found = self._at_or_after(found[0] + b"\0")

    def _at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        entries = self._entries
        if entries is None:
            raise self._store.failure("cannot be read: the view is closed")
        try:
            entries.seek(key)
            if entries.valid():
                return entries.key(), entries.value()
            entries.status()  # an iterator that meets a damaged block just ends
        except Exception as error:
            raise self._store.failure(f"cannot be read: {error}") from error
        return None


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Keep everybody from writing to a store as long as this lasts, by the lock that RocksDB itself would take."""
    try:
        file = os.open(path / _LOCK, os.O_RDWR)
    except OSError:
        yield  # there is nothing to lock, or it cannot be written to at all
        return
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _in_use(path) from error
        yield
    finally:
        os.close(file)


def _require_place(path: Path, *, create: bool) -> None:
    """RocksDB would make a directory or fill a foreign one without being asked."""
    try:
        files = {file.name for file in path.iterdir()}
    except FileNotFoundError:
        if not create:
            raise StoreError(
                path, "does not exist. Check the path, or create the broker's data first."
            ) from None
        _make(path)
        return
    except OSError as error:
        raise StoreError(path, f"cannot be reached: {error.strerror}.") from error
    if "CURRENT" in files:  # the file by which RocksDB finds everything else
        return
    if files or not create:
        raise StoreError(
            path,
            "is not there: the directory holds no store. Check the path; to make a new store, name a directory that is "
            "empty or does not exist.",
        )


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
        sync_directory(path.parent)
    except OSError as error:
        raise StoreError(path, f"cannot be made: {error.strerror}.") from error


def _move(copy: Path, path: Path) -> None:
    """Bring a folder of files to its place, perhaps on another file system; it is on disk on return."""
    copy.chmod(0o700)
    try:
        copy.rename(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_across(copy, path)
    sync_directory(path.parent)


def _move_across(copy: Path, path: Path) -> None:
    partial = path.with_name(f".{path.name}.{_COPYING}")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed meanwhile
    try:
        partial.mkdir(mode=0o700)
        for file in copy.iterdir():
            with file.open("rb") as source, (partial / file.name).open("xb") as target:
                shutil.copyfileobj(source, target, COPIED_BYTES)
                target.flush()
                os.fsync(target.fileno())
        sync_directory(partial)
        partial.rename(path)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _unopened(path: Path, error: Exception) -> StoreError:
    if any(sign in str(error) for sign in _LOCKED):
        return _in_use(path)
    return StoreFailed(
        path,
        f"cannot be opened: {error}. Check the path and the disk; if the store is damaged, run `parley node recover`.",
    )


def _in_use(path: Path) -> StoreInUse:
    return StoreInUse(
        path, "is in use by another process. Stop that one first: a store has one user at a time."
    )


def _options(cache_bytes: int) -> Options:
    table = BlockBasedOptions()
    cache = Cache(cache_bytes)
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)  # or they grow with the data, outside the cache
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    # Index and filter of a file in pieces: as one block, they soon find no place in a shard of the cache any more, and then
    # every read loads and checks a megabyte.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(METADATA_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)  # the default would pickle
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(min(WRITE_BUFFER_BYTES, cache_bytes // 4))
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_write_buffer_manager(
        WriteBufferManager.new_write_buffer_manager_with_cache(cache_bytes // 2, False, cache)
    )
    options.set_level_zero_file_num_compaction_trigger(COMPACTED_FILES)
    options.set_max_bytes_for_level_base(LEVEL_BYTES)
    options.set_target_file_size_base(FILE_BYTES)
    options.set_target_file_size_multiplier(FILE_GROWTH)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(BLOB_BYTES)
    options.set_enable_blob_gc(True)  # or what retention erases would stay on disk
    options.set_blob_gc_age_cutoff(MOVED_BLOBS)
    options.set_max_open_files(OPEN_FILES)
    options.set_max_log_file_size(LOG_BYTES)
    options.set_keep_log_file_num(LOG_FILES)
    # A crash may tear what was not synced; what comes before the tear is the state to go on from.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    return options


def _read_options() -> ReadOptions:
    """For scans, which look at much and seldom twice: they must not drive out of the cache what is asked for often."""
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg]  # the library's stub leaves the argument out
    return options


_SCANNING = _read_options()
