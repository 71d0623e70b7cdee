"""A broker's disk: the store and the safety record, which are made together once and never without each other (P10)."""

from __future__ import annotations

from pathlib import Path

from parley.consensus.record import SafetyState, recover_record
from parley.consensus.types import Instance
from parley.ledger.application import Application
from parley.ledger.recent import RecentStates
from parley.ledger.safety_file import SafetyFile
from parley.ledger.store import Store
from parley.mempool import pool
from parley.node.config import Config
from parley.pubsub.application import PubSub
from parley.replica.chain import Chain
from parley.replica.replica import ReplicaConfig, provision

__all__ = ["Storage", "StorageError", "open_storage", "provision_storage", "replica_config"]


MARK = "provisioned"


class StorageError(Exception):
    """The broker's disk is not in a state from which one may start, or which one may make anew."""


class Storage:
    """What a running broker has open; `record` is what it has signed so far."""

    def __init__(self, store: Store, safety: SafetyFile, record: tuple[int, SafetyState]) -> None:
        self.store = store
        self.safety = safety
        self.record = record
        self.recent = RecentStates(store, Chain(store).head().height)

    def close(self) -> None:
        self.safety.close()
        self.store.close()


def replica_config(config: Config) -> ReplicaConfig:
    """What the genesis file fixes for all brokers, and this broker's place among them."""
    genesis = config.genesis
    return ReplicaConfig(
        instance=Instance(genesis.chain, 0, 0, len(genesis.brokers)),
        index=config.index,
        depth=genesis.depth,
        view_timeout=genesis.timeouts.view,
        longest_timeout=genesis.timeouts.longest_view,
        heartbeat=genesis.timeouts.heartbeat,
        genesis_time=genesis.start_time,
        leaders=genesis.leaders,
        limits=pool.Limits(block_bytes=genesis.limits.block_bytes),
    )


def provision_storage(config: Config, application: Application | None = None) -> None:
    """Make the disk of a broker that has never run. Raises `StorageError` if there is a trace of an earlier life."""
    data, safety = _holds_something(config.data), config.safety.exists()
    if data and safety:
        raise StorageError(
            f"Broker {config.broker.name} has its data already, in {config.data}. Just start it."
        )
    if data or safety:
        raise StorageError(_halved(config, missing=config.safety if data else config.data))
    if _mark(config).exists():
        raise StorageError(
            f"Broker {config.broker.name} had its storage made before, and it is gone from {config.data} and {config.safety}. "
            f"With an empty one it could sign again what it has signed, so none is made. Find the old disk. If it is lost, this "
            f"broker's key must not be used any more; only if the broker was never started, remove {_mark(config)}."
        )
    records, genesis = provision(replica_config(config), application or PubSub(config.genesis))
    with Store.open(config.data, create=True) as store:
        store.write(genesis.entries, sync=True)
    _mark(config).touch(0o600)
    SafetyFile.create(config.safety, records)  # last: without it nothing starts


def open_storage(config: Config) -> Storage:
    """Open both, or neither. Raises `StorageError`, or the errors of the store and of the safety file."""
    data, safety = _holds_something(config.data), config.safety.exists()
    if not data and not safety:
        raise StorageError(
            f"Broker {config.broker.name} has no data in {config.data}. `parley genesis combine` makes the storage of a "
            f"new broker, and `parley up` that of a local network; if this broker ran before, its disk is not where the "
            f"configuration says."
        )
    if not data or not safety:
        raise StorageError(_halved(config, missing=config.safety if data else config.data))
    record_file = SafetyFile.open(config.safety)
    try:
        record = recover_record(record_file.read(), str(config.safety))
        store = Store.open(config.data, create=False, cache_bytes=config.storage.cache_bytes)
    except BaseException:
        record_file.close()
        raise
    try:
        return Storage(store, record_file, record)
    except BaseException:
        record_file.close()
        store.close()
        raise


def _mark(config: Config) -> Path:
    """Lies with the keys, not with the data: who restores the former without the latter must not start anew (P10)."""
    return config.directory / MARK


def _holds_something(path: Path) -> bool:
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise StorageError(f"{path} cannot be reached: {error.strerror}. Check path and rights.") from error


def _halved(config: Config, missing: Path) -> str:
    found = config.data if missing == config.safety else config.safety
    return (
        f"Broker {config.broker.name} has {found} but not {missing}. The two belong together: without the safety record it "
        f"could sign twice in one view, and without the data it has lost what it promised to keep. So neither is made "
        f"anew for a broker that may have run. Find the missing one on the old disk (never in a backup); only if this "
        f"broker was never started, remove {found} and {_mark(config)}, and let `parley genesis combine` make both again."
    )
