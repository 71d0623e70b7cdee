"""A whole broker in one process: it starts from its files, serves, stops when told, and gives up when its disk does."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Never

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import (
    RawClient,
    authenticate,
    authenticated,
    message,
    opening,
    reach,
    registration,
)

import parley
from parley.model.batches import MAX_BATCH_BYTES
from parley.model.receipts import Done
from parley.model.refusals import Busy, Invalid
from parley.modules.publishing.receipts import Published
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.net.listener import ListenError
from parley.net.tls import load_certificate
from parley.node.__main__ import main
from parley.node.assemble import run
from parley.node.certificates import Authority, issue
from parley.node.config import ConfigError, load
from parley.node.driver import Driver
from parley.node.provision import broker_directory
from parley.node.services import fetching
from parley.node.storage import Storage


class OneBroker(LocalNetwork):
    """A network of one broker, which needs nobody else."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        super().__init__(directory, organisations=("solo",), settings=settings)

    def is_running(self, name: str) -> bool:
        """Its broker runs in this process, or outside the network's sight."""
        return name == "solo-1"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[OneBroker]:
    with OneBroker(tmp_path / "net") as network:
        yield network


@asynccontextmanager
async def running(network: OneBroker) -> AsyncIterator[asyncio.Task[int]]:
    stop = asyncio.Event()
    task = asyncio.create_task(run(load(network.config("solo-1")), stop))
    try:
        yield task
    finally:
        stop.set()
        await task


def test_one_broker_is_a_network(network: OneBroker) -> None:
    home = broker_directory(network.directory, "solo-1")

    async def story() -> None:
        async with running(network) as task:
            admin = await connected(network, "admin")
            assert (await admin.operate(registration(network.identity("solo", "alice")))).outcome == Done()
            assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()
            alice = await connected(network, "alice")
            assert (await alice.submit(alice.publication("t", message(b"x")))).outcome == Published(0)
            assert (await alice.fetch("t", 0)).blocks
            assert (await alice.status()).state == "ready"
            assert (home / "address").read_text().strip() == network.addresses[0]
            assert int((home / "pid").read_text()) == os.getpid()
            await close(admin, alice)
        assert task.result() == 0
        assert not (home / "address").exists()

    asyncio.run(story())


