"""A broker's disk after a loss: what is still good stays, what is not is moved aside, never deleted, and made anew (P10).

A new store starts at the genesis block and is filled by the other brokers. A new safety record abstains: the broker signs
nothing until it is known that nothing of what it may have signed can be contradicted (replica/recovery.py).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from parley.consensus.errors import SafetyRecordError
from parley.consensus.record import recover_record
from parley.ledger import layout
from parley.ledger.safety_file import SafetyFile, SafetyFileDamaged
from parley.node.config import Config
from parley.node.processes import LocalBroker
from parley.node.storage import (
    StorageError,
    holds_something,
    mark_provisioned,
    network_application,
    replica_config,
)
from parley.replica import chain
from parley.replica.beginning import provision
from parley.replica.chain import Chain
from parley.replica.recovery import Recovery
from parley.store.disk import holds_store, open_store
from parley.store.errors import StoreFailed
from parley.store.folders import sync_directory
from parley.store.interface import Store

Slots = list[list[bytes]]  # of a safety record, in their copies


@dataclass(frozen=True)
class Loss:
    """Why a part of the disk has to be made anew; empty: it is good."""

    store: str
    record: str
    abstains: bool  # a good record that stands in for a lost one already

    def __bool__(self) -> bool:
        return bool(self.store or self.record)


@dataclass(frozen=True)
class Recovered:
    """What was made anew, and where what was there before lies now."""

    store: bool
    record: bool
    moved: tuple[Path, ...]


def examine(config: Config, *, stale_record: bool = False) -> Loss:
    """Look at both parts, under their locks. `stale_record`: the record is known not to be the newest one.

    Raises `StorageError`, or an error of the store or the safety file, if it cannot be told, or cannot be helped.
    """
    with _held_record(config) as held:
        return _examined(config, held, stale_record=stale_record)


def recover_storage(config: Config, *, stale_record: bool = False) -> Recovered:
    """Make again what is lost. If it is interrupted, the next run finds what is still missing."""
    # From the look to the last file no broker starts, and no other recovery goes on: either would lose what it works on.
    with _alone(config), _held_record(config) as held:
        loss = _examined(config, held, stale_record=stale_record)
        if not loss:
            return Recovered(store=False, record=False, moved=())
        try:
            return _recovered(config, loss)
        except OSError as error:
            raise StorageError(
                f"{error.filename} cannot be moved or made: {error.strerror}. Nothing is lost by that, and the broker does not "
                f"start yet. Check the disk, the rights and what is mounted there, then run `parley node recover` again."
            ) from error


def _recovered(config: Config, loss: Loss) -> Recovered:
    records, genesis = provision(
        replica_config(config),
        network_application(config).mount(config.genesis, config.shard).machine,
        abstaining=True,
    )
    # The record goes first and comes last: without one nothing starts, and an old one must not meet the new store.
    moved = _moved_aside(config.safety) if loss.record else []
    if loss.store:
        fresh = beside(config.data, "new")
        with open_store(fresh, create=True) as store:
            store.write(genesis.entries, sync=True)
        moved += _moved_aside(config.data)
        if config.data.is_dir():  # empty, or it would have been moved
            config.data.rmdir()
        fresh.rename(config.data)
        sync_directory(config.data.parent)
    mark_provisioned(config)
    if loss.record:
        SafetyFile.create(config.safety, records)
    return Recovered(bool(loss.store), bool(loss.record), tuple(moved))


def _examined(config: Config, held: Slots | str, *, stale_record: bool) -> Loss:
    _require_stopped(config)
    record, abstains = (held, False) if isinstance(held, str) else _record_loss(config, held)
    if stale_record and not abstains:
        record = record or "is not the newest one"
    store = _store_loss(config)
    _require_others(config, store=store, record=record)
    return Loss(store, record, abstains)


@contextmanager
def _alone(config: Config) -> Iterator[None]:
    """One recovery of a broker at a time."""
    descriptor = os.open(config.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"{config.directory} cannot be locked: {error.strerror}. If another process recovers this broker, let it finish."
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _held_record(config: Config) -> Iterator[Slots | str]:
    """What the record holds, locked so that no broker starts with it; or why no broker can start."""
    for path in (config.safety, config.data):
        if path.is_symlink() and not path.exists():
            raise StorageError(
                f"{path} is a link to something that is not there. If it is on a disk that is not mounted, mount that; if it "
                f"is lost, remove the link and run `parley node recover` again."
            )
    with ExitStack() as closing:
        yield _record(config, closing)


def _record(config: Config, closing: ExitStack) -> Slots | str:
    if not config.safety.exists():
        return "is missing"
    try:
        return closing.enter_context(SafetyFile.open(config.safety)).read()
    except SafetyFileDamaged:  # any other error: it is in use or cannot be reached, and that is no loss
        return "is damaged"


def _require_stopped(config: Config) -> None:
    """The locks tell, unless what was locked has been deleted under a running broker."""
    broker = LocalBroker(config.broker.name, config.broker.organisation, config.directory, "")
    if (pid := broker.pid()) is not None:
        raise StorageError(f"Broker {broker.name} is running, as process {pid}. Stop it first.")


def _require_others(config: Config, *, store: str, record: str) -> None:
    size = config.committee.size
    if record and not Recovery.is_possible(size):
        raise StorageError(
            f"The safety record {config.safety} {record}, and in a network of {size} there are not enough other brokers to tell "
            f"this one what it may still sign. Find the old record; if it is lost, the network has to be made anew."
        )
    if store and size == 1:
        raise StorageError(
            f"The store {config.data} {store}, and there is no other broker that has what was in it. Repair the disk, or make "
            f"the network anew."
        )


# -- what is lost -----------------------------------------------------------------------------------------------------


def _record_loss(config: Config, slots: Slots) -> tuple[str, bool]:
    try:
        _, state = recover_record(slots, str(config.safety))
    except SafetyRecordError:
        return "is damaged", False
    own = config.committee
    if (state.chain, state.shard, state.epoch, state.signer) != (
        config.genesis.chain,
        own.shard,
        own.epoch,
        config.index,
    ):
        raise StorageError(
            f"{config.safety} is the safety record of another broker, shard or network. Point {config.path} at this broker's own one."
        )
    return "", state.abstains


def _store_loss(config: Config) -> str:
    if not holds_something(config.data):
        return "is missing"
    if not holds_store(config.data):
        return "is damaged"
    try:
        with open_store(config.data, create=False) as store:
            return _chain_loss(config, store)
    except (StoreFailed, chain.StoreError):
        return "is damaged"


def _chain_loss(config: Config, store: Store) -> str:
    if store.get(layout.JOINING) is not None:  # it is being put in order already
        return ""
    found = Chain(store)
    found.history_range()
    genesis = found.block(0)
    if genesis is None:
        return "is damaged"
    if (genesis.header.chain, genesis.header.shard) != (config.genesis.chain, config.shard):
        raise StorageError(
            f"{config.data} is the store of another network or shard. Point {config.path} at this broker's own one."
        )
    return ""


# -- files --------------------------------------------------------------------------------------------------------------


def _moved_aside(path: Path) -> list[Path]:
    """Where something lies now that was damaged: it may still be wanted, by those who find out what happened."""
    if not holds_something(path):
        return []
    aside = beside(path, "damaged")
    path.rename(aside)
    sync_directory(path.parent)
    return [aside]


def beside(path: Path, word: str) -> Path:
    """A free name beside `path`: its name, the word and a number."""
    names = (path.with_name(f"{path.name}.{word}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
