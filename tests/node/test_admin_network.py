"""What an operator asks of brokers that run: a backup while messages flow, and how they are; hang-ups say nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client, reach
from tests.node.test_admin import ask, opened, said

import parley
from parley.net import messages as net
from parley.node.admin.actions import Actions, Served
from parley.node.admin.client import AdminError, copied_store
from parley.node.admin.place import SOCKET, bound
from parley.node.admin.server import AdminSocket
from parley.node.backup import make_backup, restore_backup
from parley.node.backup_file import verify_backup
from parley.node.config import Config, load
from parley.node.copies import BackupError
from parley.node.faults.switches import Switches
from parley.node.logs import open_log
from parley.node.provision import broker_directory, identity_path
from parley.node.shown import Showing
from parley.store.disk import open_store


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path / "net", organisations=("solo",)) as made:
        yield made


async def up(network: LocalNetwork) -> None:
    await (await reach(network, "solo-1")).wait_closed()


def config_of(network: LocalNetwork) -> Config:
    return load(network.config("solo-1"))


def workshop(network: LocalNetwork) -> Path:
    return broker_directory(network.directory, "solo-1") / ".data.backup"


async def gone(path: Path) -> None:
    """Another process removes it."""
    async with asyncio.timeout(SECONDS):
        while path.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def test_a_broker_is_backed_up_while_the_ledger_grows_and_comes_back_from_that(tmp_path: Path) -> None:
    async def grow(admin: parley.Client) -> None:
        for number in count():
            await admin.create_topic(f"topic-{number}")

    async def higher(network: LocalNetwork, than: int) -> None:
        async with client(network, "delta-1", "alpha", "admin") as asked:
            while (await asked.status()).height <= than:
                pass

    async def story(network: LocalNetwork) -> None:
        network.start()
        for name in network.names:
            await (await reach(network, name)).wait_closed()
        config = load(network.config("delta-1"))
        identity = identity_path(network.directory, "alpha", "admin")
        async with parley.connect(directory=network.directory, identity=identity, timeout=SECONDS) as admin:
            growing = asyncio.create_task(grow(admin))
            found = [await asyncio.to_thread(make_backup, config, tmp_path / "0.tar")]
            for number in (1, 2):
                await higher(network, found[-1].height)
                found.append(await asyncio.to_thread(make_backup, config, tmp_path / f"{number}.tar"))
            assert not growing.done()
            growing.cancel()
            await asyncio.wait([growing])
            assert found[0].height < found[1].height < found[2].height
            assert not (config.directory / ".data.backup").exists()
            assert stat.S_IMODE((config.directory / SOCKET).stat().st_mode) == 0o600
            done = [line for line in network.log("delta-1") if line["event"] == "admin"]
            assert {line["action"] for line in done} == {"POST /backup"}
            assert network.stop("delta-1") == 0
            assert not (config.directory / SOCKET).exists()
            assert verify_backup(tmp_path / "2.tar") == found[2]
            shutil.rmtree(config.data)
            assert restore_backup(config, tmp_path / "2.tar").manifest == found[2]
            network.start("delta-1")
            await (await reach(network, "delta-1")).wait_closed()
            async with client(network, "delta-1", "alpha", "admin") as asked:
                assert (await asked.status()).height >= found[2].height

    with LocalNetwork(tmp_path / "net") as network:
        asyncio.run(story(network))


def test_one_backup_at_a_time_and_none_is_left_by_a_client_that_goes(
    network: LocalNetwork, tmp_path: Path
) -> None:
    async def story() -> None:
        network.start()
        await up(network)
        config = config_of(network)
        with copied_store(config.directory) as data:
            assert data == workshop(network) / "data"
            with pytest.raises(BackupError, match="another backup of solo-1 is being made"):
                make_backup(config, tmp_path / "second.tar")
        await gone(workshop(network))
        make_backup(config, tmp_path / "third.tar")

    asyncio.run(story())


READS = """
import sys
from pathlib import Path
from parley.node.admin.client import copied_store
from parley.node.copies import reading

with copied_store(Path(sys.argv[1])) as data, reading(data):
    print("reading", flush=True)
    sys.stdin.read()
    print(len(list(data.iterdir())))
