"""A broker's store and safety record are made together, once, and opened together or not at all (P10)."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from parley.applications import DATA_SHARD, VARIABLE, VERSION
from parley.consensus.errors import SafetyRecordError
from parley.consensus.record import COPIES, MAX_RECORD, SLOTS
from parley.ledger.safety_file import SafetyFile
from parley.node.__main__ import main
from parley.node.assemble import run
from parley.node.config import Config, ConfigError, load
from parley.node.provision import broker_directory, provision_network, write_genesis
from parley.node.storage import (
    StorageError,
    mark_provisioned,
    network_application,
    open_storage,
    provision_storage,
    served_another,
)
from parley.replica.ports import Found
from parley.store.disk import open_store
from parley.store.errors import StoreError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    directory = tmp_path / "net"
    provision_network(directory, organisations=("solo",), network="n", start_time=int(time.time() * 1_000))
    return load(broker_directory(directory, "solo-1") / "broker.toml")


def test_a_new_broker_opens_what_was_made_for_it(config: Config) -> None:
    storage = open_storage(config)
    assert storage.record[1].last_voted_view == 0
    assert storage.recent.lowest == 0
    storage.close()


def test_a_broker_that_has_its_disk_does_not_get_another(config: Config) -> None:
    with pytest.raises(StorageError, match="has its data already"):
        provision_storage(config)


def test_a_missing_safety_record_is_never_made_anew(config: Config) -> None:
    config.safety.unlink()
    for action in (provision_storage, open_storage):
        with pytest.raises(StorageError, match=r"could sign twice.*`parley node recover`"):
            action(config)
    assert not config.safety.exists()


def test_missing_data_are_never_made_anew(config: Config) -> None:
    shutil.rmtree(config.data)
    for action in (provision_storage, open_storage):
        with pytest.raises(StorageError, match=r"lost what it promised to keep.*`parley node recover`"):
            action(config)
    assert not config.data.exists()


def test_a_broker_that_lost_its_disk_does_not_get_another_unless_its_operator_vouches_for_it(
    config: Config,
) -> None:
    shutil.rmtree(config.data)
    config.safety.unlink()
    with pytest.raises(StorageError, match="`parley genesis combine` makes the storage of a new broker"):
        open_storage(config)
    mark = config.directory / "provisioned"
    with pytest.raises(StorageError, match="it could sign again what it has signed"):
        provision_storage(config)
    assert not config.data.exists()
    mark.unlink()
    provision_storage(config)
    open_storage(config).close()
    assert mark.exists()


def test_a_broker_of_another_network_gets_storage_here_once_its_old_one_is_moved_away(
    config: Config, tmp_path: Path
) -> None:
    genesis = tmp_path / "net" / "genesis.json"
    genesis.unlink()
    write_genesis(genesis.parent, msgspec.structs.replace(config.genesis, network="other"))
    here = load(config.path)
    with pytest.raises(StorageError, match="what it kept in another network"):
        provision_storage(here)
    with pytest.raises(StorageError, match="the safety record of another network than other"):
        open_storage(here)
    shutil.rmtree(config.data)
    config.safety.unlink()
    provision_storage(here)
    open_storage(here).close()
    shutil.rmtree(config.data)
    config.safety.unlink()
    for one in (here, config):  # it has signed in both
        with pytest.raises(StorageError, match="it could sign again what it has signed"):
            provision_storage(one)


def test_a_mark_that_names_no_network_speaks_of_all(config: Config) -> None:
    (config.directory / "provisioned").write_bytes(b"")
    shutil.rmtree(config.data)
    config.safety.unlink()
    mark_provisioned(config)
    assert not served_another(config.directory / "provisioned", bytes(32))
    with pytest.raises(StorageError, match="it could sign again what it has signed"):
        provision_storage(config)


def test_nothing_is_left_open_when_a_part_cannot_be_used(config: Config) -> None:
    with open_store(config.data, create=False), pytest.raises(StoreError, match="in use by another process"):
        open_storage(config)
    record = SafetyFile.open(config.safety)
    with pytest.raises(SafetyRecordError, match="in use by another process"):
        open_storage(config)
    record.close()
    config.safety.write_bytes(bytes(len(config.safety.read_bytes())))
    with pytest.raises(SafetyRecordError, match="cannot be used"):
        open_storage(config)
    open_store(config.data, create=False).close()


def test_a_damaged_copy_of_the_record_is_mended_and_told_of(config: Config) -> None:
    whole = config.safety.read_bytes()
    for slot in range(SLOTS):
        for copy in range(COPIES):
            flip(config.safety, (copy * SLOTS + slot) * MAX_RECORD + 40)
            storage = open_storage(config)
            assert storage.record[0] == 1
            what = f"was damaged in copy {copy + 1} of slot {slot + 1}"
            assert storage.found == (Found("safety.record", what, mended=True),)
            storage.close()
            assert config.safety.read_bytes() == whole
    storage = open_storage(config)
    assert storage.found == ()
    storage.close()


@pytest.mark.parametrize("slot", range(SLOTS))
def test_two_damaged_copies_of_a_record_stop_the_broker_and_name_the_file(config: Config, slot: int) -> None:
    for copy in range(COPIES):
        flip(config.safety, (copy * SLOTS + slot) * MAX_RECORD + 40)
    damaged = config.safety.read_bytes()
    with pytest.raises(SafetyRecordError, match="both copies of a record") as caught:
        open_storage(config)
    assert str(config.safety) in str(caught.value)
    assert "`parley node recover`" in str(caught.value)
    assert config.safety.read_bytes() == damaged


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x01
    path.write_bytes(content)


def test_another_version_of_the_application_is_a_wrong_configuration(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DATA_SHARD, "version", VERSION + 1)
    why = f"genesis: network n runs version {VERSION} of its application, and this program has version {VERSION + 1}"
    with pytest.raises(ConfigError, match=why):
        asyncio.run(run(config))
    assert main([str(config.path)]) == 2
    assert why in capsys.readouterr().err
    monkeypatch.undo()
    open_storage(config).close()  # nothing was touched


@pytest.mark.parametrize("allow_faults", [True, False])
def test_another_application_is_run_only_where_faults_are_allowed(
    allow_faults: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time() * 1_000)
    provision_network(
        tmp_path / "net", organisations=("solo",), network="n", start_time=now, allow_faults=allow_faults
    )
    config = load(broker_directory(tmp_path / "net", "solo-1") / "broker.toml")
    monkeypatch.setenv(VARIABLE, "parley.no_such_module:APPLICATION")
    if not allow_faults:
        assert network_application(config) is DATA_SHARD
        return
    with pytest.raises(ConfigError, match=r"genesis: .*cannot be loaded"):
        asyncio.run(run(config))
