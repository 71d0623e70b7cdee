"""Subscribers that stop reading: their brokers' memory stays bounded, nobody else notices, and they miss nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, registration
from tests.node.test_crashes import connected

import parley
from parley.client.connection import CREDIT
from parley.model.receipts import Done
from parley.modules.subscriptions.receipts import Match
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net

MESSAGES = 8_000
SIZE = 10_000
CLIENTS = ("alice", "bob", "carol", "dave")


async def furnish(network: LocalNetwork) -> None:
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        for name in CLIENTS:
            known = registration(network.identity("alpha", name))
            assert (await admin.operate(known)).outcome == Done()
        assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()


async def publish(publisher: parley.Client) -> None:
    """Wait for all receipts, too."""
    async with publisher.publisher("log", batch_size=50, in_flight=4) as sending:
        for at in range(MESSAGES):
            await sending.send(str(at).ljust(SIZE))


async def opened(reader: RawClient) -> None:
    """A stream with so much credit that nothing but the reader holds it up."""
    constraint, position = await reader.subscribe("log", "true")
    reader.stream.limit = 2 * net.MAX_ANSWER
    reader.send(net.OpenStream(reader.new_id(), "log", constraint, (position,), MESSAGES))


async def offsets(reader: RawClient) -> list[int]:
    """All that the stream brings, each proved."""
    found: list[int] = []
    while len(found) < MESSAGES:
        answer = await reader.receive(object)
        assert isinstance(answer, net.Delivery | net.Head), answer
        if isinstance(answer, net.Delivery):
            certified = reader.trust.certified(answer.anchor)
            leaves = [certified.leaves(block.proof)[-1] for block in answer.blocks]
            found += [offset for leaf in leaves if isinstance(leaf, Match) for offset, _ in leaf.items]
    return found


async def story(network: LocalNetwork) -> None:
    await furnish(network)
    async with (
        connected(network, "alice", "alpha-1") as alice,
        connected(network, "bob", "alpha-1") as bob,
        connected(network, "carol", "beta-1") as carol,
        client(network, "gamma-1", "alpha", "dave") as dave,
        bob.subscribe("log") as eager,
        carol.subscribe("log") as slow,
    ):
        await opened(dave)
        before = {name: network.memory(name) for name in network.names}
        publishing = asyncio.create_task(publish(alice))
        # Whoever reads gets everything while one takes nothing from its client, and one nothing from its socket.
        got = [(await anext(eager)).offset for _ in range(MESSAGES)]
        await publishing
        assert got == list(range(MESSAGES))
        grown = {name: network.memory(name) - before[name] for name in network.names}
        # Their brokers hold hardly more than the one that serves nobody: what is not asked for is not read from disk.
        for name in ("beta-1", "gamma-1"):
            assert grown[name] - grown["delta-1"] < MESSAGES * SIZE // 2, (name, grown)
        assert slow.waiting <= CREDIT
        assert [(await anext(slow)).offset for _ in range(MESSAGES)] == got
        assert await offsets(dave) == got
        assert alice.misbehaviour == bob.misbehaviour == carol.misbehaviour == ()


def test_subscribers_that_stop_reading_hold_up_nobody_and_miss_nothing(tmp_path: Path) -> None:
    # A small cache: what RocksDB keeps in memory is bounded elsewhere, and would hide what is measured here.
    settings = "[limits]\nunread_seconds = 600\n[storage]\ncache_bytes = 4194304\n"
    with LocalNetwork(tmp_path / "net", clients=CLIENTS, settings=settings) as network:
        network.start()
        asyncio.run(asyncio.wait_for(story(network), 4 * SECONDS))
