"""A ledger that many tasks verify gets the verdict, and the first fault, that one process gives; and all the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from pyarrow import parquet
from tests.application.world import ORGANISATIONS, actor
from tests.cli.commands import flat, parley
from tests.ledger.shard import GENESIS, staged, told
from tests.node.network import LocalNetwork
from tests.replica.driver import MemoryStore
from tests.spark.ledger import verified
from tests.spark.sinks import create_topic

from parley.applications import DATA_SHARD
from parley.cli.output import ExitCode
from parley.client.ledger import VerifiedBlock
from parley.crypto.encoding import u64
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.ledger.audit import Verdict, verify_store
from parley.ledger.audit_blocks import Audit
from parley.ledger.audit_entries import Fault
from parley.ledger.proofs import history_leaf_of
from parley.model.genesis import encode_genesis, sign_genesis
from parley.model.receipts import BatchReceipt, encode_leaf
from parley.modules.publishing.receipts import Published
from parley.node.provision import provision_network
from parley.spark import audit
from parley.spark.audit import audit_store, examined, pieces_of
from parley.spark.audit_pieces import Job, Result, look, mounted
from parley.spark.findings import Report, unreadable, write
from parley.spark.options import Network
from parley.spark.shown_store import ShownStore
from parley.store.disk import open_store
from parley.store.errors import StoreInUse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from parley.spark.auditing import Ledger


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of these tests has few blocks, and is to be cut into many ranges all the same."""
    monkeypatch.setattr(audit, "SMALLEST", 4)
    monkeypatch.setattr(audit, "INDEX_TASKS", 4)


def copy() -> MemoryStore:
    return MemoryStore(told().store.entries.items())


def in_pieces(store: MemoryStore, *, replay: bool = False) -> Report:
    """As `audit_store` does it, with a loop in the place of Spark."""
    try:
        highest = Audit(store, GENESIS, mounted(GENESIS, 0), shard=0).begin().height
    except Fault as fault:
        return unreadable(fault.what, fault.entry)
    job = Job(GENESIS, 0, highest, "memory", None, pieces_of(highest, replay=replay))
    return examined(job, partial(_each, store), 0.0)


def _each(store: MemoryStore, job: Job) -> list[Result]:
    return [look(job, piece, store, mounted) for piece in reversed(job.pieces)][::-1]


def alone(store: MemoryStore, *, replay: bool = False) -> Verdict:
    return verify_store(store, GENESIS, mounted(GENESIS, 0), replay=replay, shard=0)


def same(report: Report, verdict: Verdict) -> bool:
    return (report.valid, report.first_fault) == (verdict.valid, verdict.first_fault)


@pytest.mark.parametrize("replay", [False, True])
def test_a_sound_ledger_is_valid_and_counts_the_same(replay: bool) -> None:
    report, verdict = in_pieces(copy(), replay=replay), alone(copy(), replay=replay)
    assert report.valid
    assert report.findings == ()
    assert (report.heights, report.publications, report.replayed) == (
        verdict.heights,
        verdict.publications,
        replay,
    )
    assert sum(piece.kind == "blocks" for piece in pieces_of(report.heights, replay=replay)) > 4


def test_a_ledger_with_staged_batches_is_valid_from_a_store_and_as_it_is_shown() -> None:
    """A batch may be numbered in another range than the one in which it was staged."""
    store = MemoryStore(staged().store.entries.items())
    verdict = alone(store, replay=True)
    for report in (in_pieces(store, replay=True), shown(verified(staged()), replay=True)):
        assert report.findings == ()
        assert (report.publications, report.replayed) == (verdict.publications, True)


KINDS = [b"c/", b"r/", b"e/", b"h/", b"b/", b"m/", b"s/k", b"s/n", b"s/i", b"u/"]


