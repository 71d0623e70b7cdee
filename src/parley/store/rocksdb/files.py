"""Files of RocksDB in the directory of a store: which there are, and who may use them."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from parley.store.errors import StoreError, StoreInUse
from parley.store.folders import sync_directory

# The files of RocksDB. Others in the folder, perhaps a safety record or a key, are no part of the store.
STORED = r"CURRENT|IDENTITY|rocksdict-config\.json|(MANIFEST|OPTIONS)-[0-9]{1,20}|[0-9]{1,20}\.(sst|blob|log)"
LOCK = "LOCK"  # made once and never replaced, unlike CURRENT
_BEGINNING = "CURRENT"  # the file by which RocksDB finds everything else


def holds_store(path: Path) -> bool:
    """Whether there is a store in this directory, perhaps a damaged one."""
    return (path / _BEGINNING).exists()


def copy_unused(path: Path, target: Path) -> None:
    """Make `target`, an empty directory, a copy of a store that no process has open. Raises `StoreInUse`, `OSError`."""
    with unused(path):
        for file in path.iterdir():
            if re.fullmatch(STORED, file.name) is not None:
                _take(file, target / file.name)


def _take(file: Path, target: Path) -> None:
    """Link a table, which never changes, where the disk allows that; copy other files."""
    if file.suffix in (".sst", ".blob"):
        with suppress(OSError):  # another file system, or one without links
            target.hardlink_to(file)
            return
    shutil.copyfile(file, target)


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """A context in which no process can write to a store: it holds the lock that RocksDB itself would take."""
    try:
        file = os.open(path / LOCK, os.O_RDWR)
    except OSError:
        yield  # there is nothing to lock, or it cannot be written to at all
        return
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreInUse(path) from error
        yield
    finally:
        os.close(file)


def require_place(path: Path, *, create: bool) -> None:
    """Raises `StoreError` if a store must not be opened or made here: RocksDB would fill any directory without being asked."""
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
    if _BEGINNING in files:
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
