"""A broker that lost its disk, or a part of it, gets what it needs to come back, and nothing that is good is touched (P10)."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Never

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration

from parley.consensus.record import COPIES, MAX_RECORD, SLOTS, SafetyState
from parley.ledger import layout
from parley.ledger.safety_file import SafetyFile, SafetyFileError
from parley.model.receipts import Done
from parley.modules.publishing.receipts import Published
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.net.tls import ContextError
from parley.node import recovery
from parley.node.assemble import run
from parley.node.config import Config, ConfigError, load
from parley.node.provision import broker_directory, provision_network
from parley.node.recovery import Loss, Recovered, examine, recover_storage
from parley.node.storage import StorageError, mark_provisioned, open_storage
from parley.replica.chain import Chain
from parley.store.disk import open_store
from parley.store.errors import StoreError

ORGANISATIONS = ("alpha", "beta", "gamma", "delta")


def provisioned(directory: Path, *organisations: str) -> Config:
    provision_network(
        directory, organisations=organisations, network="n", start_time=int(time.time() * 1_000)
    )
    return load(broker_directory(directory, f"{organisations[0]}-1") / "broker.toml")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "net"
    provisioned(directory, *ORGANISATIONS)
    return directory


@pytest.fixture
def config(template: Path, tmp_path: Path) -> Config:
    shutil.copytree(template, tmp_path / "net")
    return load(broker_directory(tmp_path / "net", "alpha-1") / "broker.toml")


def contents(config: Config) -> tuple[set[str], bytes, list[tuple[bytes, bytes]]]:
    """What lies in the broker's folder, what its record says, and what its store holds."""
    with open_store(config.data, create=False) as store:
        entries = list(store.scan(b""))
    return {path.name for path in config.directory.iterdir()}, config.safety.read_bytes(), entries


def opened(config: Config) -> tuple[SafetyState, bytes | None]:
    """The broker's record, and the mark by which this very store is known."""
    storage = open_storage(config)
    try:
        assert Chain(storage.store).block(0) is not None
        return storage.record[1], storage.store.get(b"x/mark")
    finally:
        storage.close()


def put(config: Config, key: bytes, value: bytes) -> None:
    with open_store(config.data, create=False) as store:
        store.write([(key, value)], sync=True)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


# -- losses ---------------------------------------------------------------------------------------------------------------


def no_data(config: Config) -> None:
    shutil.rmtree(config.data)


def empty_data(config: Config) -> None:
    shutil.rmtree(config.data)
    config.data.mkdir()


def no_index(config: Config) -> None:
    (config.data / "CURRENT").unlink()


def bad_index(config: Config) -> None:
    (config.data / "CURRENT").write_bytes(b"nonsense\n")


def bad_table(config: Config) -> None:
    for path in config.data.glob("*.sst"):
        overwrite(path, 20, b"\xff" * 64)


def bad_head(config: Config) -> None:
    put(config, layout.HEAD, b"nonsense")


def no_genesis(config: Config) -> None:
    with open_store(config.data, create=False) as store:
        store.write([(layout.committed(0), None)], sync=True)


STORE_LOSSES = [no_data, empty_data, no_index, bad_index, bad_table, bad_head, no_genesis]


def no_record(config: Config) -> None:
    config.safety.unlink()


def short_record(config: Config) -> None:
    os.truncate(config.safety, 1_000)


def bad_record(config: Config) -> None:
    for copy in range(COPIES):
        overwrite(config.safety, copy * SLOTS * MAX_RECORD + 50, b"\xff" * 8)


RECORD_LOSSES = [no_record, short_record, bad_record]
Lose = Callable[[Config], None]


@pytest.mark.parametrize("lose", STORE_LOSSES)
def test_a_lost_store_is_made_anew_and_the_safety_record_stays(config: Config, lose: Lose) -> None:
    put(config, b"x/mark", b"the old store")
    record = config.safety.read_bytes()
    lose(config)
    tables = {path.name for path in config.data.glob("*.sst")}
    done = recover_storage(config)
    assert (done.store, done.record) == (True, False)
    assert config.safety.read_bytes() == record
    state, mark = opened(config)
    assert (state.abstains, mark) == (False, None)
    aside = config.data.with_name("data.damaged-1")
    assert done.moved == ((aside,) if tables else ())
    assert {path.name for path in aside.glob("*.sst")} >= tables


