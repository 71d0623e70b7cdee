"""A ledger that many tasks verify gets the verdict, and the first fault, that one process gives; and all the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.ledger.shard import GENESIS, told
from tests.replica.driver import MemoryStore

from parley.crypto.encoding import u64
from parley.ledger import layout
from parley.ledger.audit import Audit, Verdict, verify_store
from parley.ledger.audit_entries import Fault
from parley.model.receipts import BatchReceipt, Published, decode_leaf, encode_leaf
from parley.pubsub.application import PubSub
from parley.spark import audit
from parley.spark.audit import examined, pieces_of
from parley.spark.audit_pieces import Job, Result, look
from parley.spark.findings import Report, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of these tests has few blocks, and is to be cut into many ranges all the same."""
    monkeypatch.setattr(audit, "SMALLEST", 4)


def copy() -> MemoryStore:
    return MemoryStore(told().store.entries.items())


def in_pieces(store: MemoryStore, *, replay: bool = False) -> Report:
    """As `audit_store` does it, with a loop in the place of Spark."""
    try:
        highest = Audit(store, GENESIS, None).begin().height
    except Fault as fault:
        return audit._stopped(fault, 0.0)
    job = Job(GENESIS, highest, "memory", None, pieces_of(highest, replay=replay))
    return examined(job, partial(_each, store), 0.0)


def _each(store: MemoryStore, job: Job) -> list[Result]:
    return [look(job, piece, store, PubSub) for piece in reversed(job.pieces)][::-1]


def alone(store: MemoryStore, *, replay: bool = False) -> Verdict:
    return verify_store(store, GENESIS, PubSub(GENESIS), replay=replay)


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


KINDS = [b"c/", b"r/", b"e/", b"h/", b"b/", b"m/", b"s/k", b"s/n", b"s/i", b"u/"]


def damaged(kind: bytes) -> Iterator[MemoryStore]:
    entries = [(key, value) for key, value in copy().scan(kind) if value]
    for key, value in entries[:2] + entries[len(entries) // 2 :][:2] + entries[-1:]:
        for at in (0, len(value) // 2, len(value) - 1):
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
    for store in stores[:: 3 if replay else 1]:
        verdict = alone(store, replay=replay)
        report = in_pieces(store, replay=replay)
        assert same(report, verdict), (report.findings, verdict.first_fault)
        faulty += not report.valid
    assert faulty


@pytest.mark.parametrize("kind", KINDS[:5], ids=lambda kind: kind.decode())
def test_one_damaged_entry_is_one_finding(kind: bytes) -> None:
    """What follows from it is not told as if it were damaged as well."""
    entries = [(key, value) for key, value in copy().scan(kind) if value]
    for key, value in (entries[2], entries[len(entries) // 2]):
        store = copy()
        store.entries[key] = value[:-1] + bytes([value[-1] ^ 1])
        assert [finding.entry for finding in in_pieces(store).findings] == [key]


def test_all_faults_are_found_in_the_order_of_the_ledger() -> None:
    store = copy()
    batches = [key for key, _ in store.scan(b"b/")]
    planted = [layout.committed(3), layout.receipts(9), layout.history_node(0, 5), batches[1], layout.roots(14)]
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

    highest = Audit(store, GENESIS, None).begin().height
    job = Job(GENESIS, highest, "memory", None, pieces_of(highest, replay=False))
    report = examined(job, run_all, 0.0)
    assert [finding.entry for finding in report.findings] == [key]
    assert len(asked) == 2
    assert 0 < asked[1] < asked[0]


def forged() -> tuple[MemoryStore, int]:
    """Receipts that place publications elsewhere, with a history that fits them: only executing the blocks shows it."""
    store = copy()
    for key, value in store.scan(b"e/"):
        leaves = [decode_leaf(leaf) for leaf in layout.decode_receipts(value)]
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, BatchReceipt) and isinstance(leaf.outcome, Published):
                import msgspec

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
    from pyarrow import parquet

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
