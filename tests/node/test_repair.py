"""Damage on a real broker's disk: entries are mended while it runs, and a damaged file stops it with advice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import parley
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client, message, registration
from tests.replica.care import flipped

from parley.application.keeping import RECEIPTS
from parley.crypto.encoding import u64
from parley.ledger import layout, state_map
from parley.model.receipts import Done
from parley.modules.publishing.tables import OFFSETS
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.subscriptions.tables import ORDER_LEAVES
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.node.provision import broker_directory
from parley.replica.chain import Chain
from parley.store.disk import open_store
from parley.store.errors import StoreFailed
from parley.store.interface import Store

DAMAGED = "delta-1"
MENDING_SECONDS = 30.0
# Kinds of which the broker has none now, or none that stays until it is looked at.
GARBAGE = [
    layout.uncommitted(bytes(32)),
    layout.waiting(bytes(32)),
    layout.erased(bytes(32)),
    layout.evidence(1, 2),
    layout.JOINS,
]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """One with a history of every kind."""
    with LocalNetwork(tmp_path_factory.mktemp("network") / "net") as network:
        network.start()
        asyncio.run(history(network))
        yield network


async def history(network: LocalNetwork) -> None:
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        alice = network.identity("alpha", "alice")
        assert (await admin.operate(registration(alice))).outcome == Done()
        assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()
    async with client(network, DAMAGED, "alpha", "alice") as publisher:
        await publisher.operate(Subscribe("log", "n == 1", publisher.topic_id("log")))
        for number in range(3):
            name, body = publisher.publication("log", message(b"%d" % number, n=1))
            publisher.send(net.Submit(number, body))
            publisher.receipt(await publisher.receive(net.Receipted), name)


def data(network: LocalNetwork) -> Path:
    return broker_directory(network.directory, DAMAGED) / "data"


def first(store: Store, prefix: bytes) -> bytes:
    return next(key for key, _ in store.scan(prefix))


def victims(store: Store, network: LocalNetwork) -> list[bytes]:
    """An entry of each kind; none that lies below another, and none that a broker cannot start without."""
    chain = Chain(store)
    block = next(b for h in range(1, chain.head().height) if (b := chain.block(h)) and b.batches)
    client_entry = CLIENTS.key(network.identity("alpha", "alice").key().public)
    way = state_map.path_of(client_entry)
    node = next(key for key, _ in store.scan(layout.NODE) if not way.startswith(key[len(layout.NODE) :]))
    return [
        layout.committed(block.height),
        layout.receipts(block.height + 1),
        layout.history_node(0, block.height + 2),
        layout.history_node(1, 0),
        layout.roots(block.header.executed_height),
        layout.batch(block.batches[0]),
        layout.state(client_entry),
        node,
        *(first(store, layout.APPLICATION + table.places()) for table in (RECEIPTS, OFFSETS, ORDER_LEAVES)),
    ]


def test_a_changed_byte_in_each_kind_of_entry_is_found_and_mended_by_a_running_broker(
    network: LocalNetwork, tmp_path: Path
) -> None:
    assert network.stop(DAMAGED) == 0
    with open_store(data(network), create=False) as store:
        keys = victims(store, network)
        changed = [(key, flipped(store.get(key) or b"", -1)) for key in keys]
        store.write([*changed, *((key, b"garbage") for key in GARBAGE)], sync=True)
    found = parley(
        "audit", "verify", "--dir", network.directory, "--broker", DAMAGED, "--json", home=tmp_path, code=1
    )
    assert '"first_fault":"entry ' in found.out
    network.start(DAMAGED)
    expected = {layout.name(key) for key in (*keys, *GARBAGE)}
    missing = wait_for_mending(network, expected)
    assert not missing, f"not mended within {MENDING_SECONDS} s: {missing}"
    told = asyncio.run(damage(network))
    shown = {layout.without_key(name) for name in expected}
    assert all(any(one.startswith(f"{name} ") for one in told) for name in shown), told
    assert not any(name in one for one in told for name in expected - shown), "keys are in the log only"
    assert network.stop(DAMAGED) == 0
    result = parley(
        "audit", "verify", "--dir", network.directory, "--broker", DAMAGED, "--json", home=tmp_path
    ).json()
    assert (result["valid"], result["replayed"], result["publications"]) == (True, True, 3)


async def damage(network: LocalNetwork) -> list[str]:
    """What the broker's status says was mended."""
    async with client(network, DAMAGED, "alpha", "alice") as asker:
        asker.send(net.StatusRequest(1))
        return [told for told in (await asker.receive(net.Status)).damage if told.endswith("; mended")]


def wait_for_mending(network: LocalNetwork, expected: set[str]) -> set[str]:
    deadline = time.monotonic() + MENDING_SECONDS
    while True:
        events = [event for event in network.log(DAMAGED) if event["event"] == "damage"]
        told = {str(event["entry"]) for event in events if not event["mended"]}
        mended = {str(event["entry"]) for event in events if event["mended"]}
        missing = expected - (told & mended)
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.2)


def test_while_history_is_filled_in_readers_are_sent_elsewhere(network: LocalNetwork) -> None:
    """A mark above all records makes the broker look at them again; while it stands nothing old is served."""
    if network.is_running(DAMAGED):
        assert network.stop(DAMAGED) == 0
    with open_store(data(network), create=False) as store:
        height = Chain(store).head().height
        for prefix in (b"e/", b"h/"):
            store.write([(key, None) for key, _ in store.scan(prefix)], sync=False)
        store.write([(layout.BACKFILL, u64(height + 1))], sync=True)
    for name in network.names:  # nobody to ask: it stays as it is
        if name != DAMAGED:
            network.stop(name)
    network.start(DAMAGED)

    async def story() -> tuple[str, str]:
        async with client(network, DAMAGED, "alpha", "alice") as asker:
            asker.send(net.StatusRequest(1))
            state = (await asker.receive(net.Status)).state
            asker.send(net.Fetch(2, "log", 0, 0, 1_000, 0))
            return state, (await asker.receive(net.Failure)).detail

    state, detail = asyncio.run(story())
    assert state == "rebuilding"
    assert "filling in its history" in detail
    network.start(*(name for name in network.names if name != DAMAGED))

    async def later() -> None:
        async with client(network, DAMAGED, "alpha", "alice") as asker, asyncio.timeout(SECONDS):
            while True:
                asker.send(net.StatusRequest(asker.new_id()))
                if (await asker.receive(net.Status)).state == "ready":
                    return
                await asyncio.sleep(0.2)

    asyncio.run(later())


def test_a_damaged_file_of_the_store_is_named_with_what_to_do(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with open_store(place, create=True) as store:
        store.write([(b"c/%06d" % number, bytes(500)) for number in range(40_000)], sync=True)
    tables = sorted(place.glob("*.sst"), key=lambda path: path.stat().st_size)
    assert tables, "or nothing but the log was written"
    content = bytearray(tables[-1].read_bytes())
    content[len(content) // 2] ^= 1
    tables[-1].write_bytes(content)
    with (
        pytest.raises(StoreFailed, match="parley node recover") as failed,
        open_store(place, create=False) as store,
    ):
        list(store.scan(b"c/"))
    assert str(place) in str(failed.value)
