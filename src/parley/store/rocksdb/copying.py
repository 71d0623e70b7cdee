"""Copies of an open store, by RocksDB's checkpoints.

While a checkpoint is made no other thread runs, so it must be short: it is always made of links, in a folder of the
store's own, and goes to its place from there; and what RocksDB has in memory is written before it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rocksdict import Checkpoint, Rdict

from parley.store.errors import StoreError
from parley.store.folders import move_folder

_COPYING = "copying"  # in the directory of the store, for its owner only


def copy_files(db: Rdict, store: Path, path: Path) -> None:
    """Make `path` a copy of the store, whole or not at all. Raises `StoreError`."""
    if os.path.lexists(path):
        raise StoreError(store, f"is not copied to {path}: that is there already. Choose another name.")
    copying = store / _COPYING
    try:
        copying.mkdir(mode=0o700)
    except FileExistsError:
        raise StoreError(store, "is being copied already. Let that end first.") from None
    except OSError as error:
        raise _not_copied(store, path, error) from error
    try:
        db.flush()
        Checkpoint(db).create_checkpoint(str(copying / _COPYING))
        move_folder(copying / _COPYING, path)
    except Exception as error:  # those of RocksDB have no class of their own
        raise _not_copied(store, path, error) from error
    finally:
        clear_copy(store)


def clear_copy(store: Path) -> None:
    """Remove what is left of a copy, perhaps by a process that was killed meanwhile."""
    shutil.rmtree(store / _COPYING, ignore_errors=True)


def _not_copied(store: Path, path: Path, error: Exception) -> StoreError:
    return StoreError(
        store, f"cannot be copied to {path}: {error}. Check that place, its rights and its free space."
    )