@pytest.mark.parametrize("lose", RECORD_LOSSES)
def test_a_lost_record_is_replaced_by_one_that_abstains_and_the_store_stays(
    config: Config, lose: Lose
) -> None:
    put(config, b"x/mark", b"the old store")
    lose(config)
    before = config.safety.read_bytes() if config.safety.exists() else b""
    done = recover_storage(config)
    assert (done.store, done.record) == (False, True)
    state, mark = opened(config)
    assert (state.abstains, state.last_voted_view, mark) == (True, 0, b"the old store")
    aside = config.safety.with_name("safety.record.damaged-1")
    assert done.moved == ((aside,) if before else ())
    assert not before or aside.read_bytes() == before


@pytest.mark.parametrize("store", [no_data, bad_table])
@pytest.mark.parametrize("record", RECORD_LOSSES)
def test_a_lost_disk_is_made_anew_as_a_whole(config: Config, store: Lose, record: Lose) -> None:
    store(config)
    record(config)
    done = recover_storage(config)
    assert (done.store, done.record) == (True, True)
    state, mark = opened(config)
    assert (state.abstains, mark) == (True, None)


def test_a_broker_of_which_only_the_keys_are_left_does_not_begin_as_a_new_one(config: Config) -> None:
    """They may come from a backup: whether it ran before, nobody knows."""
    no_data(config)
    no_record(config)
    (config.directory / "provisioned").unlink()
    recover_storage(config)
    assert opened(config)[0].abstains
    assert (config.directory / "provisioned").exists()


def test_where_nothing_is_lost_nothing_is_changed(config: Config) -> None:
    before = contents(config)
    assert examine(config) == Loss("", "", abstains=False)
    assert recover_storage(config) == Recovered(store=False, record=False, moved=())
    assert contents(config) == before


def test_a_record_with_one_damaged_copy_is_not_lost(config: Config) -> None:
    overwrite(config.safety, 50, b"\xff" * 8)
    assert examine(config) == Loss("", "", abstains=False)


def test_a_record_that_is_known_to_be_old_is_treated_as_lost(config: Config) -> None:
    old = config.safety.read_bytes()
    assert examine(config, stale_record=True).record == "is not the newest one"
    done = recover_storage(config, stale_record=True)
    assert opened(config)[0].abstains
    assert [path.read_bytes() for path in done.moved] == [old]
    assert not examine(config, stale_record=True)  # and that one is not


def test_a_second_time_there_is_nothing_to_recover(config: Config) -> None:
    no_record(config)
    recover_storage(config)
    record = config.safety.read_bytes()
    assert examine(config) == Loss("", "", abstains=True)
    assert recover_storage(config) == Recovered(store=False, record=False, moved=())
    assert config.safety.read_bytes() == record


def test_what_was_moved_aside_before_stays(config: Config) -> None:
    for number in (1, 2):
        bad_record(config)
        (moved,) = recover_storage(config).moved
        assert moved.name == f"safety.record.damaged-{number}"