def test_a_fault_that_one_client_meets_is_logged_and_stays_its_own(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Never:
        raise RuntimeError("a defect")

    async def read() -> None:
        async with running(network):
            alice, other = await connected(network, "alice"), await connected(network, "admin")
            await other.operate(
                registration(network.identity("solo", "alice"))
            )  # so that something is certified
            answer = await alice.ask(net.Fetch(1, "t", 0, 0, 1_000, 0), object)
            assert isinstance(answer, net.Failure)
            assert answer.id == 0
            assert "failed to answer" in answer.detail
            async with asyncio.timeout(SECONDS):
                assert await alice.stream.read() is None
            assert (await other.status()).broker == "solo-1"
            await close(alice, other)

    monkeypatch.setattr(fetching, "require_readable", fail)
    asyncio.run(read())
    (fault,) = [line for line in network.log("solo-1") if line["event"] == "session_failed"]
    assert "Traceback" in str(fault["exception"])


async def connected(network: OneBroker, name: str) -> RawClient:
    stream = await reach(network, "solo-1")
    return await authenticated(network, "solo-1", stream, network.identity("solo", name))


async def close(*clients: RawClient) -> None:
    for one in clients:
        await one.stream.wait_closed()


def test_a_stop_ends_the_connections_of_clients(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            stream = await reach(network, "solo-1")
            await authenticated(network, "solo-1", stream, network.identity("solo", "admin"))
        async with asyncio.timeout(SECONDS):
            assert await stream.read() is None
        await stream.wait_closed()

    asyncio.run(story())


def test_a_client_uses_no_more_than_the_limits_say(tmp_path: Path) -> None:
    settings = "[limits]\nconnections_per_client = 1\nquestions_in_flight = 2\n"
    network = OneBroker(tmp_path / "net", settings)

    async def story() -> None:
        identity = network.identity("solo", "admin")
        async with running(network):
            admin = await authenticated(network, "solo-1", await reach(network, "solo-1"), identity)
            assert (await admin.operate(registration(network.identity("solo", "alice")))).outcome == Done()
            assert (await admin.operate(registration(identity))).outcome == Done()
            assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()
            for id_ in (1, 2, 3, 1):
                admin.send(net.Fetch(id_, "t", 0, 0, 1_000, 60_000))
            busy, used = await admin.receive(net.Failure), await admin.receive(net.Failure)
            assert (busy.id, busy.code) == (3, Busy.code)
            assert (used.id, used.code) == (1, Invalid.code)
            second = await reach(network, "solo-1")
            assert isinstance(await authenticate(network, second, identity), net.Welcome)
            refused = await opening(second)
            assert isinstance(refused, net.Failure)
            assert (refused.code, "1 connections" in refused.detail) == (Busy.code, True)
            for stream in (second, admin.stream):
                await stream.wait_closed()

    asyncio.run(story())


def test_a_client_that_never_reads_is_disconnected(tmp_path: Path) -> None:
    network = OneBroker(tmp_path / "net", "[limits]\nunread_seconds = 1\n")

    async def story() -> None:
        async with running(network):
            admin = await connected(network, "admin")
            assert (await admin.operate(registration(network.identity("solo", "alice")))).outcome == Done()
            assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()
            alice = await connected(network, "alice")
            large = alice.publication("t", message(bytes(MAX_BATCH_BYTES - 1_000)))
            assert (await alice.submit(large)).outcome == Published(0)
            for id_ in range(50):
                alice.send(net.Fetch(id_, "t", 0, 0, net.MAX_ANSWER, 0))
            await alice.stream.drain()
            async with asyncio.timeout(SECONDS):
                while (await admin.status()).clients == 2:  # noqa: ASYNC110 - it is the broker's patience that runs out
                    await asyncio.sleep(0.05)
            await close(alice, admin)

    asyncio.run(story())
    assert "client_slow" in [line["event"] for line in network.log("solo-1")]


def test_an_address_that_is_taken_is_named(network: OneBroker) -> None:
    port = int(network.addresses[0].rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*in use"),
    ):
        asyncio.run(run(load(network.config("solo-1")), asyncio.Event()))


def test_a_certificate_that_others_would_refuse_is_refused_at_the_start(network: OneBroker) -> None:
    home, organisation = (
        broker_directory(network.directory, "solo-1"),
        network.directory / "organisations/solo",
    )
    authority = Authority(load_certificate(organisation / "ca.crt"), (organisation / "ca.key").read_bytes())
    old = issue(authority, "solo-1", "solo", now=network.genesis.start_time - 10 * 86_400_000, days=1)
    (home / "tls.crt").write_bytes(old.certificate)
    (home / "tls.key").write_bytes(old.key)
    with pytest.raises(
        ConfigError, match="certificate: other brokers would refuse this broker: its certificate has expired"
    ):
        asyncio.run(run(load(network.config("solo-1")), asyncio.Event()))


def test_between_two_lives_a_broker_can_be_found_and_its_old_store_is_let_go(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `parley down` finds it, and although something that is garbage still scans the old store."""
    config = load(network.config("solo-1"))
    lives: list[int] = []

    def start(driver: Driver) -> None:
        lives.append(len(lives))
        if len(lives) > 1:
            stop.set()
            return
        scan = driver._storage.store.scan(b"")
        garbage: list[object] = [scan, next(scan)]
        garbage.append(garbage)
        driver._on_restart("test")

    def closed(storage: Storage) -> None:
        found.append({name: (config.directory / name).exists() for name in ("pid", "address")})
        close(storage)

    found: list[dict[str, bool]] = []
    close = Storage.close
    stop = asyncio.Event()
    monkeypatch.setattr(Driver, "start", start)
    monkeypatch.setattr(Storage, "close", closed)
    gc.disable()  # it must not depend on when that runs by itself
    try:
        assert asyncio.run(run(config, stop)) == 0
    finally:
        gc.enable()
    assert found == [{"pid": True, "address": True}, {"pid": False, "address": False}]


def test_what_is_there_at_the_start_of_a_life_is_not_collected_until_its_end(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_driver: Driver) -> None:
        frozen.append(gc.get_freeze_count())
        stop.set()

    frozen: list[int] = []
    stop = asyncio.Event()
    monkeypatch.setattr(Driver, "start", start)
    assert asyncio.run(run(load(network.config("solo-1")), stop)) == 0
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0


def test_a_broker_whose_disk_fails_ends_and_says_so(network: OneBroker) -> None:
    command = [sys.executable, "-m", "parley.node", str(network.config("solo-1"))]
    process = subprocess.Popen(command)
    little = 3 * 1024 * 1024  # for a file; the log of the store needs more
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (little, little))

    async def story() -> None:
        stream = await reach(network, "solo-1")
        admin = await authenticated(network, "solo-1", stream, network.identity("solo", "admin"))
        for id_ in range(6):
            large = admin.publication("t", message(bytes(MAX_BATCH_BYTES - 1_000)))
            admin.send(net.Submit(id_, large[1]))
        async with asyncio.timeout(SECONDS):
            while await stream.read() is not None:
                pass
        await stream.wait_closed()

    try:
        asyncio.run(story())
        assert process.wait(SECONDS) == 1
    finally:
        process.kill()
        process.wait()
    events = [line["event"] for line in network.log("solo-1")]
    assert "failed" in events
    assert events[-1] == "stopped"


def test_a_start_is_logged_with_the_version(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            await close(await connected(network, "admin"))

    asyncio.run(story())
    (started,) = [line for line in network.log("solo-1") if line["event"] == "started"]
    assert started["version"] == parley.__version__


@pytest.mark.parametrize("broken", ["listen", "genesis"])
def test_a_start_that_fails_is_logged_wherever_the_log_can_be_opened(
    network: OneBroker, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = network.config("solo-1")
    with socket.create_server(("127.0.0.1", int(network.addresses[0].rpartition(":")[2]))):
        if broken == "genesis":
            path.write_text(
                re.sub(r"^genesis = .*$", 'genesis = "nowhere"', path.read_text(), flags=re.MULTILINE)
            )
        assert main([str(path)]) == 2
    last = network.log("solo-1")[-1]
    assert (last["event"], last["level"]) == ("start_failed", "critical")
    assert (last["broker"], last["version"]) == ("solo-1", parley.__version__)
    assert f"parley: {last['why']}" in capsys.readouterr().err
    assert ("cannot listen" if broken == "listen" else "genesis: ") in str(last["why"])
