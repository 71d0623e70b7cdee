"""Raw blocks from real brokers: all of them to auditors, none to anybody else, and nothing from a broker that lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from tests.client.test_network import connected, play, register
from tests.node.network import LocalNetwork

import parley
from parley.applications import DATA_SHARD
from parley.client.client import Client
from parley.client.ledger import VerifiedBlock
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.receipts import Published
from parley.modules.registry.operations import GrantRight
from parley.node.admin.client import set_faults

SECONDS = 60.0
LIAR = "beta-1"
HONEST = ("alpha-1", "gamma-1", "delta-1")
TEXTS = [f"number {number}" for number in range(5)]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory = tmp_path_factory.mktemp("ledger") / "net"
    with LocalNetwork(directory, clients=("alice", "bob"), allow_faults=True, auditors=("alpha",)) as started:
        started.start()
        asyncio.run(_furnish(started))
        yield started


async def _furnish(network: LocalNetwork) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await _publish(network)
            except parley.Unreachable:
                assert all(map(network.is_running, network.names)), "a broker did not start"
                await asyncio.sleep(0.1)


async def _publish(network: LocalNetwork) -> None:
    """Alice of alpha and Bob of beta are clients; Bob publishes what only he may read."""
    async with connected(network, "alpha", "admin") as admin, connected(network, "beta", "admin") as other:
        for by, organisation, name in (
            (admin, "alpha", "alice"),
            (admin, "alpha", "bob"),
            (other, "beta", "bob"),
        ):
            await register(by, network.identity(organisation, name))
        await other.create_topic("secret", subscribe='client == "bob" and org == "beta"')
    async with connected(network, "beta", "bob") as bob:
        for text in TEXTS:
            await bob.publish("secret", text, rule='client == "bob"')


async def everything(client: Client) -> list[VerifiedBlock]:
    found: list[VerifiedBlock] = []
    head = await client.certified_height()
    while len(found) < head.height:
        found += await client.blocks(len(found) + 1, max_bytes=64 * 1024)
    return found[: head.height]


def published(blocks: list[VerifiedBlock]) -> list[str]:
    """The texts in the order of their offsets."""
    found: dict[int, str] = {}
    for block in blocks:
        bodies = dict(zip(block.batches, block.opened, strict=True))
        for leaf in block.leaves:
            if isinstance(leaf, BatchReceipt) and isinstance(leaf.outcome, Published):
                batch = bodies[leaf.digest]
                assert batch is not None
                for place, message in enumerate(batch.messages):
                    found[leaf.outcome.first_offset + place] = message.payload.decode()
    return [found[offset] for offset in sorted(found)]


@asynccontextmanager
async def lying(network: LocalNetwork, fault: str) -> AsyncIterator[None]:
    await _switch(network, (fault,))
    try:
        yield
    finally:
        await _switch(network, ())


async def _switch(network: LocalNetwork, faults: tuple[str, ...]) -> None:
    await asyncio.to_thread(set_faults, network.config(LIAR).parent, faults)


def test_an_administrator_of_an_auditing_organisation_reads_the_whole_ledger(network: LocalNetwork) -> None:
    async def story() -> None:
        async with connected(network, "alpha", "admin") as admin:
            blocks = await everything(admin)
            assert [block.height for block in blocks] == list(range(1, len(blocks) + 1))
            assert all(above.header.parent == below.id for below, above in pairwise(blocks))
            assert published(blocks) == TEXTS
            assert admin.misbehaviour == ()
            assert await admin.blocks(2**60) == []

    play(story)


def test_whoever_is_no_auditor_gets_no_block_and_still_reads_what_is_its_own(network: LocalNetwork) -> None:
    async def story() -> None:
        for organisation, name in (("alpha", "bob"), ("beta", "bob"), ("beta", "admin")):
            async with connected(network, organisation, name) as client:
                with pytest.raises(parley.PermissionDenied, match="raw blocks are shown to auditors only"):
                    await client.blocks(1)
                with pytest.raises(parley.PermissionDenied, match="raw blocks are shown to auditors only"):
                    await client.evidence()
                assert (await client.certified_height()).height > 0
        async with connected(network, "beta", "bob") as bob:
            assert [message.text() async for message in bob.fetch("secret")] == TEXTS

    play(story)


def test_a_right_is_granted_used_and_taken_back(network: LocalNetwork) -> None:
    async def story() -> None:
        async with (
            connected(network, "alpha", "admin") as admin,
            connected(network, "alpha", "alice") as alice,
        ):
            height = await admin.grant_right("alice")
            assert (await admin.client_record("alice")).rights == ("auditor",)
            (block,) = await alice.blocks(height, max_bytes=1)
            (batch,) = [opened for opened in block.opened if opened is not None]
            assert DATA_SHARD.decode_operation(batch.messages[0].payload) == GrantRight("alice", "auditor")
            assert await alice.evidence() == []
            await admin.revoke_right("alice")
            assert (await admin.client_record("alice")).rights == ()
            with pytest.raises(parley.PermissionDenied):
                await alice.blocks(height)

    play(story)


def test_an_organisation_without_the_right_cannot_grant_it(network: LocalNetwork) -> None:
    async def story() -> None:
        async with connected(network, "beta", "admin") as admin:
            with pytest.raises(parley.PermissionDenied, match="the genesis file does not give it to beta"):
                await admin.grant_right("bob")

    play(story)


@pytest.mark.parametrize("fault", ["forge", "lie", "withhold"])
def test_a_lying_broker_is_caught_and_the_ledger_is_read_from_others(
    network: LocalNetwork, fault: str
) -> None:
    async def story() -> None:
        async with (
            lying(network, fault),
            connected(network, "alpha", "admin", brokers=(LIAR, *HONEST)) as admin,
        ):
            found: list[VerifiedBlock] = []
            while published(found) != TEXTS:
                found += await admin.blocks(len(found) + 1)
            assert {lie.broker for lie in admin.misbehaviour} == {LIAR}

    play(story)


def test_a_reader_s_word_reaches_those_who_look_after_it_and_nobody_else(network: LocalNetwork) -> None:
    async def story() -> None:
        async with connected(network, "beta", "bob") as bob:
            await bob.advise("vitals", "secret", {0: (3, 5)}, run="r1")
        for organisation, name, seen in (
            ("beta", "bob", True),
            ("beta", "admin", True),
            ("alpha", "admin", False),
            ("alpha", "bob", False),
        ):
            async with connected(network, organisation, name) as client:
                readers = client.readers(await client.status())
                told = [(one.reader, one.query, one.run, one.topic, one.lag) for one in readers]
                assert told == ([("beta/bob", "vitals", "r1", "secret", 2)] if seen else [])

    play(story)


def test_a_word_on_a_topic_that_one_may_not_read_is_refused(network: LocalNetwork) -> None:
    async def story() -> None:
        async with connected(network, "alpha", "bob") as bob:
            with pytest.raises(parley.PermissionDenied, match="rule 'subscribe' of topic secret"):
                await bob.advise("vitals", "secret", {0: (3, 5)})

    play(story)
