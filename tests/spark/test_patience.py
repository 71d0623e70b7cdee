"""Brokers that are behind, silent or leave something out: what the driver and executors do then, without a network."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.ledger.shard import GENESIS
from tests.spark.ledger import verified

from parley.applications import DATA_SHARD
from parley.client.errors import Stalled
from parley.client.observing import BlockName
from parley.modules.topics.tables import PartitionRecord
from parley.node.provision import provision_network
from parley.spark import auditing, detect, gateway, heads, planning, reader
from parley.spark.auditing import Ledger
from parley.spark.detect_rules import Alert, Kind
from parley.spark.detect_table import AlertTable
from parley.spark.errors import (
    BackwardOffset,
    BadIdentity,
    BadOption,
    DataLoss,
    Lying,
    TopicRemade,
    Unreachable,
)
from parley.spark.offsets import Offsets, Place
from parley.spark.options import Network, ReadOptions, read_options, table_options
from parley.spark.tables import LedgerPosition, TableStreamReader

WHERE = {"genesis": "g", "identity": "i"}
CHAIN = "00" * 32
BLOCK = BlockName(7, bytes(32), 1, 0, 0)
CREATED = (2, 0)  # the id of the topic


class Stub:
    """In the place of a gateway: answers are taken one after another, and an error among them is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.client: Any = SimpleNamespace(
            observer=SimpleNamespace(block=lambda _height: None),
            blocks=lambda *_, **__: None,
            topic=lambda _name: None,
            page=lambda *_, **__: None,
            genesis=GENESIS,
            application=DATA_SHARD,
        )

    def run(self, work: object) -> Any:  # noqa: ANN401 - anything
        if isinstance(work, Coroutine):
            work.close()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def start(self, _work: object) -> Future[Any]:
        return Future()

    def result(self, _future: Future[Any]) -> Any:  # noqa: ANN401
        return self.run(None)


def options(**more: str) -> ReadOptions:
    return read_options({**WHERE, "subscribe": "notes", **more}, stream=True)


def place(offset: int) -> Place:
    return Place(offset, 7, BLOCK.id.hex(), 0, 0, CREATED, 7)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "HEAD_SECONDS", 0.0)
    monkeypatch.setattr(auditing, "LOOK_SECONDS", 0.0)


# -- the driver --------------------------------------------------------------------------------------------------------


def test_a_block_that_the_asked_broker_has_not_yet_is_asked_for_again() -> None:
    watch = heads.Watch(cast("gateway.Gateway", Stub(None, None, BLOCK)), options())
    sight = heads.Sight({("notes", 0): (PartitionRecord(3, 0), 7)}, {}, 7, {"notes": 1}, {"notes": CREATED})
    assert watch.place(sight, ("notes", 0), 3) == place(3)


def test_a_block_that_nobody_shows_is_no_progress_and_not_the_end_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heads, "BEHIND_SECONDS", 0.0)
    sight = heads.Sight({("notes", 0): (PartitionRecord(3, 0), 7)}, {}, 7, {"notes": 1}, {"notes": CREATED})
    stub = Stub(BLOCK, sight, None)
    planner = planner_with(monkeypatch, stub)
    start = Offsets(GENESIS.chain.hex(), {("notes", 0): place(1)}, {7: {}})
    assert planner.next(start, None) is start
    assert stub.answers == []
    unreachable = planner_with(monkeypatch, Stub(Unreachable("gone")))
    assert unreachable.next(start, None) is start


def planner_with(monkeypatch: pytest.MonkeyPatch, stub: Stub, **more: str) -> planning.Planner:
    monkeypatch.setattr(planning, "gateway", lambda *_: stub)
    monkeypatch.setattr(planning.Planner, "_tell", lambda *_: None)
    monkeypatch.setattr(heads.Watch, "_look", lambda *_: None)
    return planning.Planner(options(**more))


def test_a_list_that_leaves_out_a_topic_does_not_make_it_vanish() -> None:
    """Whether it was deleted is what its record says, which can be proved."""
    stub = Stub()

    async def nothing() -> list[object]:
        return []

    async def unknown(_keys: object) -> object:
        return SimpleNamespace(values=(None,))

    stub.client.topics, stub.client.observer.entries = nothing, unknown
    stub.client.key, stub.client.organisation, stub.client.name = bytes(32), "alpha", "alice"
    pattern = read_options({**WHERE, "subscribePattern": "n.*"}, stream=True)
    watch = heads.Watch(cast("gateway.Gateway", stub), pattern)
    assert asyncio.run(watch._topics()) == ()
    with pytest.raises(IndexError):  # it asks, and here nobody answers
        watch.look(read=["notes"])
    assert asyncio.run(watch._topics()) == ("notes",)


