"""Brokers die, come back and stop in order: the others go on, nothing certified is lost, no half disk is started from."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration

from parley.model.operations import CreateTopic, Policy
from parley.model.receipts import BatchReceipt, Done, Published
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
