"""A whole ledger verified by many tasks at once: the same checks, and so the same verdict, as in one process.

A range of blocks can be checked by itself if the history up to it is given. It begins with what is stored of that. The
driver puts the histories of all ranges together afterwards, and has those done again that began with something else: so
the first fault of all ranges is the one that somebody who goes from block to block would have met first.

Executing the blocks again cannot be shared out, because each needs the state that the one before it left. Without that
nothing is said about whether receipts and state are what the ordered batches give; quorums said so when they certified
the roots. With `replay` one task does it while the others do the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from parley.application import keeping
from parley.consensus.committee import committee_of
from parley.crypto.encoding import u64
from parley.crypto.merkle import node_hash
from parley.ledger import layout
from parley.ledger.audit_blocks import Audit
from parley.ledger.audit_entries import Fault
from parley.model.genesis import Genesis
from parley.spark.audit_pieces import RESULTS, Job, MakeApplication, Piece, Result, mounted, run
from parley.spark.auditing import Ledger
from parley.spark.findings import MAX_FINDINGS, Report, merge, unreadable
from parley.spark.options import Network

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 32  # that a ledger is cut into, if it is large enough
SMALLEST, LARGEST = 64, 4096  # blocks of a range, powers of two
RECEIPTS = (
    layout.APPLICATION + keeping.RECEIPTS.places()
)  # the largest part of the indices: one for each batch
INDEX_TASKS = 8


def audit_store(
    spark: SparkSession,
    path: Path,
    genesis: Genesis,
    application: MakeApplication = mounted,
    *,
    shard: int | None = None,
    replay: bool = False,
    at_once: int | None = None,
) -> Report:
    """Everything in the store of a stopped broker. Raises `StoreError` if it cannot be opened.

    `shard` has to be named where the network has several. `at_once` tasks do all of it, by default as many as Spark has cores for.
    """
    from parley.store.disk import open_store, unused  # noqa: PLC0415 - an extra, which the network does not need

    began, number = time.monotonic(), committee_of(genesis, shard).shard
    with unused(path):
        with open_store(path, create=False, read_only=True) as store:
            first = Audit(store, genesis, application(genesis, number), shard=number)
            try:
                highest = first.begin().height
            except Fault as fault:
                return unreadable(fault.what, fault.entry, time.monotonic() - began)
        job = Job(genesis, number, highest, str(path.absolute()), None, pieces_of(highest, replay=replay))
        return examined(job, partial(_run, spark, application, at_once), began)


def audit_network(
    spark: SparkSession, network: Network, application: MakeApplication = mounted, *, replay: bool = False
) -> Report:
    """Every block that is certified now, as brokers show it; each store is its broker's own affair."""
    began = time.monotonic()
    ledger = Ledger(network)
    highest, number = ledger.head().height, committee_of(ledger.genesis, network.shard).shard
    ledger.block(1)  # who may not read the ledger hears of it here, and not from a task
    pieces = [piece for piece in pieces_of(highest, replay=replay) if piece.kind in {"blocks", "executed"}]
    job = Job(ledger.genesis, number, highest, None, network, tuple(pieces))
    return examined(job, partial(_run, spark, application, None), began)


def _ranges(highest: int) -> list[tuple[int, int]]:
    """Ranges of heights that fill whole subtrees of the history, but for the last one; empty before the first block."""
    size = SMALLEST
    while size < LARGEST and highest > size * TASKS:
        size *= 2
    return [(first, min(first + size - 1, highest)) for first in range(1, max(1, highest) + 1, size)]


def pieces_of(highest: int, *, replay: bool) -> tuple[Piece, ...]:
    """In the order of the single-process verifier; the longest one, which depends on nothing, begins first.

    Only what is found in the indices has to be put in order afterwards.
    """
    executed = [Piece("executed", 1, highest)] if replay else []
    blocks = [Piece("blocks", first, last) for first, last in _ranges(highest)]
    indices = _indices() if len(blocks) > INDEX_TASKS else [Piece("indices", under=(layout.INDEX,))]
    return (*executed, *blocks, Piece("state"), *indices, Piece("rest"))


def _indices() -> Iterable[Piece]:
    """Nothing left out: what is of no known kind is a fault."""
    receipts = [RECEIPTS + bytes([first]) for first in range(256)]
    share = len(receipts) // INDEX_TASKS
    yield Piece("indices", under=(layout.INDEX,), other_than=RECEIPTS)
    for start in range(0, len(receipts), share):
        yield Piece("indices", under=tuple(receipts[start : start + share]))


def examined(job: Job, run_all: Callable[[Job], list[Result]], began: float) -> Report:
    """The report of a job whose pieces `run_all` does."""
    results = run_all(job)
    again = _begun_wrongly(job.pieces, results)
    if again:
        redone = run_all(replace(job, pieces=tuple(again.values())))
        for number, result in zip(again, redone, strict=True):
            results[number] = result
    replayed = job.pieces[0].kind == "executed"
    executed, *rest = results if replayed else [Result([]), *results]
    findings = merge([result.findings for result in rest], executed.findings, executed.reached)
    return Report(
        not findings,
        job.highest,
        sum(result.publications for result in rest),
        findings[0].text if findings else None,
        replayed and executed.reached == job.highest,
        tuple(findings[:MAX_FINDINGS]),
        len(findings[MAX_FINDINGS:]) + sum(result.unlisted for result in rest),
        sum(result.erased for result in rest),
        len(job.pieces),
        time.monotonic() - began,
    )


def _run(spark: SparkSession, application: MakeApplication, at_once: int | None, job: Job) -> list[Result]:
    """A task for each piece, or only so many tasks."""
    work = partial(run, msgspec.msgpack.encode(job), application)
    count = len(job.pieces)
    numbers = spark.range(0, count, 1, count)
    spread = numbers if at_once is None else numbers.coalesce(at_once)
    found = spread.mapInArrow(work, RESULTS).collect()
    results = {row.piece: msgspec.msgpack.decode(bytes(row.result), type=Result) for row in found}
    return [results[number] for number in range(count)]


def _begun_wrongly(pieces: Sequence[Piece], results: Sequence[Result]) -> dict[int, Piece]:
    """The ranges that began with another history than the blocks below them give, with the one that they do give."""
    again: dict[int, Piece] = {}
    peaks: list[tuple[int, bytes]] = []  # of whole ranges: how many of them it covers, and its node
    for number, piece in enumerate(pieces):
        if piece.kind != "blocks":
            continue
        result = results[number]
        before = u64(piece.first - 1) + b"".join(node for _, node in peaks)
        if result.before != before:
            again[number] = replace(piece, before=before)
        if result.subtree is None:
            return again  # what comes after it cannot be said; the range itself says why
        count, node = 1, result.subtree
        while peaks and peaks[-1][0] == count:
            node, count = node_hash(peaks.pop()[1], node), 2 * count
        peaks.append((count, node))
    return again
