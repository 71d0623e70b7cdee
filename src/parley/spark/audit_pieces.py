"""One piece of an audit, as a task does it: a range of blocks, or a part of what a store holds besides them.

Every piece is done by the checks of `parley.ledger.audit_blocks`, which the single-process verifier uses as well. A piece
believes of the rest of the ledger only what it needs to begin, and the driver compares that with what others found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from parley.applications import application_of
from parley.crypto.merkle import MountainRange, node_hash
from parley.ledger.application import Mounted
from parley.ledger.audit_blocks import Audit, Check
from parley.ledger.audit_chain import stored_history
from parley.ledger.audit_entries import Fault
from parley.model.genesis import Genesis
from parley.spark.auditing import Ledger
from parley.spark.errors import ParleySparkError
from parley.spark.findings import MAX_FINDINGS, Finding
from parley.spark.options import Network
from parley.spark.shown_store import ShownStore
from parley.store.errors import StoreError, StoreFailed
from parley.store.interface import KeyValue

CACHE_BYTES = 32 * 1024 * 1024  # of the store, for each task
RESULTS = "piece long, result binary"

MakeApplication = Callable[[Genesis, int], Mounted]


def mounted(genesis: Genesis, shard: int) -> Mounted:
    """The application of a shard, made where it is needed: only this function's name travels to tasks."""
    return application_of(genesis).mount(genesis, shard)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """`before` is the history up to `first`, if what is stored of it is not to be believed."""

    kind: Literal["blocks", "executed", "state", "indices", "rest"]
    first: int = 0
    last: int = 0
    before: bytes | None = None
    under: tuple[bytes, ...] = ()  # the indices that begin so,
    other_than: bytes | None = None  # but for those that begin so


class Job(msgspec.Struct, frozen=True, array_like=True):
    """Where the ledger is: in a store, under the same path for every task, or with the brokers of a network."""

    genesis: Genesis
    shard: int
    highest: int
    store: str | None
    network: Network | None
    pieces: tuple[Piece, ...]


class Result(msgspec.Struct, array_like=True):
    """`before` is the history that a range began with, `subtree` the node above its own blocks, if it fills one."""

    findings: list[Finding]
    unlisted: int = 0
    publications: int = 0
    erased: int = 0
    reached: int = 0
    before: bytes | None = None
    subtree: bytes | None = None


def run(
    job: bytes, application: MakeApplication, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows with the number of a piece become rows with its result."""
    decoded = msgspec.msgpack.decode(job, type=Job)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = run_piece(decoded, number, application)
            yield pa.RecordBatch.from_pydict(
                {"piece": [number], "result": [msgspec.msgpack.encode(result)]},
                schema=pa.schema([("piece", pa.int64()), ("result", pa.binary())]),
            )


def run_piece(job: Job, number: int, application: MakeApplication) -> Result:
    piece = job.pieces[number]
    if job.network is not None:
        shown = ShownStore(Ledger(job.network, number), piece.first, piece.last, job.highest)
        return look(job, piece, shown, application)
    from parley.store.disk import open_store  # noqa: PLC0415 - an extra, for stores only

    assert job.store is not None
    path = Path(job.store)
    try:
        with open_store(path, create=False, cache_bytes=CACHE_BYTES, read_only=True) as store:
            return look(job, piece, store, application)
    except StoreFailed as error:
        return Result([Finding(Check.WHOLE, piece.first or None, b"", str(error))])
    except StoreError as error:
        raise ParleySparkError(f"{error} Every worker needs the store under this path.") from None


def look(job: Job, piece: Piece, store: KeyValue, application: MakeApplication) -> Result:
    """Do a piece of the job on a store that is open."""
    if piece.other_than is not None:
        store = _Others(store, piece.other_than)
    return _Work(job, piece, store, application).do()


class _Others:
    """A store in whose lists everything under a prefix is left out, because other tasks look at it.

    The prefix itself is no entry under it, so that it is not left out.
    """

    def __init__(self, store: KeyValue, prefix: bytes) -> None:
        self._store = store
        self._prefix = prefix

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        left_out = self._prefix
        return (
            (key, value)
            for key, value in self._store.scan(prefix, start)
            if key == left_out or not key.startswith(left_out)
        )


class _Work:
    """The checks of one piece, with everything that they find."""

    def __init__(self, job: Job, piece: Piece, store: KeyValue, application: MakeApplication) -> None:
        self._result = Result([])
        self._audit = Audit(
            store,
            job.genesis,
            application(job.genesis, job.shard),
            shard=job.shard,
            replay=piece.kind == "executed",
            shown=job.network is not None,
            found=self._found,
        )
        self._audit.highest = job.highest
        self._piece = piece
        self._store = store

    def do(self) -> Result:
        match self._piece.kind:
            case "blocks":
                self._blocks(self._piece)
            case "executed":
                self._executed()
            case "state":
                self._audit.state()
            case "indices":
                for under in self._piece.under:
                    self._audit.indices(under)
            case "rest":
                self._audit.rest()
        return self._result

    def _blocks(self, piece: Piece) -> None:
        audit, result = self._audit, self._result
        before = (
            stored_history(self._store, piece.first - 1)
            if piece.before is None
            else MountainRange.decode(piece.before)
        )
        result.before = None if before is None else before.encode()
        result.subtree = _subtree([audit.leaf for _ in audit.blocks(piece.first, piece.last, before)])
        result.publications, result.erased = audit.publications, audit.gone

    def _executed(self) -> None:
        try:
            for height in self._audit.executed():
                self._result.reached = height
        except Fault as fault:
            self._found(fault, self._result.reached + 1)

    def _found(self, fault: Fault, height: int | None = None) -> None:
        if len(self._result.findings) >= MAX_FINDINGS:
            self._result.unlisted += 1
            return
        check = self._audit.check
        if height is None and Check.LINKS <= check <= Check.INDICES and self._audit.at:
            height = self._audit.at
        self._result.findings.append(Finding(check, height, fault.entry, fault.what))


def _subtree(leaves: list[bytes | None]) -> bytes | None:
    """The node above so many leaves of the history; None if they fill none, or one is not known."""
    known = [leaf for leaf in leaves if leaf is not None]
    if not known or len(known) != len(leaves) or len(known).bit_count() != 1:
        return None
    while len(known) > 1:
        known = [node_hash(left, right) for left, right in zip(known[::2], known[1::2], strict=True)]
    return known[0]