def test_a_batch_asks_for_answers_of_the_height_at_which_its_end_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = planner_with(monkeypatch, Stub(BLOCK))
    start = Offsets(GENESIS.chain.hex(), {("notes", 0): place(1)}, {7: {}})
    end = Offsets(
        GENESIS.chain.hex(),
        {("notes", 0): Place(4, 9, BLOCK.id.hex(), 0, 0, CREATED, 7)},
        {7: {"role": "nurse"}},
    )
    planner._proven.add((9, (BLOCK.id.hex(), 0, 0)))
    planner._same.add(("notes", CREATED))
    (piece,) = planner.pieces(start, end)
    assert (piece.start, piece.end, piece.floor, piece.attributes) == (1, 4, 9, {"role": "nurse"})


def sight(topic_id: tuple[int, int]) -> heads.Sight:
    return heads.Sight({("notes", 0): (PartitionRecord(9, 0), 7)}, {}, 7, {"notes": 1}, {"notes": topic_id})


@pytest.mark.parametrize("lost", ["true", "false"])
def test_a_checkpoint_of_a_topic_that_was_made_again_is_an_error_with_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Its offsets would follow on those of the old one. For a batch that was planned before a restart as for the next one."""
    start = Offsets(GENESIS.chain.hex(), {("notes", 0): place(1)}, {7: {}})
    end = Offsets(GENESIS.chain.hex(), {("notes", 0): place(4)}, {7: {}})
    said = r"PARLEY_TOPIC_REPLACED.* 2\.0, .* 8\.1"
    planner = planner_with(monkeypatch, Stub(BLOCK, sight((8, 1))), failOnDataLoss=lost)
    with pytest.raises(TopicRemade, match=said):
        planner.next(start, None)
    planner = planner_with(monkeypatch, Stub(BLOCK, sight((8, 1))), failOnDataLoss=lost)
    with pytest.raises(TopicRemade, match=said):
        planner.pieces(start, end)


def test_a_block_of_another_shard_or_epoch_is_not_the_one_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for other in (replace(place(1), shard=1), replace(place(1), epoch=1)):
        planner = planner_with(monkeypatch, Stub(BLOCK))
        with pytest.raises(BackwardOffset, match="another history"):
            planner.next(Offsets(GENESIS.chain.hex(), {("notes", 0): other}, {7: {}}), None)


def test_a_ledger_table_waits_for_a_network_that_does_not_answer() -> None:
    stream = TableStreamReader(table_options({**WHERE, "table": "blocks"}))

    def fails(*_: object) -> None:
        raise Unreachable("nobody answers")

    stream._here = cast("Any", SimpleNamespace(require_same_history=fails, newest=fails))
    start = {"version": 2, "chain": CHAIN, "shard": 0, "epoch": 0, "height": 3, "block": "11" * 32}
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert stream.reportLatestOffset() is None
    known = LedgerPosition(2, CHAIN, 0, 0, 5, "22" * 32)
    stream._here = cast("Any", SimpleNamespace(require_same_history=lambda _: None, newest=lambda: known))
    assert stream.latestOffset(start, ReadAllAvailable())["height"] == 5


# -- executors ---------------------------------------------------------------------------------------------------------


def ledger(monkeypatch: pytest.MonkeyPatch, *pages: object) -> Ledger:
    monkeypatch.setattr(auditing, "gateway", lambda *_: Stub(*pages))
    return Ledger(Network(genesis="g", identity="i"))


def test_blocks_that_the_asked_broker_has_not_yet_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = verified()[:3]
    found = ledger(monkeypatch, [], blocks[:1], [], [], blocks[1:]).blocks(1, 3, bodies=False)
    assert [block.height for block in found] == [1, 2, 3]
    monkeypatch.setattr(auditing, "BEHIND_SECONDS", 0.0)
    with pytest.raises(Unreachable, match="No broker shows block 1"):
        list(ledger(monkeypatch, []).blocks(1, 3, bodies=False))


def test_brokers_that_contradict_each_other_about_what_is_pruned_are_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = SimpleNamespace(heads=[SimpleNamespace(start=4)])
    stub = Stub(DataLoss("pruned"), head)
    monkeypatch.setattr(reader, "gateway", lambda *_: stub)
    piece = reader.Range("notes", 0, 4, 9, 7, {}, 0)
    with pytest.raises(DataLoss, match="pruned"):
        list(reader.read(options(failOnDataLoss="false"), piece))


def test_a_question_does_not_depend_on_files_once_the_network_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Network] = []

    def names(network: Network) -> list[str]:
        reads.append(network)
        return ["alpha-1", "beta-1"]

    async def connected(*_: object) -> object:
        return SimpleNamespace(misbehaviour=[], close=_nothing)

    monkeypatch.setattr(gateway, "_names", names)
    monkeypatch.setattr(gateway.Gateway, "_connect", connected)
    opened = gateway.Gateway(Network(directory="net"), "certified", 1)
    try:
        assert [opened.run(_nothing()) for _ in range(3)] == [None] * 3
        assert opened._order(1) == ["beta-1", "alpha-1"]
        assert len(reads) == 1
    finally:
        opened.close()


async def _nothing() -> None:
    pass


def test_one_liar_does_not_end_a_query_that_waits_for_the_others() -> None:
    lies, silent = "it lies: a forged header", "it does not answer"
    assert isinstance(gateway.translated(Stalled("reading", {"a": lies, "b": silent})), Unreachable)
    assert isinstance(gateway.translated(Stalled("reading", {"a": lies, "b": lies})), Lying)
    assert isinstance(gateway.translated(Stalled("reading", {})), Unreachable)


def test_which_file_cannot_be_used_is_told_by_its_kind_and_not_by_its_name(tmp_path: Path) -> None:
    mine = tmp_path / "identity secrets"
    nobody = mine / "nobody.json"
    with pytest.raises(BadOption, match="is no folder of `parley up`"):
        gateway.gateway(Network(directory=str(mine)))
    provision_network(mine, organisations=["alpha"], network="new", start_time=1_700_000_000_000)
    with pytest.raises(BadIdentity, match=r"nobody\.json cannot be read"):
        gateway.gateway(Network(directory=str(mine), identity=str(nobody)))


def test_a_network_that_cannot_be_opened_leaves_no_connection_and_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    class Client:
        misbehaviour = ()

        async def __aenter__(self) -> None:
            raise Lying("everybody")

        async def close(self) -> None:
            closed.append("client")

    monkeypatch.setattr(gateway, "connect", lambda *_, **__: Client())
    before = set(threading.enumerate())
    with pytest.raises(Lying, match="everybody"):
        gateway.Gateway(Network(genesis="g", identity="i", brokers=("alpha-1",)), "certified")
    assert closed == ["client"]
    assert set(threading.enumerate()) <= before


def test_closing_ends_what_is_still_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, began = Event(), Event()

    async def connected(*_: object) -> object:
        return SimpleNamespace(misbehaviour=[], close=_nothing)

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(gateway.Gateway, "_connect", connected)
    opened = gateway.Gateway(Network(genesis="g", identity="i", brokers=("alpha-1",)), "certified")
    opened.start(forever())
    assert began.wait(10)
    opened.close()
    assert ended.is_set()


# -- the watch ---------------------------------------------------------------------------------------------------------


def test_a_watch_outlives_a_network_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(detect, "EVIDENCE_SECONDS", -1.0)
    monkeypatch.setattr(detect, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(detect, "watched", lambda *_: None)
    asked, ended = [0], Event()

    class Query:
        isActive = True  # noqa: N815 - Spark's name
        stop = awaitTermination = staticmethod(lambda: None)  # noqa: N815

    def evidence() -> list[Any]:
        asked[0] += 1
        if asked[0] == 1:
            raise Unreachable("nobody answers")
        ended.set()
        return []

    monkeypatch.setattr(detect.Job, "start", lambda *_, **__: Query())
    job = detect.Job(detect.Watch(GENESIS, {}, tmp_path, tmp_path), lambda _: None)
    known = cast("Ledger", SimpleNamespace(evidence=evidence, head=lambda: SimpleNamespace(time=1)))
    job.run(cast("Any", None), known, once=False, ended=ended)
    assert asked[0] == 2


def test_what_the_ledger_says_of_clients_is_not_for_everybody_on_the_machine(tmp_path: Path) -> None:
    alert = Alert("a", Kind.REFUSALS, "alpha/alice", "alpha", "began", "warning", 1, 1, 1, 1, "words", (1,))
    assert AlertTable(tmp_path / "alerts").write("query", 0, [alert])
    assert stat.S_IMODE((tmp_path / "alerts").stat().st_mode) == 0o700
