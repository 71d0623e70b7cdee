"""Batches that are ordered in vain: they stop, whoever sent them, and nobody has to clean up after them."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace
from tests.node.network import TIMEOUTS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration
from tests.node.test_metrics import scrape
from tests.node.watching import SETTINGS, Scrape, address_of, until

from parley.ledger.layout import StoredBlock
from parley.mempool.turns import FIRST_HOLD, MAX_EARLY
from parley.model.batches import PUBLISH
from parley.model.receipts import Rejected
from parley.model.refusals import OutOfSequence
from parley.modules.registry.operations import GrantRight
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net

HEARTBEAT = 50
BATCHES = 100
# Heights: all holds, and the way to execution after each.
OVER = (FIRST_HOLD << MAX_EARLY - 1) + 5 * MAX_EARLY
QUIET = 30  # heights


def test_after_a_sender_of_wrong_sequences_has_left_receipts_end_and_blocks_come_by_heartbeat(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        await _furnish(network)
        async with client(network, "alpha-1", "alpha", "mallory") as mallory:
            names = await _send_wrong_sequences(mallory)
        left = int((await scrape(network, "beta-1"))("parley_executed_height", shard="0"))
        await _reached(network, left + OVER)
        before = [await scrape(network, name) for name in network.names]
        assert [one("parley_mempool_batches", shard="0") for one in before] == [0, 0, 0, 0]
        assert all(BATCHES <= _in_vain(one) <= 2 * MAX_EARLY * BATCHES for one in before)
        quiet = int(max(one("parley_executed_height", shard="0") for one in before))
        await _reached(network, quiet + QUIET)
        after = [await scrape(network, name) for name in network.names]
        assert list(map(_in_vain, after)) == list(map(_in_vain, before))
        async with client(network, "gamma-1", "alpha", "alice") as alice:
            blocks = await _blocks(alice, quiet, QUIET - 5)
            assert not any(block.batches for block in blocks)
            assert all(later.header.time - one.header.time >= HEARTBEAT for one, later in pairwise(blocks))
            # What was given up may come again: nothing was decided, and nothing is in its way.
            receipt = await alice.submit(alice.publication("news", message(b"all is well")))
            assert receipt.is_done
        async with client(network, "delta-1", "alpha", "mallory") as mallory:
            mallory.send(net.Submit(1, names[0][1]))
            again = mallory.receipt(await mallory.receive(net.Receipted), names[0][0])
            assert isinstance(again.outcome, Rejected)
            assert again.outcome.code == OutOfSequence.code

    with LocalNetwork(
        tmp_path / "net",
        clients=("alice", "mallory"),
        timeouts=replace(TIMEOUTS, heartbeat=HEARTBEAT),
        settings=SETTINGS,
        auditors=("alpha",),
    ) as network:
        network.start()
        asyncio.run(story())


async def _furnish(network: LocalNetwork) -> None:
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        for name in ("alice", "mallory"):
            await admin.operate(registration(network.identity("alpha", name)))
        await admin.operate(GrantRight("alice", "auditor"))
        await admin.operate(CreateTopic("news", 1, Policy(), "", ""))


async def _send_wrong_sequences(mallory: RawClient) -> list[tuple[bytes, bytes]]:
    """One batch in each of many sessions, with nothing before it. All have a receipt when this ends."""
    batches = []
    for number in range(BATCHES):
        mallory._session = os.urandom(16)
        mallory._sequences[PUBLISH, "news", 0] = 5
        batches.append(mallory.publication("news", message(b"gap")))
        mallory.send(net.Submit(number, batches[-1][1]))
    for _ in batches:
        await mallory.receive(net.Receipted)
    return batches


def _in_vain(numbers: Scrape) -> float:
    return numbers("parley_batches_total", result=OutOfSequence.code)


async def _reached(network: LocalNetwork, height: int) -> None:
    for name in network.names:
        await until(
            lambda page: Scrape(page)("parley_executed_height", shard="0") >= height,
            address_of(network, name),
            "/metrics",
        )


async def _blocks(auditor: RawClient, first: int, count: int) -> list[StoredBlock]:
    found: list[StoredBlock] = []
    while len(found) < count:
        question = net.ReadBlocks(auditor.new_id(), first + len(found), 1_000_000, bodies=False)
        found += [raw.block for raw in (await auditor.ask(question, net.Blocks)).blocks]
    return found[:count]