"""


def reader(network: LocalNetwork) -> subprocess.Popen[bytes]:
    """A command that has a copy and reads it until its input ends."""
    command = [sys.executable, "-c", READS, str(broker_directory(network.directory, "solo-1"))]
    found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert found.stdout is not None
    assert found.stdout.readline() == b"reading\n"
    return found


def test_a_copy_outlives_a_broker_that_stops_and_not_its_reader(network: LocalNetwork) -> None:
    async def story() -> None:
        network.start()
        await up(network)
        with await asyncio.to_thread(reader, network) as reading:
            assert network.stop("solo-1") == 0
            assert workshop(network).exists()
            told, _ = reading.communicate()
            assert int(told) > 3
        assert not workshop(network).exists()

    asyncio.run(story())


def test_a_copy_does_not_outlive_a_reader_that_was_killed_nor_both_of_them_the_next_start(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        network.start()
        await up(network)
        with await asyncio.to_thread(reader, network) as reading:
            reading.kill()
        await gone(workshop(network))
        with await asyncio.to_thread(reader, network) as reading:
            network.kill("solo-1")
            reading.kill()
        assert workshop(network).exists()
        network.start()
        await up(network)
        assert not workshop(network).exists()

    asyncio.run(story())


def test_a_broker_that_is_killed_in_between_is_an_error_that_says_so(
    network: LocalNetwork, tmp_path: Path
) -> None:
    """Here by a copy that does not come: the broker stands still when it is asked."""

    async def story() -> None:
        network.start()
        await up(network)
        os.kill(network.pid("solo-1"), signal.SIGSTOP)
        asked = asyncio.create_task(asyncio.to_thread(make_backup, config_of(network), tmp_path / "one.tar"))
        await asyncio.sleep(0)
        network.kill("solo-1")
        with pytest.raises(BackupError, match="has ended meanwhile") as ended:
            await asked
        assert "try again" in str(ended.value)

    asyncio.run(story())
    assert not list(tmp_path.glob("*.tar*"))


def test_a_client_that_goes_while_the_store_is_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made in a thread, which nothing can end; what it has made is removed when it has ended."""
    network = LocalNetwork(tmp_path / "net", organisations=("solo",))
    config = config_of(network)
    begun, goes_on = asyncio.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def slowly(copy_to: Callable[[Path], None], path: Path) -> None:
        loops[0].call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(goes_on.wait(), loops[0]).result(SECONDS)
        copy_to(path)

    async def story() -> None:
        loops.append(asyncio.get_running_loop())
        log, file = open_log(config.log_place)
        actions = Actions(config, Switches(), Showing(config, log, lambda: network.genesis.start_time), log)
        with open_store(config.data, create=False) as store, bound(config.directory) as listening:
            monkeypatch.setattr(store, "copy_to", partial(slowly, store.copy_to))
            async with AdminSocket(listening, actions.table, log):
                assert (await ask(config.directory, "POST /backup")).status == 503
                serving = actions.serving(0, Served(None, store, config.data))  # type: ignore[arg-type]
                async with serving:
                    asking = asyncio.create_task(ask(config.directory, "POST /backup"))
                    await begun.wait()
                    assert (
                        "another backup of solo-1"
                        in said(await ask(config.directory, "POST /backup")).lower()
                    )
                    asking.cancel()
                    assert workshop(network).exists()
                    ending = asyncio.create_task(serving.__aexit__(None, None, None))
                    await asyncio.sleep(0.05)
                    assert not ending.done(), "the store would be closed under the thread"
                    goes_on.set()
                    await ending
                    actions._shards[0] = Served(None, store, config.data)  # type: ignore[arg-type]
            assert not workshop(network).exists()
        file.close()

    asyncio.run(story())


def test_a_copy_may_take_longer_than_other_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = LocalNetwork(tmp_path / "net", organisations=("solo",))
    config = config_of(network)
    goes_on = threading.Event()

    def slowly(copy_to: Callable[[Path], None], path: Path) -> None:
        assert goes_on.wait(SECONDS)
        copy_to(path)

    async def story() -> None:
        log, file = open_log(config.log_place)
        actions = Actions(config, Switches(), Showing(config, log, lambda: network.genesis.start_time), log)
        with open_store(config.data, create=False) as store, bound(config.directory) as listening:
            monkeypatch.setattr(store, "copy_to", partial(slowly, store.copy_to))
            served = Served(None, store, config.data)  # type: ignore[arg-type]
            async with AdminSocket(listening, actions.table, log, seconds=0.3), actions.serving(0, served):
                reader, writer = await opened(config.directory)
                writer.write(b"POST /backup HTTP/1.1\r\nHost: x\r\n\r\n")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.6)  # twice as long as others may take
                goes_on.set()
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                writer.close()
        file.close()

    asyncio.run(story())


def test_the_status_for_the_operator_says_what_clients_are_told_and_more(network: LocalNetwork) -> None:
    async def story() -> None:
        network.start()
        await up(network)
        page = await ask(broker_directory(network.directory, "solo-1"), "GET /status?shard=0")
        found = msgspec.json.decode(page.body)
        assert set(net.Status.__struct_fields__) <= found.keys()
        assert (found["broker"], found["shard"], found["pid"]) == ("solo-1", 0, network.pid("solo-1"))
        assert found["certificate_ends"] > network.genesis.start_time
        assert (found["faults"], found["damage"], found["peers"]) == ([], [], [])
        other = await ask(broker_directory(network.directory, "solo-1"), "GET /status?shard=1")
        assert other.status == 503
        assert "solo-1 does not run shard 1 now" in said(other)

    asyncio.run(story())


def test_a_hang_up_neither_ends_a_broker_nor_tells_it_anything(network: LocalNetwork) -> None:
    async def story() -> None:
        network.start()
        await up(network)
        os.kill(network.pid("solo-1"), signal.SIGHUP)
        await up(network)
        assert network.is_running("solo-1")
        events = [line["event"] for line in network.log("solo-1")]
        assert not {"faults", "certificate_renewed", "certificate_refused", "stopping"} & set(events)
        assert network.stop("solo-1") == 0

    asyncio.run(story())


def test_a_second_process_of_a_broker_leaves_the_socket_of_the_first_one(network: LocalNetwork) -> None:
    async def story() -> None:
        network.start()
        await up(network)
        folder = broker_directory(network.directory, "solo-1")
        command = [sys.executable, "-m", "parley.node", str(network.config("solo-1"))]
        second = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert "is in use by another process that runs its broker" in second.stderr
        assert (await ask(folder, "GET /status")).status == 200
        network.kill("solo-1")
        assert (folder / SOCKET).exists()
        with pytest.raises(AdminError, match="no broker listens"), copied_store(folder):
            raise AssertionError
        network.start()
        await up(network)
        assert (await ask(folder, "GET /status")).status == 200

    asyncio.run(story())
