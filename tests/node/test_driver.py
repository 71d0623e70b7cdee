"""Effects are executed in order, and what clients submit leaves the broker only after it is on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.node.network import SECONDS
from tests.node.raw_client import message

from parley.consensus.errors import Reason
from parley.consensus.record import encode_record
from parley.crypto import ed25519
from parley.crypto.qc import Ed25519List, Ed25519Signer
from parley.ledger import layout
from parley.ledger.store import StoreFailed
from parley.mempool.messages import BatchMessage
from parley.model.batches import FORMAT, PUBLISH, BatchHeader, sign_batch
from parley.node.clock import WallClock
from parley.node.config import Config, load
from parley.node.driver import Driver
from parley.node.feed import Feed
from parley.node.logs import open_log
from parley.node.provision import broker_directory, provision_network
from parley.node.storage import Storage, open_storage, replica_config
from parley.pubsub.application import PubSub
from parley.replica import wire
from parley.replica.ports import PersistSafety, Write
from parley.replica.replica import Replica


class Recorded:
    """Links to nowhere that remember which batches should have gone there."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.got_batch = asyncio.Event()

    def send(self, to: int, data: bytes) -> None:
        assert 0 <= to < 4
        self.broadcast(data)

    def broadcast(self, data: bytes) -> None:
        sent = wire.decode(data)
        if isinstance(sent, BatchMessage):
            self.batches.append(sent.data)
            self.got_batch.set()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    directory = tmp_path / "net"
    now = int(time.time() * 1_000)
    provision_network(directory, organisations=("a", "b", "c", "d"), network="n", start_time=now)
    return load(broker_directory(directory, "d-1") / "broker.toml")


def make(
    config: Config, closing: ExitStack, blame: Callable[[int, Reason], None] = lambda _sender, _reason: None
) -> tuple[Driver, Storage, Recorded]:
    links = Recorded()
    log, file = open_log(config)
    closing.callback(file.close)
    storage = open_storage(config)
    closing.callback(storage.close)
    replica = Replica(
        replica_config(config),
        Ed25519Signer(config.index, config.consensus_key),
        Ed25519List([broker.key for broker in config.genesis.brokers]),
        PubSub(config.genesis),
        record=storage.record,
        store=storage.store,
    )
    driver = Driver(
        replica,
        storage,
        feed=Feed(),
        links=links,
        log=log,
        now=WallClock(),
        blame=blame,
        seen=lambda _certified: None,
    )
    return driver, storage, links


def batch(config: Config, sequence: int) -> tuple[bytes, bytes]:
    key = ed25519.SecretKey.from_seed(bytes(32))
    header = BatchHeader(
        FORMAT, config.genesis.chain, PUBLISH, "t", 0, key.public, bytes(16), sequence, 1, 100
    )
    return sign_batch(header, (message(b"x"),), key)


def test_submitted_batches_are_stored_at_once_and_announced_together_after_one_sync(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, links = make(config, closing)
            driver.start()
            batches = [batch(config, sequence) for sequence in range(3)]
            for name, body in batches:
                assert driver.submit(body) is None
                assert storage.store.get(layout.batch(name)) == body
            assert links.batches == []
            async with asyncio.timeout(SECONDS):
                await links.got_batch.wait()
            assert links.batches == [body for _, body in batches]
            refused = driver.submit(batches[0][1])
            assert refused is not None
            assert refused.reason is Reason.REPLAYED
            driver.stop()
            stopping = driver.submit(batch(config, 4)[1])
            assert stopping is not None
            assert stopping.reason is Reason.HALTED

    asyncio.run(story())


def test_nothing_leaves_a_broker_whose_disk_has_failed(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, links = make(config, closing)
            driver.start()
            assert driver.submit(batch(config, 0)[1]) is None
            storage.store.close()
            async with asyncio.timeout(SECONDS):
                with pytest.raises(StoreFailed):
                    await driver.failure
            assert links.batches == []
            assert driver.submit(batch(config, 1)[1]) is not None

    asyncio.run(story())


def test_whoever_sends_what_is_refused_is_named(config: Config) -> None:
    async def story() -> None:
        blamed: list[tuple[int, Reason]] = []
        with ExitStack() as closing:
            driver, _, _ = make(config, closing, lambda sender, reason: blamed.append((sender, reason)))
            driver.receive(2, b"\xc1")
            assert blamed == [(2, Reason.MALFORMED)]

    asyncio.run(story())


def test_time_never_goes_back() -> None:
    now = WallClock()
    times = [now() for _ in range(1_000)]
    assert times == sorted(times)


def test_what_was_put_off_is_on_disk_before_anything_is_signed(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            synced: list[bool] = []
            driver._step(lambda: [Write(((b"k", b"v"),), sync=True)])
            assert driver._dirty
            assert storage.store.get(b"k") == b"v"
            number, state = storage.record
            driver._step(lambda: [PersistSafety(1, encode_record(number + 1, state))])
            synced.append(not driver._dirty)
            assert synced == [True]

    asyncio.run(story())
