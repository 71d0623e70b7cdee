"""A data folder that is removed, moved or replaced under a running broker: it notices, promises nothing more, and stops."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.node.network import LocalNetwork
from tests.node.raw_client import RawClient, client, message, reach, registration
from tests.node.test_crashes import patiently, run_node
from tests.node.test_driver import MINE, RECORD, VOTE, Watched, act, make, next_record, stored

from parley.model.receipts import Done
from parley.modules.publishing.receipts import Published
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.node.config import Config, load
from parley.node.placement import DisplacedError
from parley.node.provision import broker_directory, provision_network
from parley.node.recovery import recover_storage
from parley.node.storage import open_storage
from parley.replica.ports import Effect


@pytest.fixture
def config(tmp_path: Path) -> Config:
    now = int(time.time() * 1_000)
    provision_network(
        tmp_path / "net", organisations=("a", "b", "c", "d"), network="n", start_time=now, clients=()
    )
    return load(broker_directory(tmp_path / "net", "d-1") / "broker.toml")


Attack = Callable[[Path], None]  # on the folder of a broker


def remove_data(home: Path) -> None:
    shutil.rmtree(home / "data")


def empty_data(home: Path) -> None:
    for path in (home / "data").iterdir():
        path.unlink()


def move_data(home: Path) -> None:
    (home / "data").rename(home / "elsewhere")


def replace_data(home: Path) -> None:
    """By a copy, as when a snapshot of the disk is put back."""
    shutil.copytree(home / "data", home / "copy")
    (home / "data").rename(home / "elsewhere")
    (home / "copy").rename(home / "data")


def remove_record(home: Path) -> None:
    (home / "safety.record").unlink()


def replace_record(home: Path) -> None:
    copied = shutil.copy(home / "safety.record", home / "copy")
    Path(copied).replace(home / "safety.record")


def remove_everything(home: Path) -> None:
    shutil.rmtree(home)


def move_everything(home: Path) -> None:
    home.rename(home.with_name("elsewhere"))


ATTACKS = (
    remove_data,
    empty_data,
    move_data,
    replace_data,
    remove_record,
    replace_record,
    remove_everything,
    move_everything,
)


@pytest.mark.parametrize("effects", [(RECORD, VOTE), (stored(b"a"), VOTE), (MINE, VOTE)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_signed_and_no_batch_leaves_a_broker_whose_folder_was_taken_away(
    attack: Attack, effects: tuple[Effect, ...], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            record = next_record(storage)
            watched = Watched(driver, storage, monkeypatch)
            attack(config.directory)
            await act(driver, *(record if effect is RECORD else effect for effect in effects))
            driver._sync_as_planned()
            await driver.until_free()
            assert "to 1: vote" not in watched.done
            assert isinstance(driver.failure.exception(), DisplacedError)

    asyncio.run(story())


def test_a_folder_that_goes_away_while_a_record_is_synced_is_noticed_before_the_signature_leaves(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            watched = Watched(driver, storage, monkeypatch)
            persist = storage.safety.persist

            def persist_and_lose(slot: int, record: bytes) -> None:
                persist(slot, record)
                remove_data(config.directory)

            monkeypatch.setattr(storage.safety, "persist", persist_and_lose)
            await act(driver, next_record(storage), VOTE)
            assert watched.done == ["record"]
            with pytest.raises(DisplacedError, match="under the running broker"):
                await driver.failure

    asyncio.run(story())


def test_a_folder_that_was_moved_and_put_back_is_the_same(config: Config) -> None:
    storage = open_storage(config)
    for path in (config.data, config.safety, config.directory):
        path.rename(path.with_name("elsewhere")).rename(path)
    storage.require_in_place()
    storage.close()
    open_storage(config).close()


def test_a_broker_that_is_told_to_stop_after_its_folder_was_replaced_does_not_write_to_the_new_one(
    config: Config,
) -> None:
    storage = open_storage(config)
    storage.store.write([(b"k", b"v")], sync=False)
    replace_data(config.directory)
    before = contents(config.data)
    with pytest.raises(DisplacedError, match=r"LOCK is another file now.*--stale-record"):
        storage.close()
    assert contents(config.data) == before


@pytest.mark.parametrize("attack", [remove_data, replace_data, remove_record, move_everything])
def test_a_broker_whose_folder_is_taken_away_acknowledges_nothing_more(
    attack: Attack, tmp_path: Path
) -> None:
    async def story() -> None:
        async with client(network, "solo-1", "solo", "admin") as admin:
            assert (await admin.operate(CreateTopic("before", 1, Policy(), "", ""))).outcome == Done()
            attack(home)
            assert not await is_acknowledged(admin)

    with LocalNetwork(tmp_path / "net", organisations=("solo",)) as network:
        home = broker_directory(network.directory, "solo-1")
        network.start()
        asyncio.run(story())
        assert network.wait("solo-1") == 2  # so that no supervisor starts it on what lies there now


async def is_acknowledged(admin: RawClient) -> bool:
    """Whether another operation gets a receipt; the broker may refuse it, or be gone already."""
    admin.send(net.Submit(admin.new_id(), admin.control(CreateTopic("after", 1, Policy(), "", ""))[1]))
    frame = await admin.stream.read()
    return frame is not None and isinstance(net.decode_answer(frame), net.Receipted)


def test_a_broker_that_has_nobody_to_agree_with_notices_the_loss_as_well(tmp_path: Path) -> None:
    async def reached() -> None:
        await (await reach(network, "delta-1")).wait_closed()

    with LocalNetwork(tmp_path / "net") as network:
        network.start("delta-1")
        asyncio.run(reached())
        remove_data(broker_directory(network.directory, "delta-1"))
        assert network.wait("delta-1") == 2


def test_a_broker_that_lost_its_folder_says_so_and_is_recovered_while_the_others_go_on(
    tmp_path: Path,
) -> None:
    async def loss() -> None:
        async with client(network, "alpha-1", "alpha", "admin") as admin:
            assert (await admin.operate(registration(network.identity("alpha", "alice")))).outcome == Done()
            assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()
        async with client(network, "alpha-1", "alpha", "alice") as alice:
            assert (await alice.submit(alice.publication("log", message(b"a")))).outcome == Published(0)
            remove_data(home)
            assert network.wait("delta-1") == 2
            assert (await alice.submit(alice.publication("log", message(b"b")))).outcome == Published(1)

    async def return_() -> None:
        async with client(network, "delta-1", "alpha", "alice") as reader:
            assert len(await patiently(reader, "log", count=2)) == 2

    with LocalNetwork(tmp_path / "net") as network:
        home = broker_directory(network.directory, "delta-1")
        network.start()
        asyncio.run(loss())
        events = {str(line["event"]): line for line in network.log("delta-1")}
        why = str(events["failed"]["why"])
        for part in (
            f"{home / 'data'}",
            "under the running broker",
            "signs and acknowledges nothing",
            "recover",
        ):
            assert part in why
        ended = run_node(network, "delta-1")
        assert (ended.returncode, "has lost what it promised to keep" in ended.stderr) == (2, True)
        recover_storage(load(network.config("delta-1")))
        network.start("delta-1")
        asyncio.run(return_())


def test_a_folder_that_was_put_in_place_of_the_brokers_own_is_not_written_to(tmp_path: Path) -> None:
    """RocksDB opens files by their names: when it ends in good order it writes to what lies there now."""

    async def reached() -> None:
        async with client(network, "solo-1", "solo", "admin") as admin:
            assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()

    with LocalNetwork(tmp_path / "net", organisations=("solo",)) as network:
        data = broker_directory(network.directory, "solo-1") / "data"
        network.start()
        asyncio.run(reached())
        replace_data(data.parent)
        before = contents(data)
        assert network.wait("solo-1") == 2
        assert contents(data) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_broker_removes_no_address_and_no_process_id_of_another_one_in_its_place(tmp_path: Path) -> None:
    async def reached() -> None:
        await (await reach(network, "solo-1")).wait_closed()

    with LocalNetwork(tmp_path / "net", organisations=("solo",)) as network:
        home = broker_directory(network.directory, "solo-1")
        network.start()
        asyncio.run(reached())
        move_everything(home)
        home.mkdir()
        for name in ("address", "pid"):
            (home / name).write_text("of another one\n")
        assert network.wait("solo-1") == 2
        assert set(contents(home)) == {"address", "pid"}
