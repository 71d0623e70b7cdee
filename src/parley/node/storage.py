"""A broker's disk: the store and the safety record, which are made together once and never without each other (P10)."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from pathlib import Path

from parley.application.application import Application, VersionError
from parley.applications import ApplicationError, application_of
from parley.consensus.record import SafetyState, recover_record, repairs
from parley.ledger.recent import RecentStates
from parley.ledger.safety_file import SafetyFile
from parley.mempool import pool
from parley.node import rights
from parley.node.config import Config, ConfigError, path_of
from parley.node.placement import DisplacedError, Placement
from parley.replica.beginning import ReplicaConfig, provision
from parley.replica.chain import Chain, Unusable
from parley.replica.ports import Found
from parley.store.disk import open_store
from parley.store.folders import sync_directory
from parley.store.interface import Store

MARK = "provisioned"


class StorageError(Exception):
    """The broker's disk is not in a state from which one may start, or which one may make anew."""


class Storage:
    """What a running broker has open; `record` is what it has signed so far, `found` the damage that was met and mended."""

    def __init__(
        self,
        store: Store,
        safety: SafetyFile,
        record: tuple[int, SafetyState],
        placement: Placement,
        found: tuple[Found, ...] = (),
    ) -> None:
        self.store = store
        self.safety = safety
        self.record = record
        self.found = found
        self._placement = placement
        self._displaced = False
        self.recent = RecentStates(store, _height(store))

    def require_in_place(self) -> None:
        """Raise `DisplacedError` if the store or the record is no longer where it was opened.

        What was synced would then not be found under its name.
        """
        try:
            self._placement.require()
        except DisplacedError:
            self._displaced = True
            raise

    def close(self) -> None:
        """Raises `DisplacedError` if that was not known yet: then nothing more is written."""
        known = self._displaced
        try:
            if not known:
                self.require_in_place()
        finally:
            self.safety.close()
            if self._displaced:
                self.store.abandon()
            else:
                self.store.close()


def _height(store: Store) -> int:
    """Of the last executed block. If that is damaged no block is executed before a new life has begun."""
    try:
        return Chain(store).head().height
    except Unusable:
        return 0


