"""Brokers die, come back and stop in order: the others go on, nothing certified is lost, no half disk is started from."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration

import parley
from parley.model.receipts import BatchReceipt, Done
from parley.modules.publishing.receipts import Published
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.node.provision import broker_directory


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("network") / "net") as network:
        network.start()
        yield network


def test_a_killed_broker_is_not_missed_and_catches_up(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "alpha", "admin") as admin:
            alice = network.identity("alpha", "alice")
            assert (await admin.operate(registration(alice))).outcome == Done()
            assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()
        network.kill("delta-1")
        async with client(network, "beta-1", "alpha", "alice") as publisher:
            batches = [publisher.publication("log", message(b"%d" % number)) for number in range(5)]
            for id_, (_, body) in enumerate(batches):
                publisher.send(net.Submit(id_, body))
            for _ in batches:
                answer = await publisher.receive(net.Receipted)
                receipt = publisher.receipt(answer, batches[answer.id][0])
                assert receipt.outcome == Published(answer.id)
        network.start("delta-1")
        async with client(network, "delta-1", "alpha", "alice") as reader:
            assert len(await patiently(reader, "log", count=5)) == 5

    asyncio.run(story())


def test_a_broker_that_is_told_to_stop_ends_well_and_keeps_everything(network: LocalNetwork) -> None:
    assert [network.stop(name) for name in network.names] == [0, 0, 0, 0]
    assert not (broker_directory(network.directory, "alpha-1") / "pid").exists()
    assert network.log("alpha-1")[-1]["event"] == "stopped"
    network.start()

    async def story() -> None:
        async with client(network, "gamma-1", "alpha", "alice") as reader:
            assert len(await patiently(reader, "log", count=5)) == 5

    asyncio.run(story())


def test_two_processes_never_run_as_one_broker(network: LocalNetwork) -> None:
    second = run_node(network, "alpha-1")
    assert second.returncode == 2
    assert "in use by another process" in second.stderr


def test_a_broker_does_not_start_without_its_safety_record(network: LocalNetwork) -> None:
    network.kill("beta-1")
    home = broker_directory(network.directory, "beta-1")
    record = home / "safety.record"
    record.rename(home / "elsewhere")
    ended = run_node(network, "beta-1")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "could sign twice" in ended.stderr
    (home / "elsewhere").rename(record)


def test_a_broker_does_not_start_without_its_data(network: LocalNetwork) -> None:
    network.kill("gamma-1")
    shutil.rmtree(broker_directory(network.directory, "gamma-1") / "data")
    ended = run_node(network, "gamma-1")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "has lost what it promised to keep" in ended.stderr


class Load:
    """Publishers that go on whatever happens, and what they were promised: a text is in `acknowledged` from the moment on
    at which a verified receipt was here.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: list[str] = []
        self.acknowledged: dict[str, int] = {}
        self._more = asyncio.Event()
        self._stop = False
        self._waiting: set[asyncio.Task[None]] = set()

    async def publish(self, client: parley.Client, name: str) -> None:
        async with client.publisher(self.topic, batch_size=5, linger=0.001, in_flight=8) as publisher:
            while not self._stop:
                text = f"{name} {len(self.sent)}"
                self.sent.append(text)
                waiting = asyncio.create_task(self._acknowledge(text, await publisher.send(text)))
                self._waiting.add(waiting)
                waiting.add_done_callback(self._waiting.discard)
            if self._waiting:
                await asyncio.wait(self._waiting)

    async def until_acknowledged(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        while len(self.acknowledged) < wanted:
            self._more.clear()
            await self._more.wait()

    def stop(self) -> None:
        self._stop = True

    async def _acknowledge(self, text: str, pending: parley.Pending) -> None:
        self.acknowledged[text] = (await pending).offset
        self._more.set()


def test_nothing_acknowledged_is_lost_or_doubled_when_all_brokers_are_killed_at_once(tmp_path: Path) -> None:
    async def story(network: LocalNetwork) -> None:
        async with client(network, "alpha-1", "alpha", "admin") as admin:
            for name in ("alice", "bob"):
                known = registration(network.identity("alpha", name))
                assert (await admin.operate(known)).outcome == Done()
            assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()
        load = Load("log")
        async with (
            connected(network, "alice") as alice,
            connected(network, "bob", "gamma-1", "beta-1") as bob,
        ):
            publishing = [asyncio.create_task(load.publish(one, one.name)) for one in (alice, bob)]
            for _ in range(2):
                await load.until_acknowledged(100)
                kill_all(network)
                in_flight = len(load.sent) - len(load.acknowledged)
                assert in_flight > 0
                network.start()
                await load.until_acknowledged(in_flight + 1)
            load.stop()
            await asyncio.gather(*publishing)
        # The publishers sent on what had no receipt: now everything has one.
        assert set(load.acknowledged) == set(load.sent)
        for broker in network.names:
            async with connected(network, "alice", broker) as reader:
                logged = {one.offset: one.text() async for one in reader.fetch("log")}
            assert Counter(logged.values()).most_common(1)[0][1] == 1
            assert {text: offset for offset, text in logged.items()} == load.acknowledged

    with LocalNetwork(tmp_path / "net", clients=("alice", "bob")) as whole:
        whole.start()
        asyncio.run(asyncio.wait_for(story(whole), 4 * SECONDS))


def connected(network: LocalNetwork, name: str, *brokers: str) -> parley.Client:
    """A client that waits for as long as it takes, of these brokers or of all."""
    identity = network.directory / "identities" / f"alpha-{name}.json"
    return parley.connect(directory=network.directory, identity=identity, brokers=list(brokers) or None)


def kill_all(network: LocalNetwork) -> None:
    """At once, as when the power of all fails."""
    for name in network.names:
        os.kill(network.pid(name), signal.SIGKILL)
    for name in network.names:
        network.kill(name)


def run_node(network: LocalNetwork, broker: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parley.node", str(network.config(broker))]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


async def patiently(reader: RawClient, topic: str, *, count: int) -> list[BatchReceipt]:
    """The proven receipts of a topic, from a broker that may still be catching up and says so."""
    async with asyncio.timeout(SECONDS):
        while True:
            answer = await reader.ask(net.Fetch(reader.new_id(), topic, 0, count - 1, 1_000, 1_000), object)
            if isinstance(answer, net.Fetched) and answer.blocks:
                break
            await asyncio.sleep(0.05)
    fetched = await reader.fetch(topic, 0)
    certified = reader.trust.certified(fetched.anchor)
    leaves = [leaf for block in fetched.blocks for leaf in certified.leaves(block.proof)]
    return [leaf for leaf in leaves if isinstance(leaf, BatchReceipt)]