@pytest.mark.parametrize("step", ["data", "safety", "create"])
def test_an_interrupted_recovery_is_completed_by_the_next(
    config: Config, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_table(config)
    bad_record(config)
    moved_aside = recovery._moved_aside

    def fails(path: Path) -> list[Path]:
        found = moved_aside(path)
        if path == getattr(config, step):
            raise KeyboardInterrupt
        return found

    def never(path: Path, records: Sequence[bytes]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "create":
            patch.setattr(SafetyFile, "create", never)
        else:
            patch.setattr(recovery, "_moved_aside", fails)
        with pytest.raises(KeyboardInterrupt):
            recover_storage(config)
    with pytest.raises((StorageError, SafetyFileError)):
        open_storage(config)
    recover_storage(config)
    assert opened(config)[0].abstains
    assert (config.directory / "data.damaged-1").exists()
    assert (config.directory / "safety.record.damaged-1").exists()


@pytest.mark.parametrize("step", ["_moved_aside", "mark_provisioned"])
def test_an_interrupted_recovery_leaves_no_old_record_with_a_new_store(
    config: Config, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_table(config)
    original = getattr(recovery, step)

    def interrupted(argument: object) -> Never:
        original(argument)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recovery, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            recover_storage(config, stale_record=True)
    with pytest.raises(StorageError):
        open_storage(config)
    recover_storage(config)  # whoever does not say again that it was old
    assert opened(config)[0].abstains


def test_meanwhile_no_broker_starts_and_nobody_else_recovers_it(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def meanwhile(config: Config) -> None:
        mark_provisioned(config)
        with pytest.raises(SafetyFileError, match="in use"):
            open_storage(config)
        with pytest.raises(StorageError, match="another process recovers this broker"):
            recover_storage(config)
        tried.append(config)

    bad_table(config)
    monkeypatch.setattr(recovery, "mark_provisioned", meanwhile)
    recover_storage(config)
    assert tried
    opened(config)


# -- refusals ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_done_while_the_broker_runs(config: Config) -> None:
    before = contents(config)
    with open_store(config.data, create=False), pytest.raises(StoreError, match="in use"):
        recover_storage(config)
    with SafetyFile.open(config.safety), pytest.raises(SafetyFileError, match="in use"):
        recover_storage(config)
    assert contents(config) == before


def test_nothing_is_done_while_it_runs_on_files_that_were_deleted(config: Config) -> None:
    wait = "import sys; print('begun', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", wait, str(config.path.resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()  # before that the system may not know its arguments, by which it is found
        no_data(config)
        no_record(config)
        (config.directory / "pid").write_text(f"{broker.pid}\n")
        with pytest.raises(StorageError, match=f"alpha-1 is running, as process {broker.pid}"):
            recover_storage(config)
        broker.communicate()
    assert not config.safety.exists()
    recover_storage(config)


@pytest.mark.parametrize("part", ["safety", "data"])
def test_a_link_to_a_disk_that_is_not_mounted_is_no_loss(config: Config, part: str, tmp_path: Path) -> None:
    path: Path = getattr(config, part)
    path.rename(tmp_path / "disk")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"{path} is a link to something that is not there"):
        recover_storage(config)
    path.unlink()
    (tmp_path / "disk").rename(path)
    assert not examine(config)


def test_what_cannot_be_moved_is_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(path: Path, target: Path) -> Never:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    bad_table(config)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", busy)
        with pytest.raises(StorageError, match=f"{config.data} cannot be moved or made: Device or resource"):
            recover_storage(config)
    recover_storage(config)


@pytest.mark.parametrize("organisations", [("one",), ("one", "two")])
def test_a_network_that_is_too_small_cannot_bring_a_record_back(
    tmp_path: Path, organisations: tuple[str, ...]
) -> None:
    config = provisioned(tmp_path / "net", *organisations)
    no_record(config)
    with pytest.raises(StorageError, match=f"network of {len(organisations)} there are not enough other"):
        recover_storage(config)
    assert not config.safety.exists()


def test_a_broker_that_is_alone_cannot_bring_its_store_back(tmp_path: Path) -> None:
    config = provisioned(tmp_path / "net", "one")
    bad_table(config)
    with pytest.raises(StorageError, match="no other broker that has what was in it"):
        recover_storage(config)


def test_another_brokers_disk_is_not_touched(config: Config, tmp_path: Path) -> None:
    other = load(broker_directory(tmp_path / "net", "beta-1") / "broker.toml")
    shutil.copy(other.safety, config.safety)
    with pytest.raises(StorageError, match="safety record of another broker"):
        recover_storage(config)
    stranger = provisioned(tmp_path / "other", *ORGANISATIONS)
    shutil.rmtree(stranger.data)
    shutil.copytree(other.data, stranger.data)
    with pytest.raises(StorageError, match="store of another network"):
        recover_storage(stranger)


# -- keys -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["consensus_key", "certificate_key"])
def test_a_broker_with_a_damaged_key_stops_and_names_the_file(config: Config, place: str) -> None:
    path = config.directory / {"consensus_key": "consensus.key", "certificate_key": "tls.key"}[place]
    whole = path.read_bytes()
    text = whole.strip()  # a newline at the end means nothing
    for position in range(len(text)):
        path.write_bytes(text[:position] + bytes([text[position] ^ 0x01]) + text[position + 1 :])
        with pytest.raises((ConfigError, ContextError)) as caught:
            asyncio.run(started_and_stopped(config.path))
        assert str(path) in str(caught.value)
    path.write_bytes(whole)
    assert asyncio.run(started_and_stopped(config.path)) == 0


async def started_and_stopped(path: Path) -> int:
    stop = asyncio.Event()
    stop.set()
    return await run(load(path), stop)


# -- a real network ---------------------------------------------------------------------------------------------------------


def test_a_broker_whose_disk_was_wiped_comes_back_and_votes_again(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path / "net") as network:
        # On the way: a damaged copy of another one's record is mended, and it says so.
        overwrite(broker_directory(network.directory, "alpha-1") / "safety.record", 50, b"\xff" * 8)
        network.start()
        asyncio.run(wiped_and_back(network))
        network.stop_all()
        histories = [executed(network, name) for name in ("alpha-1", "gamma-1", "delta-1")]
    length = min(map(len, histories))
    assert length > 15
    assert len({tuple(history[:length]) for history in histories}) == 1


async def wiped_and_back(network: LocalNetwork) -> None:
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        assert (await admin.operate(registration(network.identity("alpha", "alice")))).outcome == Done()
        assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()
    enough = asyncio.Event()
    async with client(network, "alpha-1", "alpha", "alice") as publisher, asyncio.TaskGroup() as tasks:
        load = tasks.create_task(publish_until(enough, publisher))
        await until(network, "delta-1", lambda status: status.height > 10)
        network.kill("delta-1")
        home = broker_directory(network.directory, "delta-1")
        shutil.rmtree(home / "data")
        (home / "safety.record").unlink()
        recover(network, "delta-1")
        # While another one does not answer it stays as it is.
        os.kill(network.pid("gamma-1"), signal.SIGSTOP)
        network.start("delta-1")
        status = await until(network, "delta-1", lambda status: "2 of the 3 other brokers" in status.note)
        assert status.state == "recovering"
        os.kill(network.pid("gamma-1"), signal.SIGCONT)
        await until(network, "delta-1", lambda status: status.state == "ready")
        # Two old ones and the new one are a quorum: nothing is certified any more without its vote.
        network.kill("beta-1")
        before = await until(network, "alpha-1", lambda status: status.certified > 0)
        await until(network, "alpha-1", lambda status: status.certified > before.certified + 5)
        await until(network, "delta-1", lambda status: status.certified > before.certified + 5)
        assert before.damage == ("safety.record was damaged in copy 1 of slot 1; mended",)
        enough.set()
        count = await load
    async with client(network, "delta-1", "alpha", "alice") as reader:
        # It may hear a moment later than the publisher that the last one is certified.
        fetched = await reader.fetch("log", count - 1, wait=20_000)
        assert fetched.blocks


async def publish_until(enough: asyncio.Event, publisher: RawClient) -> int:
    count = 0
    while not enough.is_set():
        receipt = await publisher.submit(publisher.publication("log", message(b"%d" % count)))
        assert receipt.outcome == Published(count)
        count += 1
    return count


async def until(network: LocalNetwork, broker: str, holds: Callable[[net.Status], bool]) -> net.Status:
    async with client(network, broker, "alpha", "admin") as watcher, asyncio.timeout(SECONDS):
        while True:
            status = await watcher.status()
            if holds(status):
                return status
            await asyncio.sleep(0.02)


def recover(network: LocalNetwork, broker: str) -> None:
    words = ["node", "recover", broker, "--dir", str(network.directory), "--yes"]
    ended = subprocess.run(
        [sys.executable, "-c", "from parley.cli import main; main()", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended
    assert f"{broker} can be started" in ended.stdout


def executed(network: LocalNetwork, name: str) -> list[bytes]:
    """The results after every block that a broker has executed."""
    with open_store(load(network.config(name)).data, create=False) as store:
        return [value for _, value in store.scan(b"r/")]