def replica_config(config: Config) -> ReplicaConfig:
    """What the genesis file fixes for all members of the shard, and this broker's place among them."""
    genesis = config.genesis
    return ReplicaConfig(
        instance=config.committee.instance,
        index=config.index,
        depth=genesis.depth,
        view_timeout=genesis.timeouts.view,
        longest_timeout=genesis.timeouts.longest_view,
        heartbeat=genesis.timeouts.heartbeat,
        pace=min(config.ordering.block_interval_ms, genesis.timeouts.view // 4),  # no pause is to cost a view
        genesis_time=genesis.start_time,
        leaders=genesis.leaders,
        limits=pool.Limits(block_bytes=genesis.limits.block_bytes),
    )


def network_application(config: Config) -> Application:
    """The application of the broker's network. Raises `ConfigError` if this program cannot run it."""
    try:
        application = application_of(config.genesis)
        application.require_version(config.genesis)
    except (ApplicationError, VersionError) as error:
        raise ConfigError(config.path, "genesis", str(error)) from None
    return application


def provision_storage(config: Config) -> None:
    """Make the disk of a broker that has never run. Raises `StorageError` if there is a trace of an earlier life."""
    data, safety = holds_something(config.data), config.safety.exists()
    if (data or safety) and served_another(_mark(config), config.genesis.chain):
        raise StorageError(
            f"Broker {config.broker.name} has in {config.data} and {config.safety} what it kept in another network. If that one "
            f"was made by mistake, stop the broker, move both away, and run this again."
        )
    if data and safety:
        raise StorageError(
            f"Broker {config.broker.name} has its data already, in {config.data}. Just start it."
        )
    if data or safety:
        raise StorageError(_halved(config, missing=config.safety if data else config.data))
    if _mark(config).exists() and not served_another(_mark(config), config.genesis.chain):
        raise StorageError(
            f"Broker {config.broker.name} had its storage made before, and it is gone from {config.data} and {config.safety}. "
            f"With an empty one it could sign again what it has signed, so none is made. Find the old disk; if it is lost, run "
            f"`parley node recover` (here: {recovery_command(config)}). Only if the broker was never started "
            f"in this network, remove {_mark(config)}."
        )
    records, genesis = provision(
        replica_config(config), network_application(config).mount(config.genesis, config.shard).machine
    )
    with open_store(config.data, create=True) as store:
        store.write(genesis.entries, sync=True)
    mark_provisioned(config)
    SafetyFile.create(config.safety, records)  # last: without it nothing starts


def open_storage(config: Config) -> Storage:
    """Open both, or neither. Raises `StorageError`, or the errors of the store and of the safety file."""
    data, safety = holds_something(config.data), config.safety.exists()
    if not data and not safety:
        raise StorageError(
            f"Broker {config.broker.name} has no data in {config.data}. `parley genesis combine` makes the storage of a "
            f"new broker when it writes the genesis file, and `parley up` that of a local network; if this broker never ran, "
            f"move the genesis file away and combine again. If it ran before, its disk is not where the configuration says, "
            f"or it is lost: then run `parley node recover` (here: {recovery_command(config)})."
        )
    if not data or not safety:
        raise StorageError(_halved(config, missing=config.safety if data else config.data))
    if why := _objection(config):
        raise StorageError(f"{why}.")
    with ExitStack() as closing:
        record_file = closing.enter_context(SafetyFile.open(config.safety))
        record, found = _read_record(record_file, config.safety)
        _require_same_network(config, record[1])
        store = open_store(config.data, create=False, cache_bytes=config.storage.cache_bytes)
        placement = _placement(config, record_file, closing.enter_context(store))
        storage = Storage(store, record_file, record, placement, found)
        closing.pop_all()
        return storage


def _objection(config: Config) -> str:
    try:
        return rights.objection(config)
    except OSError as error:
        return f"{error.filename} cannot be reached: {error.strerror}. Check path and rights"


def _placement(config: Config, record: SafetyFile, store: Store) -> Placement:
    try:
        files = {config.safety: record.stat(), store.lock: store.lock.stat()}
    except OSError as error:
        raise StorageError(f"{store.lock} cannot be reached: {error.strerror}. Start again.") from error
    return Placement(files, recovery_command(config))


def _read_record(file: SafetyFile, path: Path) -> tuple[tuple[int, SafetyState], tuple[Found, ...]]:
    """The safety record, in both copies when this returns, and what was wrong with it before."""
    slots = file.read()
    record = recover_record(slots, str(path))
    found = []
    for repair in repairs(slots):
        file.write(repair.slot, repair.copy, repair.record)
        if repair.damaged:
            what = f"was damaged in copy {repair.copy + 1} of slot {repair.slot + 1}"
            found.append(Found(path.name, what, mended=True))
    return record, tuple(found)


def _require_same_network(config: Config, state: SafetyState) -> None:
    if state.chain != config.genesis.chain:
        raise StorageError(
            f"Broker {config.broker.name} has in {config.safety} the safety record of another network than {config.genesis.network} "
            f"(fingerprint {config.genesis.chain.hex()}). Point {config.path} at the files that belong together; if it ran in "
            f'another network by mistake, docs/deploy.md says under "Combined too early" what to move away.'
        )


def mark_provisioned(config: Config) -> None:
    """Note that this network's storage was made; what the mark says of others stays, and an empty one speaks of all."""
    new = served_another(_mark(config), config.genesis.chain) or not _mark(config).exists()
    with open(_mark(config), "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(f"{config.genesis.chain.hex()}\n" if new else "")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(config.directory)


def served_another(mark: Path, chain: bytes) -> bool:
    """Whether the broker with this mark had storage in other networks, but never in this one."""
    try:
        chains = mark.read_text(errors="replace").split()
    except FileNotFoundError:
        return False
    return bool(chains) and chain.hex() not in chains


def recovery_command(config: Config) -> str:
    """The way back of this very broker, to be copied."""
    folder, name = config.directory, config.broker.name
    shard = f" --shard {config.shard}" if len(config.shards) > 1 else ""
    if config.path.name == "broker.toml" and (folder.parent.name, folder.name) == ("brokers", name):
        return f"parley node recover {name} --dir {shlex.quote(str(folder.parent.parent))}{shard}"
    return f"parley node recover {shlex.quote(str(config.path))}{shard}"


def _mark(config: Config) -> Path:
    """Lies with the keys, not with the data: who restores the former without the latter must not start anew (P10)."""
    return path_of(config.directory / MARK, config.shard)


def holds_something(path: Path) -> bool:
    """Whether there is anything at all, damaged or not."""
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise StorageError(f"{path} cannot be reached: {error.strerror}. Check path and rights.") from error


def _halved(config: Config, missing: Path) -> str:
    found = config.data if missing == config.safety else config.safety
    return (
        f"Broker {config.broker.name} has {found} but not {missing}. The two belong together: without the safety record it "
        f"could sign twice in one view, and without the data it has lost what it promised to keep. So neither is made "
        f"anew for a broker that may have run. Find the missing one on the old disk (never in a backup); if it is lost, run "
        f"`parley node recover` (here: {recovery_command(config)}). Only if this broker was never started, remove "
        f"{found} and {_mark(config)}, move the genesis file away, and let `parley genesis combine` make all three again."
    )
