"""Effects are executed in order, and what clients submit leaves the broker only after it is on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace
from tests.node.network import SECONDS
from tests.node.raw_client import message
from tests.replica.test_evidence import proposals, timeouts, votes

from parley.applications import application_of
from parley.consensus.errors import Reason
from parley.consensus.events import Heartbeat, ViewTimer
from parley.consensus.record import encode_record
from parley.consensus.types import Block, genesis_block
from parley.crypto import ed25519, merkle
from parley.crypto.qc import Ed25519Signer
from parley.ledger import layout
from parley.ledger.application import AdmittedBatch
from parley.ledger.layout import StoredBlock
from parley.mempool.messages import BatchMessage
from parley.mempool.pool import Intake
from parley.model.batches import FORMAT, PUBLISH, BatchHeader, sign_batch
from parley.model.receipts import BatchReceipt, Done, encode_leaf
from parley.node.archive import BLOCK_BUDGET, Archive
from parley.node.clock import WallClock
from parley.node.config import Config, load
from parley.node.driver import SLOW_DISK_MS, Driver
from parley.node.feed import Feed
from parley.node.logs import open_log
from parley.node.provision import broker_directory, provision_network
from parley.node.storage import Storage, open_storage, replica_config
from parley.replica import wire
from parley.replica.ports import (
    Applied,
    Broadcast,
    Effect,
    PersistSafety,
    Refused,
    Report,
    Restart,
    Send,
    SetTimer,
    ViewFailed,
    Write,
)
from parley.replica.replica import Replica
from parley.store.disk import open_store
from parley.store.errors import StoreFailed

RECORD = PersistSafety(0, b"")  # stands for a record that the broker's own follows
VOTE = Send(1, b"vote")


class Recorded:
    """Links to nowhere that remember which batches should have gone there."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.got_batch = asyncio.Event()
        self.blamed: list[tuple[int, Reason]] = []

    def send(self, to: int, data: bytes) -> None:
        assert 0 <= to < 4
        self.broadcast(data)

    def broadcast(self, data: bytes) -> None:
        sent = wire.decode(data)
        if isinstance(sent, BatchMessage):
            self.batches.append(sent.data)
            self.got_batch.set()

    def refused(self, member: int, reason: Reason, detail: str) -> None:  # noqa: ARG002
        self.blamed.append((member, reason))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    directory = tmp_path / "net"
    now = int(time.time() * 1_000)
    provision_network(directory, organisations=("a", "b", "c", "d"), network="n", start_time=now)
    return load(broker_directory(directory, "d-1") / "broker.toml")


def make(config: Config, closing: ExitStack) -> tuple[Driver, Storage, Recorded]:
    links = Recorded()
    log, file = open_log(config.log_place)
    closing.callback(file.close)
    storage = open_storage(config)
    closing.callback(storage.close)
    replica = Replica(
        replica_config(config),
        Ed25519Signer(config.index, config.consensus_key),
        config.committee.scheme,
        application_of(config.genesis).mount(config.genesis),
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
        names=config.committee.names,
    )
    return driver, storage, links


async def act(driver: Driver, *effects: Effect) -> None:
    """A step of the replica with these effects, to its end."""
    driver._step(lambda: list(effects))
    await driver.until_free()


def next_record(storage: Storage) -> PersistSafety:
    number, state = storage.record
    return PersistSafety(1, encode_record(number + 1, state))


def batch(config: Config, sequence: int) -> AdmittedBatch:
    key = ed25519.SecretKey.from_seed(bytes(32))
    header = BatchHeader(
        FORMAT, config.genesis.chain, 0, PUBLISH, "t", (0, 0), 0, key.public, bytes(16), sequence, 1, 100
    )
    digest, body = sign_batch(header, (message(b"x"),), key)
    return AdmittedBatch(digest, key.public, body)


