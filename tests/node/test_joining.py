"""A real broker whose disk lacks what a replica starts from joins by a certified snapshot, in the same process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client, message, registration

from parley.ledger import layout
from parley.model.receipts import Done
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.node.provision import broker_directory
from parley.store.disk import open_store
from parley.store.interface import Store

JOINING = "delta-1"


def test_a_broker_without_its_head_and_state_joins_while_the_others_go_on(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path / "net") as network:
        network.start()
        asyncio.run(history(network))
        assert network.stop(JOINING) == 0
        with opened(network) as store:
            gone = [key for prefix in (b"s/", b"m/", b"r/") for key, _ in store.scan(prefix)]
            store.write([(key, None) for key in gone], sync=True)
        network.start(JOINING)
        asyncio.run(until_it_takes_publications(network))
        assert network.stop(JOINING) == 0
        events = [event["event"] for event in network.log(JOINING)]
        assert "damage" in events
        assert "restarting" in events
        assert "failed" not in events
        with opened(network) as store:
            assert store.get(layout.JOINING) is None
            assert next(store.scan(layout.STATE), None) is not None


def opened(network: LocalNetwork) -> Store:
    return open_store(broker_directory(network.directory, JOINING) / "data", create=False)


async def history(network: LocalNetwork) -> None:
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        assert (await admin.operate(registration(network.identity("alpha", "alice")))).outcome == Done()
        assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()


async def until_it_takes_publications(network: LocalNetwork) -> None:
    """Through the broker that joins: it is refused until then, and what is taken is certified there."""
    async with asyncio.timeout(SECONDS):
        while not any(event["event"] == "restarting" for event in network.log(JOINING)):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        async with client(network, JOINING, "alpha", "alice") as publisher:
            name, body = publisher.publication("log", message(b"after"))
            publisher.send(net.Submit(1, body))
            publisher.receipt(await publisher.receive(net.Receipted), name)
            publisher.send(net.StatusRequest(2))
            assert (await publisher.receive(net.Status)).damage  # of the life before is still told
