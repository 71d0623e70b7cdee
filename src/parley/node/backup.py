"""Backups of a broker's ledger: made while it runs, and put back into an empty folder.

They hold no key and no safety record: an older record than the newest would let the broker sign twice in one view (P10), so
restoring never brings one back.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import parley
from parley.ledger import layout
from parley.node.admin.client import AdminError, NotListening, copied_store
from parley.node.backup_file import (
    CHUNK,
    FORMAT,
    Manifest,
    Progress,
    StoredFile,
    is_stored,
    nobody,
    pack,
    read_manifest,
    unpack,
)
from parley.node.config import Config
from parley.node.copies import BackupError, copy_of, opened, reading
from parley.node.recovery import Recovered, beside, examine, recover_storage
from parley.node.storage import holds_something
from parley.replica import chain
from parley.replica.chain import Chain
from parley.store.disk import copy_unused, holds_store, open_store
from parley.store.errors import StoreError, StoreInUse
from parley.store.folders import sync_directory
from parley.store.interface import Store

KEPT_FREE = 128 * 1024 * 1024  # on the disk that the backup goes to: a broker may need it (node/room.py)


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    recovered: Recovered


# -- making ---------------------------------------------------------------------------------------------------------


def make_backup(config: Config, path: Path, progress: Progress = nobody) -> Manifest:
    """Write a backup of the broker's store as it is now, whether the broker runs or not. Raises `BackupError`.

    A broker that runs makes a copy of its store, which is read here.
    """
    if path.exists():
        raise BackupError(f"{path} exists already and is not overwritten; choose another name.")
    try:
        with _copied(config) as data:
            with _reading(data) as store:
                head = _head(config, store)
            manifest = _described(config, data, *head)
            _require_room(path, manifest.bytes)
            pack(path, data, manifest, progress)
    except OSError as error:
        raise BackupError(
            f"the backup {path} cannot be made: {error.filename or path}: {error.strerror}."
        ) from error
    return manifest


@contextmanager
def _copied(config: Config) -> Iterator[Path]:
    """A copy of the store, made by the broker itself if it runs."""
    try:
        with copied_store(config.directory, config.shard) as data:
            _require_own(config, data)
            with reading(data):
                yield data
    except NotListening:
        with opened(config.data, config.broker.name) as workshop:
            _copy_closed(config, workshop.data)
            yield workshop.data
    except AdminError as error:
        raise BackupError(str(error)) from error


def _require_own(config: Config, copy: Path) -> None:
    """The folder around a copy is removed in the end, and the one who asks may be root: no other folder must be named."""
    if copy != copy_of(config.data):
        raise BackupError(
            f"{config.broker.name} says that its copy is in {copy}, and not in {copy_of(config.data)}: it runs with other paths "
            f"than {config.path} names, or another program answers for it. Nothing was read there or removed."
        )


def _copy_closed(config: Config, target: Path) -> None:
    """Copy a store that no process has open, and keep it from being opened for these moments."""
    if not holds_store(config.data):
        raise BackupError(f"{config.data} holds no store; check the path.")
    target.mkdir(mode=0o700)
    try:
        copy_unused(config.data, target)
    except StoreInUse as error:
        raise BackupError(
            f"{config.broker.name} has just begun to start and cannot be asked yet, or its store is in use otherwise; try again in "
            f"a moment. {error}"
        ) from error


def _head(config: Config, store: Store) -> tuple[int, bytes]:
    """The last executed block of a store of this network that is whole as far as can be told at a glance."""
    name = config.broker.name
    try:
        if store.get(layout.JOINING) is not None or store.get(layout.BACKFILL) is not None:
            raise BackupError(
                f"{name} is rebuilding its store and has not everything yet (see `parley status`); back it up later, or back up "
                f"another broker."
            )
        found = Chain(store)
        height = found.head().height
        first, last = found.block(0), found.block(height)
    except (StoreError, chain.StoreError) as error:
        raise BackupError(f"the store of {name} cannot be read, so it is no backup: {error}") from error
    if first is None or last is None:
        raise BackupError(
            f"the store of {name} lacks its {'first' if first is None else 'last'} block, so it is damaged; the broker mends it "
            f"while it runs, or run `parley node recover`."
        )
    if (first.header.chain, first.header.shard) != (config.genesis.chain, config.shard):
        raise BackupError(
            f"the store of {name} belongs to another network than {config.path} names, or to another shard than {config.shard}."
        )
    return height, last.id


@contextmanager
def _reading(data: Path) -> Iterator[Store]:
    """A store that is not written to: its tables may be the very files of another process."""
    try:
        store = open_store(data, create=False, read_only=True)
    except StoreError as error:
        raise BackupError(f"the store cannot be read, so it is no backup: {error}") from error
    with store:
        yield store


def _described(config: Config, data: Path, height: int, block: bytes) -> Manifest:
    return Manifest(
        format=FORMAT,
        version=parley.__version__,
        network=config.genesis.network,
        chain=config.genesis.chain.hex(),
        shard=config.shard,
        broker=config.broker.name,
        height=height,
        block=block.hex(),
        time=time.time_ns() // 1_000_000,
        files=tuple(map(_described_file, sorted(filter(is_stored, data.iterdir())))),
    )


def _described_file(path: Path) -> StoredFile:
    """As long as it is now: one that grows is of no use, but has to be what the manifest says."""
    size, sha256 = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        while left := size - file.tell():
            sha256.update(file.read(min(left, CHUNK)))
    return StoredFile(path.name, size, sha256.hexdigest())


def _require_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.absolute().parent).free
    if free < size + KEPT_FREE:
        raise BackupError(
            f"the backup takes {size} bytes and {path.absolute().parent} has {free} free, of which {KEPT_FREE} are left alone; "
            f"choose another disk."
        )


# -- putting back ---------------------------------------------------------------------------------------------------


def check_restorable(config: Config, path: Path) -> tuple[Manifest, bool]:
    """What would be restored, and whether the safety record is lost, too; raises if it cannot or must not be."""
    manifest = read_manifest(path)
    name, chain_id = config.broker.name, config.genesis.chain.hex()
    if manifest.chain != chain_id:
        raise BackupError(
            f"{path} is of another network: {manifest.network}, {manifest.chain}, and not {chain_id}."
        )
    if manifest.shard != config.shard:
        raise BackupError(f"{path} is a backup of shard {manifest.shard}, not of shard {config.shard}.")
    if manifest.broker != name:
        raise BackupError(f"{path} is a backup of {manifest.broker}, not of {name}; use one of its own.")
    if holds_something(config.data):
        raise BackupError(
            f"{config.data} is not empty, and nothing is overwritten. If the store is good, just start the broker; if it is "
            f"damaged, move it away first."
        )
    return manifest, bool(examine(config).record)


def restore_backup(config: Config, path: Path, progress: Progress = nobody) -> Restored:
    """Put the store back, and a record that abstains in place of a lost one. Interrupted, it leaves nothing that could
    start wrongly: without a record no broker starts.
    """
    promised, _ = check_restorable(config, path)
    fresh = beside(config.data, "restoring")
    try:
        _require_room(config.data, promised.bytes)
        fresh.mkdir(mode=0o700)
        manifest = unpack(path, fresh, progress)
        with open_store(fresh, create=False) as store:
            head = _head(config, store)
        if head != (manifest.height, bytes.fromhex(manifest.block)):
            raise BackupError(f"{path} does not hold the block that its manifest names; do not use it.")
        sync_directory(fresh)
        with suppress(FileNotFoundError):
            config.data.rmdir()  # fails unless it is empty
        fresh.rename(config.data)
        sync_directory(config.data.parent)
    except OSError as error:
        raise BackupError(f"{error.filename or config.data} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Restored(manifest, recover_storage(config))
