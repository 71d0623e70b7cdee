"""Effects are executed in order, and what clients submit leaves the broker only after it is on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.node.network import SECONDS
from tests.node.raw_client import message

from parley.consensus.errors import Reason
from parley.consensus.events import Heartbeat, ViewTimer
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
from parley.replica.ports import Broadcast, Effect, PersistSafety, Send, SetTimer, Write
from parley.replica.replica import Replica

RECORD = PersistSafety(0, b"")  # stands for a record that the broker's own follows
VOTE = Send(1, b"vote")


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


def test_only_the_heartbeats_of_the_first_blocks_are_short(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, _ = make(config, closing)
            heartbeat, view = SetTimer(Heartbeat(1), 1_000), SetTimer(ViewTimer(1, 0), 2_000)
            assert driver._delay(heartbeat) < 100
            assert driver._delay(SetTimer(Heartbeat(1), 1)) == 1
            assert driver._delay(view) == 2_000
            monkeypatch.setattr(Replica, "executed_height", 5)
            assert driver._delay(heartbeat) == 1_000

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


class Watched:
    """The store and the record of a broker, as a line of what was done to them; and links that are noted there as well."""

    def __init__(self, driver: Driver, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        write, sync, persist = storage.store.write, storage.store.sync, storage.safety.persist

        def watched_write(entries: Sequence[tuple[bytes, bytes | None]], *, sync: bool) -> None:
            assert not sync
            write(entries, sync=sync)
            self.done.append(b"".join(key for key, _ in entries).decode())

        def watched_sync() -> None:
            sync()
            self.done.append("sync")

        def watched_persist(slot: int, record: bytes) -> None:
            persist(slot, record)
            self.done.append("record")

        monkeypatch.setattr(storage.store, "write", watched_write)
        monkeypatch.setattr(storage.store, "sync", watched_sync)
        monkeypatch.setattr(storage.safety, "persist", watched_persist)
        monkeypatch.setattr(driver, "_links", self)

    def send(self, to: int, data: bytes) -> None:
        self.done.append(f"to {to}: {data.decode()}")

    def broadcast(self, data: bytes) -> None:
        self.done.append(f"to all: {data.decode()}")


def stored(key: bytes, *, sync: bool = True) -> Write:
    return Write(((key, b""),), sync=sync)


@pytest.mark.parametrize(
    ("effects", "done"),
    [
        ([stored(b"a"), stored(b"b"), RECORD], ["a", "b", "sync", "record"]),
        ([stored(b"a"), stored(b"b", sync=False), RECORD], ["a", "b", "sync", "record"]),
        ([stored(b"a", sync=False), stored(b"b"), RECORD], ["a", "b", "sync", "record"]),
        ([stored(b"a", sync=False), stored(b"b", sync=False), RECORD], ["a", "b", "record"]),
        ([stored(b"a"), RECORD, stored(b"b"), VOTE], ["a", "sync", "record", "b", "sync", "to 1: vote"]),
        ([stored(b"a"), RECORD, stored(b"b", sync=False), VOTE], ["a", "sync", "record", "b", "to 1: vote"]),
        ([RECORD, stored(b"a"), stored(b"b")], ["record", "a", "b", "sync"]),
        (
            [stored(b"a"), VOTE, stored(b"b"), stored(b"c"), RECORD],
            ["a", "sync", "to 1: vote", "b", "c", "sync", "record"],
        ),
        ([stored(b"a", sync=False)], ["a"]),
        ([], []),
    ],
)
def test_writes_in_a_row_are_waited_for_once_and_before_whatever_follows_them(
    config: Config, monkeypatch: pytest.MonkeyPatch, effects: list[Effect], done: list[str]
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            number, state = storage.record
            record = PersistSafety(1, encode_record(number + 1, state))
            watched = Watched(driver, storage, monkeypatch)
            driver._step(lambda: [record if effect is RECORD else effect for effect in effects])
            assert watched.done == done

    asyncio.run(story())


def test_what_was_put_off_is_announced_after_the_one_sync_of_a_row_of_writes(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            number, state = storage.record
            record = PersistSafety(1, encode_record(number + 1, state))
            watched = Watched(driver, storage, monkeypatch)
            driver._step(lambda: [stored(b"mine"), Broadcast(b"mine")])
            assert watched.done == ["mine"]
            driver._step(lambda: [stored(b"a"), stored(b"b"), record])
            assert watched.done == ["mine", "a", "b", "sync", "to all: mine", "record"]

    asyncio.run(story())


def test_several_messages_are_one_step_and_each_that_is_refused_is_counted_against_its_sender(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        blamed: list[tuple[int, Reason]] = []
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing, lambda sender, reason: blamed.append((sender, reason)))
            driver.start()
            steps: list[list[Effect] | None] = []
            step = driver._step

            def watched(action: Callable[[], list[Effect]]) -> list[Effect] | None:
                steps.append(step(action))
                return steps[-1]

            monkeypatch.setattr(driver, "_step", watched)
            (first, a), (second, b) = batch(config, 0), batch(config, 1)
            announced = [wire.encode(BatchMessage(body)) for body in (a, b, a)]
            driver.receive(2, announced[0], b"\xc1", *announced[1:])
            assert len(steps) == 1
            assert blamed == [(2, Reason.MALFORMED), (2, Reason.REPLAYED)]
            assert (storage.store.get(layout.batch(first)), storage.store.get(layout.batch(second))) == (a, b)

    asyncio.run(story())


def test_of_a_block_only_the_state_and_its_map_are_kept_as_they_were(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            height = storage.recent.lowest
            kept, node = layout.state(b"key"), layout.state_node(b"\1")
            others = [layout.HEAD, layout.receipts(1), layout.INDEX + b"x", layout.batch(bytes(32)), b"h/x"]
            first = [(kept, b"old"), (node, b"old"), *((key, b"old") for key in others)]
            driver._step(lambda: [Write(tuple(first), sync=True, applies=height + 1)])
            second = tuple((key, b"new") for key, _ in first)
            driver._step(lambda: [Write(second, sync=True, applies=height + 2)])
            assert storage.recent.replaced_after(height + 1) == {kept: b"old", node: b"old"}
            view = storage.recent.at(height + 1)
            assert (view.get(kept), view.get(node)) == (b"old", b"old")
            assert (storage.store.get(kept), storage.store.get(others[0])) == (b"new", b"new")

    asyncio.run(story())