def test_submitted_batches_are_stored_at_once_and_announced_together_after_one_sync(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, links = make(config, closing)
            driver.start()
            await driver.until_free()
            batches = [batch(config, sequence) for sequence in range(3)]
            for one in batches:
                assert driver.submit(one) is Intake.TAKEN
                assert storage.store.get(layout.batch(one.digest)) == one.body
            assert links.batches == []
            async with asyncio.timeout(SECONDS):
                await links.got_batch.wait()
            assert links.batches == [one.body for one in batches]
            assert driver.submit(batches[0]) is Intake.KNOWN
            driver.stop()
            assert driver.submit(batch(config, 4)) is Intake.HALTED

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
            monkeypatch.setattr(driver.replica, "executed_height", 5)
            assert driver._delay(heartbeat) == 1_000

    asyncio.run(story())


def test_nothing_leaves_a_broker_whose_disk_has_failed(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, links = make(config, closing)
            driver.start()
            await driver.until_free()
            assert driver.submit(batch(config, 0)) is Intake.TAKEN
            storage.store.close()
            async with asyncio.timeout(SECONDS):
                with pytest.raises(StoreFailed):
                    await driver.failure
            assert links.batches == []
            assert driver.submit(batch(config, 1)) is Intake.HALTED

    asyncio.run(story())


def test_whoever_sends_what_is_refused_is_named(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, links = make(config, closing)
            await driver.receive(2, b"\xc1")
            assert links.blamed == [(2, Reason.MALFORMED)]

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
            driver._step(lambda: [Write(((b"k", b"v"),), sync=True, deferrable=True)])
            assert driver._dirty
            assert storage.store.get(b"k") == b"v"
            await act(driver, next_record(storage))
            synced.append(not driver._dirty)
            assert synced == [True]

    asyncio.run(story())


class Watched:
    """The store and the record of a broker, as a line of what was done to them; and links that are noted there as well."""

    def __init__(self, driver: Driver, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        write, sync, persist = storage.store.write, storage.store.sync_log, storage.safety.persist

        def watched_write(entries: Sequence[tuple[bytes, bytes | None]], *, sync: bool) -> None:
            assert not sync
            write(entries, sync=False)
            self.done.append(b"".join(key for key, _ in entries).decode())

        def watched_sync() -> None:
            sync()
            self.done.append("sync")

        def watched_persist(slot: int, record: bytes) -> None:
            persist(slot, record)
            self.done.append("record")

        monkeypatch.setattr(storage.store, "write", watched_write)
        monkeypatch.setattr(storage.store, "sync_log", watched_sync)
        monkeypatch.setattr(storage.safety, "persist", watched_persist)
        monkeypatch.setattr(driver, "_links", self)

    def send(self, to: int, data: bytes) -> None:
        self.done.append(f"to {to}: {data.decode()}")

    def broadcast(self, data: bytes) -> None:
        self.done.append(f"to all: {data.decode()}")


def stored(key: bytes, *, sync: bool = True, deferrable: bool = False) -> Write:
    return Write(((key, b""),), sync=sync, deferrable=deferrable)


MINE = stored(b"mine", deferrable=True)


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
            record = next_record(storage)
            watched = Watched(driver, storage, monkeypatch)
            await act(driver, *(record if effect is RECORD else effect for effect in effects))
            assert watched.done == done

    asyncio.run(story())


def test_what_was_put_off_is_announced_after_the_one_sync_of_a_row_of_writes(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            record = next_record(storage)
            watched = Watched(driver, storage, monkeypatch)
            await act(driver, stored(b"mine", deferrable=True), Broadcast(b"mine"))
            assert watched.done == ["mine"]
            await act(driver, stored(b"a"), stored(b"b"), record)
            assert watched.done == ["mine", "a", "b", "sync", "to all: mine", "record"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("effects", "done"),
    [
        ([MINE], ["mine"]),
        ([MINE, VOTE], ["mine"]),
        ([MINE, SetTimer(Heartbeat(1), 9_000), VOTE], ["mine"]),
        ([MINE, VOTE, RECORD], ["mine", "sync", "to 1: vote", "record"]),
        ([MINE, VOTE, stored(b"b"), RECORD], ["mine", "b", "sync", "to 1: vote", "record"]),
        ([MINE, stored(b"b"), VOTE], ["mine", "b", "sync", "to 1: vote"]),
        ([stored(b"b"), MINE, VOTE], ["b", "mine", "sync", "to 1: vote"]),
        ([MINE, VOTE, Refused(1, Reason.STALE, "")], ["mine", "sync", "to 1: vote"]),
        ([MINE, RECORD, VOTE], ["mine", "sync", "record", "to 1: vote"]),
    ],
)
def test_the_sync_of_a_batch_waits_for_others_only_if_nothing_but_messages_needs_it(
    config: Config, monkeypatch: pytest.MonkeyPatch, effects: list[Effect], done: list[str]
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            record = next_record(storage)
            watched = Watched(driver, storage, monkeypatch)
            await act(driver, *(record if effect is RECORD else effect for effect in effects))
            assert watched.done == done
            driver._sync_as_planned()
            await driver.until_free()
            assert sorted(watched.done) == sorted(
                {*done, "sync", *(["to 1: vote"] if VOTE in effects else [])}
            )

    asyncio.run(story())


def test_the_receipts_of_an_executed_block_are_handed_on_and_not_read_back(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            archive = Archive(storage.store, application_of(config.genesis))
            driver._archive = archive
            receipt = BatchReceipt(bytes(32), bytes(32), "", "t", (1, 0), 0, 1, Done())
            leaves = (encode_leaf(receipt), encode_leaf(receipt))
            first = genesis_block(replica_config(config).instance, bytes(32), 0)
            block = Block(replace(first.header, height=1), ())
            driver._step(lambda: [Applied(block, (), leaves, merkle.Tree(leaves))])
            assert storage.store.get(layout.receipts(1)) is None
            found = archive.block(1)
            assert (found.header, found.root, found.leaf(1)) == (block.header, merkle.root(leaves), receipt)

    asyncio.run(story())


def test_receipts_that_were_hashed_at_their_execution_are_not_hashed_again_for_a_reader(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "store", create=True) as store:
        archive = Archive(store, application_of(config.genesis))
        first = genesis_block(replica_config(config).instance, bytes(32), 0)
        block = Block(replace(first.header, height=1), ())
        leaves = (bytes(BLOCK_BUDGET), b"")  # too large to be kept
        written = (
            (layout.committed(1), msgspec.msgpack.encode(StoredBlock(block.header, ()))),
            (layout.receipts(1), msgspec.msgpack.encode(leaves)),
        )
        store.write(written, sync=False)
        tree = merkle.Tree(leaves)
        archive.applied(block, leaves, tree)
        monkeypatch.delattr(merkle, "leaf_hash")
        proof = archive.block(1).prove([1], merkle.Proof(0, 1, ()))
        assert (proof.receipts_root, proof.leaves) == (tree.root, (b"",))


def test_several_messages_are_one_step_and_each_that_is_refused_is_counted_against_its_sender(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, links = make(config, closing)
            driver.start()
            await driver.until_free()
            steps: list[bool] = []
            step = driver._step

            def watched(action: Callable[[], list[Effect]], job: str, what: object) -> bool:
                steps.append(step(action, job, what))
                return steps[-1]

            monkeypatch.setattr(driver, "_step", watched)
            first, second = batch(config, 0), batch(config, 1)
            announced = [wire.encode(BatchMessage(body)) for body in (first.body, second.body, first.body)]
            await driver.receive(2, announced[0], b"\xc1", *announced[1:])
            assert len(steps) == 1
            assert links.blamed == [(2, Reason.MALFORMED), (2, Reason.REPLAYED)]
            stored_bodies = [storage.store.get(layout.batch(one.digest)) for one in (first, second)]
            assert stored_bodies == [first.body, second.body]

    asyncio.run(story())


def test_of_a_block_only_the_state_and_its_map_are_kept_as_they_were(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, storage, _ = make(config, closing)
            height = storage.recent.lowest
            kept, node = layout.state(b"key"), layout.state_node(b"\1")
            others = [layout.HEAD, layout.receipts(1), layout.INDEX + b"x", layout.batch(bytes(32)), b"h/x"]
            first = [(kept, b"old"), (node, b"old"), *((key, b"old") for key in others)]
            await act(driver, Write(tuple(first), sync=True, applies=height + 1))
            second = tuple((key, b"new") for key, _ in first)
            await act(driver, Write(second, sync=True, applies=height + 2))
            assert storage.recent.replaced_after(height + 1) == {kept: b"old", node: b"old"}
            view = storage.recent.at(height + 1)
            assert (view.get(kept), view.get(node)) == (b"old", b"old")
            assert (storage.store.get(kept), storage.store.get(others[0])) == (b"new", b"new")

    asyncio.run(story())


class SlowDisk:
    """A disk whose syncs wait until `go_on` is set."""

    def __init__(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.fails = False
        sync = storage.store.sync_log

        def wait_and_sync() -> None:
            self.begun.set()
            assert self.go_on.wait(SECONDS)
            if self.fails:
                raise OSError("it is gone")
            sync()

        monkeypatch.setattr(storage.store, "sync_log", wait_and_sync)

    async def is_busy(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, SECONDS)


def make_slow(
    config: Config, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> tuple[Driver, Watched, SlowDisk]:
    driver, storage, _ = make(config, closing)
    return driver, Watched(driver, storage, monkeypatch), SlowDisk(storage, monkeypatch)


def test_while_the_disk_is_waited_for_the_loop_turns_and_the_replica_gets_no_input(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, watched, disk = make_slow(config, closing, monkeypatch)
            inputs: list[str] = []

            def taken(kind: str, *effects: Effect) -> list[Effect]:
                inputs.append(kind)
                return list(effects)

            monkeypatch.setattr(driver.replica, "receive", lambda *_: taken("message"))
            monkeypatch.setattr(driver.replica, "fire", lambda *_: taken("timer", VOTE))
            driver._step(lambda: [stored(b"a"), Broadcast(b"news")])
            heard = asyncio.create_task(driver.receive(2, b"x"))
            await disk.is_busy()  # the loop has turned meanwhile
            driver._fire(ViewTimer(1, 0))
            driver.look()
            assert (inputs, watched.done) == ([], ["a"])
            disk.go_on.set()
            await heard
            assert inputs == ["message", "timer"]  # a message that came in time makes many a timer obsolete
            assert watched.done == ["a", "sync", "to all: news", "to 1: vote"]

    asyncio.run(story())


def test_timers_go_first_if_they_had_to_wait_for_the_disk_twice(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, disk = make_slow(config, closing, monkeypatch)
            inputs: list[str] = []

            def hear(_now: int, _sender: int, name: bytes) -> list[Effect]:
                inputs.append(name.decode())
                return [stored(name), VOTE]

            def fire(*_: object) -> list[Effect]:
                inputs.append("timer")
                return []

            monkeypatch.setattr(driver.replica, "receive", hear)
            monkeypatch.setattr(driver.replica, "fire", fire)
            driver._step(lambda: [stored(b"a"), VOTE])
            heard = [asyncio.create_task(driver.receive(2, name)) for name in (b"x", b"y")]
            await disk.is_busy()
            driver._fire(ViewTimer(1, 0))
            disk.go_on.set()
            await asyncio.gather(*heard)
            assert inputs == ["x", "timer", "y"]
            await driver.until_ended()

    asyncio.run(story())


def test_a_broker_that_gives_its_state_up_is_silent_before_that_is_on_disk(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, disk = make_slow(config, closing, monkeypatch)
            silenced: list[bool] = []
            monkeypatch.setattr(driver._feed, "silence", lambda: silenced.append(True))
            driver._step(lambda: [stored(b"a"), Restart("The state is damaged.")])
            await disk.is_busy()
            assert silenced
            assert not driver.restart.done()
            disk.go_on.set()
            assert await driver.restart == "The state is damaged."
            await driver.until_ended()

    asyncio.run(story())


def test_a_broker_without_a_thread_for_its_disk_ends(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        with ExitStack() as closing:
            driver, _, _ = make(config, closing)
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                driver._step(lambda: [stored(b"a"), VOTE])
            assert str(driver.failure.exception()) == "can't start new thread"
            await driver.until_ended()

    asyncio.run(story())


def test_after_a_failed_sync_inputs_that_wait_are_dropped_and_the_broker_is_halted(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, watched, disk = make_slow(config, closing, monkeypatch)
            driver._step(lambda: [stored(b"a"), VOTE])
            heard = asyncio.create_task(driver.receive(2, b"\xc1"))
            given_up = asyncio.create_task(driver.until_free())
            await disk.is_busy()
            given_up.cancel()
            driver._fire(ViewTimer(1, 0))
            disk.fails = True
            disk.go_on.set()
            await heard
            assert str(driver.failure.exception()) == "it is gone"
            assert watched.done == ["a"]
            assert driver.submit(batch(config, 0)) is Intake.HALTED

    asyncio.run(story())


def test_a_broker_that_is_stopped_ends_its_step_before_its_storage_is_closed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, watched, disk = make_slow(config, closing, monkeypatch)
            driver._step(lambda: [stored(b"a"), VOTE, stored(b"b", sync=False)])
            await disk.is_busy()
            driver.stop()
            ended = asyncio.create_task(driver.until_ended())
            await asyncio.sleep(0)
            assert not ended.done()
            disk.go_on.set()
            await ended
            assert watched.done == ["a", "sync", "to 1: vote", "b"]

    asyncio.run(story())


def test_a_step_that_ends_with_any_error_ends_the_broker_and_waiting_tasks_go_on(config: Config) -> None:
    """Libraries in other languages raise errors that are no `Exception`."""

    class Panic(BaseException): ...

    async def story() -> None:
        with ExitStack() as closing:
            driver, _, _ = make(config, closing)

            def panics() -> list[Effect]:
                raise Panic

            driver._step(panics)
            assert isinstance(driver.failure.exception(), Panic)
            await driver.receive(2, b"\xc1")
            await driver.until_ended()

    asyncio.run(story())


def test_a_wait_for_the_disk_is_measured_before_it_ends(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, disk = make_slow(config, closing, monkeypatch)
            assert driver.disk_wait_ms == 0
            driver._step(lambda: [stored(b"a"), VOTE])
            await disk.is_busy()
            driver._disk_since -= SLOW_DISK_MS
            driver.look()
            assert driver._tally.longest_sync_ns >= SLOW_DISK_MS * 1_000_000
            disk.go_on.set()
            await driver.until_free()
            assert driver.disk_wait_ms == 0

    asyncio.run(story())


def test_each_broker_is_named_in_the_log_however_much_was_said_about_another(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, _ = make(config, closing)
            told: list[tuple[object, ...]] = []

            def tell(event: str, **values: object) -> None:
                told.append(
                    (event, values.get("peer") or values["leader"], values.get("kind"), values["count"])
                )

            monkeypatch.setattr(driver, "_log", SimpleNamespace(warning=tell, error=tell))
            lies = [Report(proposals()), Report(votes()), Report(timeouts())]
            await act(driver, ViewFailed(4, 1), ViewFailed(5, 2), ViewFailed(8, 1), *lies, *lies)
            await driver.until_ended()
            assert told == [
                ("view_change", "b-1", None, 1),
                ("view_change", "c-1", None, 1),
                ("misbehaviour", "b-1", "proposals", 1),
                ("misbehaviour", "d-1", "votes", 1),
                ("misbehaviour", "c-1", "timeouts", 1),
            ]
            assert driver._tally.misbehaviour == {
                ("b-1", "proposals"): 2,
                ("d-1", "votes"): 2,
                ("c-1", "timeouts"): 2,
            }

    asyncio.run(story())


def test_refused_messages_are_counted_by_the_broker_that_sent_them(config: Config) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, links = make(config, closing)
            stale, bad = Refused(1, Reason.STALE, ""), Refused(2, Reason.BAD_SIGNATURE, "")
            await act(driver, stale, stale, bad, Refused(None, Reason.QUOTA, "of a client of this broker"))
            await driver.until_ended()
            assert links.blamed == [(1, Reason.STALE), (1, Reason.STALE), (2, Reason.BAD_SIGNATURE)]

    asyncio.run(story())


def test_a_slow_sync_is_logged_and_measured(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        with ExitStack() as closing:
            driver, _, _ = make(config, closing)
            told: list[dict[str, object]] = []
            monkeypatch.setattr(
                driver, "_log", SimpleNamespace(warning=lambda _, **values: told.append(values))
            )
            driver._note_disk_wait(SLOW_DISK_MS * 1_000_000)
            driver._note_disk_wait(1)
            assert told == [{"sync_ms": SLOW_DISK_MS, "count": 1}]
            assert driver._tally.longest_sync_ns == SLOW_DISK_MS * 1_000_000

    asyncio.run(story())
