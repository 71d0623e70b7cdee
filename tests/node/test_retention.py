"""What retention ends leaves the disks of real brokers, and what was proved before stays proved (P5, P21)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import reach

import parley
from parley.applications import application_of
from parley.ledger import layout
from parley.ledger.audit import verify_store
from parley.ledger.bodies import GRACE
from parley.ledger.erasure import check_remains
from parley.model.batches import batch_digest
from parley.model.genesis import Timeouts
from parley.modules.publishing.proof import check_publication, decode_publication
from parley.node.provision import broker_directory
from parley.store.disk import open_store

TIMEOUTS = Timeouts(view=1_000, longest_view=4_000, heartbeat=50, freshness=20_000)
SECRET = b"what nobody may find here"
RETENTION = 500  # ms
ROUNDS = 100  # blocks, at least 5 s: the brokers' keepers come by once a second


def test_bodies_go_with_salts_and_rules_and_saved_proofs_hold(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path / "net", timeouts=TIMEOUTS) as network:
        network.start()
        asyncio.run(publish_and_wait(network, tmp_path / "receipt.json"))
        network.stop_all()
        proof = decode_publication((tmp_path / "receipt.json").read_bytes())
        check_publication(proof, network.trust)
        assert proof.message is not None
        name = batch_digest(proof.batch, [proof.message.message.leaf()])
        mounted = application_of(network.genesis).mount(network.genesis)
        for broker in network.names:
            with open_store(broker_directory(network.directory, broker) / "data", create=False) as store:
                assert store.get(layout.batch(name)) is None
                remains = store.get(layout.erased(name)) or b""
                check_remains(remains, name, network.genesis.chain)
                assert not any(secret in remains for secret in (SECRET, proof.message.message.salt, b"role"))
                assert verify_store(store, network.genesis, mounted, shard=0).first_fault is None


async def publish_and_wait(network: LocalNetwork, receipt: Path) -> None:
    for broker in network.names:
        await (await reach(network, broker)).wait_closed()
    async with asyncio.timeout(SECONDS), connected(network, "admin") as admin:
        identity = network.identity("alpha", "alice")
        await admin.register_client(
            "alice", identity.credential.key, {"role": "nurse"}, proof=identity.proof()
        )
        await admin.create_topic("short", retention=RETENTION)
        async with connected(network, "alice") as alice:
            published = await alice.publish("short", SECRET, rule='role == "nurse"')
            published.save(receipt)
            while (await admin.topic("short")).heads[0].start == 0:  # noqa: ASYNC110 - block time passes
                await asyncio.sleep(0.1)
            with pytest.raises(parley.Pruned):
                await alice.read("short", 0)
            await all_reach(admin, alice.height + GRACE + ROUNDS)


async def all_reach(admin: parley.Client, height: int) -> None:
    while not all(one.status and one.status.height >= height for one in await admin.status()):  # noqa: ASYNC110 - brokers tell nobody
        await asyncio.sleep(0.2)


def connected(network: LocalNetwork, name: str) -> parley.Client:
    path = network.directory / "identities" / f"alpha-{name}.json"
    return parley.connect(directory=network.directory, identity=path, timeout=SECONDS)
