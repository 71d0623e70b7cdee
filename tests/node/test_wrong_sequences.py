"""One client sends many small batches with a wrong sequence, each in a session of its own, and leaves.

They are ordered again and again, and each time their receipts move on. A search for damage that compared each of them
with all others would hold the loop of every broker for good, also after a restart.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.node.network import LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration
from tests.node.watching import SETTINGS, Scrape, address_of, until

from parley.model.batches import FORMAT, PUBLISH, BatchHeader, sign_batch
from parley.model.receipts import Done
from parley.modules.publishing.receipts import Published
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net

COUNT = 80  # of 4 000 with which all brokers stopped for good
AT_A_TIME = 50
TOPIC, ENTRY, SEARCHED = "wards", "alpha-1", "beta-1"


def wrong(author: RawClient) -> bytes:
    """A batch of one byte, the eighth of a session that has no other."""
    chain, key = author.trust.genesis.chain, author.identity.credential.key
    header = BatchHeader(
        FORMAT, chain, 0, PUBLISH, TOPIC, author.topic_id(TOPIC), 0, key, os.urandom(16), 7, 1, 50_000
    )
    return sign_batch(header, (message(b"x"),), author.identity.key())[1]


async def attack(network: LocalNetwork, count: int) -> None:
    async with client(network, ENTRY, "alpha", "alice") as mallory:
        for start in range(0, count, AT_A_TIME):
            group = range(start, min(count, start + AT_A_TIME))
            for _ in group:
                mallory.send(net.Submit(mallory.new_id(), wrong(mallory)))
            for _ in group:
                await mallory.receive(net.Receipted)


async def furnish(network: LocalNetwork) -> None:
    for organisation in ("alpha", "beta"):
        async with client(network, ENTRY, organisation, "admin") as admin:
            receipt = await admin.operate(registration(network.identity(organisation, "alice")))
            assert receipt.outcome == Done()
    async with client(network, ENTRY, "alpha", "admin") as admin:
        assert (await admin.operate(CreateTopic(TOPIC, 1, Policy(), "", ""))).outcome == Done()


async def publishes(network: LocalNetwork, broker: str) -> None:
    async with client(network, broker, "beta", "alice") as bystander:
        receipt = await bystander.submit(bystander.publication(TOPIC, message(b"y")))
        assert isinstance(receipt.outcome, Published)


def test_batches_with_a_wrong_sequence_in_fresh_sessions_do_not_stop_the_brokers(tmp_path: Path) -> None:
    async def searched() -> Scrape:
        address = address_of(network, SEARCHED)
        name = "parley_scrub_passes_total"
        return Scrape(await until(lambda page: Scrape(page)(name, shard="0") > 0, address, "/metrics"))

    with LocalNetwork(tmp_path / "net", settings=SETTINGS) as network:
        network.start()
        asyncio.run(furnish(network))
        asyncio.run(attack(network, COUNT))
        # A broker that starts searches its store at once; others begin a pass every half a minute.
        assert network.stop(SEARCHED) == 0
        network.start(SEARCHED)
        asyncio.run(publishes(network, SEARCHED))
        scrape = asyncio.run(searched())
        assert scrape("parley_loop_held_max_seconds", job="scrub") > 0
        assert scrape("parley_block_execution_max_seconds") > 0
        assert scrape("parley_block_receipts_max_bytes") > 0
        asyncio.run(publishes(network, SEARCHED))
        assert not [line for name in network.names for line in network.log(name) if line["event"] == "damage"]