def damaged(kind: bytes) -> Iterator[MemoryStore]:
    entries = [(key, value) for key, value in copy().scan(kind) if value]
    for key, value in entries[:1] + entries[len(entries) // 2 :][:1] + entries[-1:]:
        for at in (len(value) // 2, len(value) - 1):
            store = copy()
            store.entries[key] = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            yield store
        store = copy()
        del store.entries[key]
        yield store


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.decode())
@pytest.mark.parametrize("replay", [False, True])
def test_whatever_is_damaged_or_missing_the_first_fault_is_the_same(kind: bytes, replay: bool) -> None:
    stores = list(damaged(kind))
    assert stores
    faulty = 0
    for store in stores[:: 2 if replay else 1]:
        verdict = alone(store, replay=replay)
        report = in_pieces(store, replay=replay)
        assert same(report, verdict), (report.findings, verdict.first_fault)
        faulty += not report.valid
    assert faulty


def test_indices_of_no_known_kind_are_found_in_the_order_of_their_keys_wherever_tasks_meet() -> None:
    store = copy()
    inside, around = (
        audit.RECEIPTS + bytes(31),
        [audit.RECEIPTS[: len(audit.RECEIPTS) - cut] for cut in range(4)],
    )
    planted = sorted([layout.INDEX, inside, *around, audit.RECEIPTS[:-1] + b"0", layout.INDEX + b"\xff/"])
    store.entries.update(dict.fromkeys(planted, b"stray"))
    report = in_pieces(store)
    assert [finding.entry for finding in report.findings] == planted
    assert same(report, alone(store))


@pytest.mark.parametrize("kind", KINDS[:5], ids=lambda kind: kind.decode())
def test_one_damaged_entry_is_one_finding(kind: bytes) -> None:
    """What follows from it is not told as if it were damaged as well, but for indices that lead to it."""
    entries = [(key, value) for key, value in copy().scan(kind) if value]
    where_ranges_meet = entries[4:6]
    for key, value in (entries[2], *where_ranges_meet, entries[len(entries) // 2]):
        store = copy()
        store.entries[key] = value[:-1] + bytes([value[-1] ^ 1])
        found = [finding.entry for finding in in_pieces(store).findings]
        assert [entry for entry in found if not entry.startswith(layout.INDEX)] == [key]


def test_all_faults_are_found_in_the_order_of_the_ledger() -> None:
    store = copy()
    batches = [key for key, _ in store.scan(b"b/")]
    planted = [
        layout.committed(3),
        layout.receipts(9),
        layout.history_node(0, 5),
        batches[1],
        layout.roots(14),
    ]
    for key in planted:
        value = store.entries[key]
        store.entries[key] = value[:-1] + bytes([value[-1] ^ 1])
    state = next(key for key, _ in store.scan(layout.STATE))
    store.entries[state] += b"more"
    report = in_pieces(store)
    assert same(report, alone(store))
    assert {finding.entry for finding in report.findings} == {*planted, state}
    heights = [finding.height for finding in report.findings if finding.height is not None]
    assert heights == sorted(heights)
    assert report.findings[-1].entry == state


def test_a_damaged_node_above_many_blocks_accuses_nothing_else() -> None:
    """Later ranges begin with it, are found to have begun wrongly, and are done again."""
    store = copy()
    key = layout.history_node(3, 0)
    store.entries[key] = bytes(32)
    asked: list[int] = []

    def run_all(job: Job) -> list[Result]:
        asked.append(len(job.pieces))
        return _each(store, job)

    highest = Audit(store, GENESIS, mounted(GENESIS, 0), shard=0).begin().height
    job = Job(GENESIS, 0, highest, "memory", None, pieces_of(highest, replay=False))
    report = examined(job, run_all, 0.0)
    assert [finding.entry for finding in report.findings] == [key]
    assert len(asked) == 2
    assert 0 < asked[1] < asked[0]


def forged() -> tuple[MemoryStore, int]:
    """Receipts that place publications elsewhere, with a history that fits them: only executing the blocks shows it."""
    store = copy()
    for key, value in store.scan(b"e/"):
        leaves = [DATA_SHARD.decode_leaf(leaf) for leaf in layout.decode_receipts(value)]
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, BatchReceipt) and isinstance(leaf.outcome, Published):
                moved = msgspec.structs.replace(leaf, outcome=Published(leaf.outcome.first_offset + 7))
                new = [encode_leaf(one) for one in leaves]
                new[at] = encode_leaf(moved)
                store.entries[key] = msgspec.msgpack.encode(tuple(new))
                return store, int.from_bytes(key[2:], "big")
    raise AssertionError("nothing was published")


def test_receipts_that_executing_does_not_give_are_found_with_replay_at_the_same_place() -> None:
    store, height = forged()
    verdict = alone(store, replay=True)
    report = in_pieces(store, replay=True)
    assert same(report, verdict)
    assert report.first_fault == f"entry e/{height} is not what executing the block gives"
    assert not report.replayed


def test_a_store_that_is_not_whole_is_told_as_by_one_process() -> None:
    store = copy()
    store.entries[layout.BACKFILL] = u64(7)
    report = in_pieces(store)
    assert same(report, alone(store))
    assert [finding.entry for finding in report.findings] == [layout.BACKFILL]


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_findings_are_written_as_a_table(tmp_path: Path, suffix: str) -> None:
    store = copy()
    del store.entries[layout.committed(3)]
    report = in_pieces(store)
    path = tmp_path / f"findings{suffix}"
    write(report, path)
    rows = (
        parquet.read_table(path).to_pylist()
        if suffix == ".parquet"
        else [json.loads(line) for line in path.read_text().splitlines()]
    )
    assert [(row["check"], row["height"], row["entry"], row["what"]) for row in rows] == [
        ("links", 3, "c/3", "is missing")
    ]
    assert rows[0]["key"] in {layout.committed(3), layout.committed(3).hex()}


# -- what brokers show ---------------------------------------------------------------------------------------------


class Told:
    """In the place of a ledger that is read from brokers: the same blocks, some of them changed."""

    def __init__(self, blocks: list[VerifiedBlock]) -> None:
        self._blocks = {block.height: block for block in blocks}

    def blocks(self, first: int, last: int, *, bodies: bool) -> Iterator[VerifiedBlock]:
        before = MountainRange()
        for height in range(1, first):
            block = self._blocks[height]
            before.append(history_leaf_of(height, block.id, block.raw_leaves))
        for height in range(first, last + 1):
            block = self._blocks[height]
            if not bodies:
                none = (None,) * len(block.batches)
                block = replace(block, bodies=none, opened=none, remains=none)
            yield replace(block, before=before if height == first else None)


def shown(blocks: list[VerifiedBlock], *, replay: bool = False) -> Report:
    """As `audit_network` does it."""
    highest = blocks[-1].height
    network = Network(directory="nowhere")
    pieces = [piece for piece in pieces_of(highest, replay=replay) if piece.kind in {"blocks", "executed"}]
    job = Job(GENESIS, 0, highest, None, network, tuple(pieces))
    ledger = cast("Ledger", Told(blocks))

    def run_all(job: Job) -> list[Result]:
        return [
            look(job, piece, ShownStore(ledger, piece.first, piece.last, highest), mounted)
            for piece in job.pieces
        ]

    return examined(job, run_all, 0.0)


@pytest.mark.parametrize("replay", [False, True])
def test_what_brokers_show_of_a_sound_ledger_is_valid(replay: bool) -> None:
    report = shown(verified(), replay=replay)
    assert report.first_fault is None
    assert (report.publications, report.erased, report.replayed) == (15, 0, replay)


def test_a_body_that_nobody_shows_counts_as_erased() -> None:
    blocks = verified()
    at = next(at for at, block in enumerate(blocks) if block.batches)
    none = (None,) * len(blocks[at].batches)
    blocks[at] = replace(blocks[at], bodies=none, opened=none, remains=none)
    report = shown(blocks, replay=True)
    assert report.valid
    assert (report.erased, report.replayed) == (1, False)


@pytest.mark.parametrize("height", [2, 9, 16])
def test_a_block_that_contradicts_the_others_is_found_also_where_ranges_meet(height: int) -> None:
    for change in (
        {"history_root": bytes(32)},
        {"time": 1},
        {"executed_height": height},
        {"parent": bytes(32)},
    ):
        blocks = verified()
        header = msgspec.structs.replace(blocks[height - 1].header, **change)
        blocks[height - 1] = replace(blocks[height - 1], header=header, id=header.id())
        report = shown(blocks)
        assert report.first_fault is not None, change
        assert report.findings[0].height in {height, header.executed_height}, change


def test_receipts_that_executing_does_not_give_are_found_in_what_is_shown() -> None:
    blocks = verified()
    at, block = next((at, one) for at, one in enumerate(blocks) if len(one.raw_leaves) == 2)
    moved = encode_leaf(msgspec.structs.replace(block.leaves[0], client="alpha/mallory"))
    blocks[at] = replace(block, raw_leaves=(moved, *block.raw_leaves[1:]))
    found = {finding.entry for finding in shown(blocks, replay=True).findings}
    assert layout.receipts(block.height) in found


# -- on Spark ------------------------------------------------------------------------------------------------------


def on_disk(store: MemoryStore, path: Path) -> Path:
    with open_store(path, create=True) as made:
        made.write(store.entries.items(), sync=True)
    return path


def test_tasks_of_spark_give_the_verdict_of_one_process(spark: SparkSession, tmp_path: Path) -> None:
    store = copy()
    sound = audit_store(spark, on_disk(store, tmp_path / "sound"), GENESIS, replay=True, at_once=2)
    assert (sound.valid, sound.publications, sound.replayed) == (True, 15, True)
    batches = [key for key, _ in store.scan(b"b/")]
    planted = [layout.receipts(9), layout.history_node(2, 0), batches[3], layout.roots(14)]
    for key in planted:
        value = store.entries[key]
        store.entries[key] = value[:-1] + bytes([value[-1] ^ 1])
    found = audit_store(spark, on_disk(store, tmp_path / "damaged"), GENESIS, at_once=2)
    assert same(found, alone(store))
    assert {finding.entry for finding in found.findings} == set(planted)


def test_a_store_in_use_is_not_touched(tmp_path: Path) -> None:
    path = on_disk(copy(), tmp_path / "used")
    script = "import sys, parley.store.disk as s, pathlib; x = s.open_store(pathlib.Path(sys.argv[1]), create=False)"
    command = [sys.executable, "-c", f"{script}; print('open', flush=True); sys.stdin.read()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreInUse):
            audit_store(cast("SparkSession", None), path, GENESIS)
        other.communicate(b"")


def signed_genesis() -> bytes:
    anchors = [actor("anchor", name).secret for name in ORGANISATIONS]
    return encode_genesis(GENESIS, tuple(sign_genesis(GENESIS, anchor) for anchor in anchors))


@pytest.fixture
def same_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes the session of the tests, and leaves it running."""
    monkeypatch.setattr(audit, "SMALLEST", 64)  # few tasks, each of which takes its time to start
    monkeypatch.setattr("parley.spark.session.spark_session", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)


def test_the_command_tells_what_it_found_and_ends_with_1(same_session: None, tmp_path: Path) -> None:
    store = copy()
    del store.entries[layout.committed(3)]
    path = on_disk(store, tmp_path / "damaged")
    (tmp_path / "genesis.json").write_bytes(signed_genesis())
    words = ("audit", "run", "--store", path, "--genesis", tmp_path / "genesis.json", "--findings", "f.json")
    ended = parley(*words, "--json", home=tmp_path, code=ExitCode.DOES_NOT_HOLD)
    said = json.loads(ended.out)
    assert (said["valid"], said["first_fault"], said["findings"]) == (False, "entry c/3 is missing", 1)
    assert said["by_check"] == {"links": 1}
    assert json.loads((tmp_path / "f.json").read_text())["entry"] == "c/3"


def test_the_command_verifies_a_network_as_its_auditor(
    same_session: None, network: LocalNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(network, "audited", partitions=1)
    words = ("audit", "run", "--dir", network.directory, "--findings", "f.parquet")
    said = parley(*words, "--as", "alpha/admin", "--json", home=tmp_path).json()
    assert (said["valid"], said["findings"], said["first_fault"]) == (True, 0, None)
    assert said["heights"] > 3
    # Who may not read the ledger hears of it before Spark starts.
    monkeypatch.setattr("parley.spark.session.spark_session", lambda *_: pytest.fail("Spark was started"))
    ended = parley(*words, "--as", "beta/admin", home=tmp_path, code=ExitCode.DOES_NOT_HOLD)
    assert "needs the right auditor" in flat(ended.err)


def test_a_network_that_is_stopped_is_told_before_spark_starts_with_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = LocalNetwork(tmp_path / "stopped")
    monkeypatch.setattr("parley.spark.gateway.CONNECT_SECONDS", 0)
    monkeypatch.setattr("parley.spark.session.spark_session", lambda *_: pytest.fail("Spark was started"))
    ended = parley("audit", "run", "--dir", stopped.directory, home=tmp_path, code=ExitCode.UNREACHABLE)
    assert "[PARLEY_UNREACHABLE] No broker answers" in flat(ended.err)
    assert "not running here: alpha-1, " in flat(ended.err)
    assert "start with `parley up --detach" in flat(ended.err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--store", "somewhere"], "--store and --genesis together"),
        (["--store", "somewhere", "--genesis", ".parley/genesis.json"], "there is no folder somewhere"),
        (["--findings", "table.txt"], "ends with .parquet or .json"),
        (["--findings", "nowhere/f.json"], "there is no folder nowhere"),
    ],
)
def test_wrong_use_is_told_before_anything_is_started(tmp_path: Path, words: list[str], said: str) -> None:
    provision_network(
        tmp_path / ".parley", organisations=["alpha"], network="new", start_time=1_700_000_000_000
    )
    ended = parley("audit", "run", *words, home=tmp_path, code=ExitCode.WRONG_USE)
    assert said in flat(ended.err)
