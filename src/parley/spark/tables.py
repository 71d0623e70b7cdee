"""The ledger as tables, for holders of the right `auditor`: blocks, operations, receipts, votes, and those of modules.

Executors read ranges of heights from brokers of their choice and check every block against the certified history. A
stream's offset is a height with the id of its block: another history, or one that went back, is an error and never a
repetition (P23).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from parley.application.rows import EVIDENCE
from parley.applications import VARIABLE
from parley.client.ledger import VerifiedBlock
from parley.consensus.committee import committee_of
from parley.model.codec import DECODE_ERRORS
from parley.spark.auditing import Ledger
from parley.spark.errors import BackwardOffset, BadOption, Unreachable
from parley.spark.ledger_columns import EVIDENCE_SCHEMA, evidence_batches, ledger_tables, record_batches
from parley.spark.options import Network, TableOptions, application_at, table_options

log = logging.getLogger("parley.spark")

KEPT_SECONDS = 0.2  # for which an answer about the head serves: Spark asks many times a second
BLOCKS_A_TASK = 1024
VERSION = 2


def table_schema(options: Mapping[str, str]) -> StructType:
    chosen = table_options(options)
    if chosen.table == EVIDENCE:
        return from_arrow_schema(EVIDENCE_SCHEMA)
    return from_arrow_schema(ledger_tables(application_at(chosen.network))[chosen.table].schema)


def table_reader(options: Mapping[str, str]) -> DataSourceReader:
    chosen = table_options(options)
    return EvidenceReader(chosen.network) if chosen.table == EVIDENCE else TableReader(chosen)


def table_stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    chosen = table_options(options)
    if chosen.table == EVIDENCE:
        raise BadOption(
            "The table evidence has no order that a stream could follow: each broker holds the proofs that it has seen. "
            "Read it as a batch, as often as you like."
        )
    if chosen.last is not None:
        raise BadOption("endingHeight is for batch queries; a stream has no end.")
    return TableStreamReader(chosen)


@dataclass(frozen=True)
class Heights(InputPartition):
    """Blocks `first` to `last`; `block` is the id of the last one, if it is known. `rank`: which broker is asked first."""

    first: int
    last: int
    block: bytes | None = None
    rank: int = 0


def split(first: int, last: int, least: int | None, block: bytes | None = None) -> list[Heights]:
    """Ranges of about the same size. None if there is nothing between the two."""
    count = last - first + 1
    if count <= 0:
        return []
    parts = min(count, least or -(-count // BLOCKS_A_TASK))
    ends = [first + count * part // parts for part in range(parts + 1)]
    return [
        Heights(low, high - 1, block if high - 1 == last else None, rank)
        for rank, (low, high) in enumerate(pairwise(ends))
    ]


def read_heights(options: TableOptions, heights: Heights) -> Iterator[pa.RecordBatch]:
    """In an executor."""
    ledger = Ledger(options.network, heights.rank)
    table = ledger_tables(ledger.application).get(options.table)
    if table is None:
        raise BadOption(
            f"There is no table {options.table!r} here: {VARIABLE} must be the same on every node."
        )
    blocks = _checked(ledger.blocks(heights.first, heights.last, bodies=table.bodies), heights)
    yield from record_batches(table, blocks, ledger.genesis, ledger.application)


def _checked(blocks: Iterator[VerifiedBlock], heights: Heights) -> Iterator[VerifiedBlock]:
    for block in blocks:
        if block.height == heights.last and heights.block not in {None, block.id}:
            raise BackwardOffset(_other_history(heights.last))
        yield block


class TableReader(DataSourceReader):
    """All that is certified when the query is planned, or the part of it that options name."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def partitions(self) -> list[Heights]:
        options, ledger = self._options, Ledger(self._options.network)
        head = ledger.head().height
        ledger.block(1)  # who may not read the ledger hears of it here, and not from a task
        last = head if options.last is None else options.last
        if last > head:
            raise BadOption(f"endingHeight is {last}, and the ledger is certified up to height {head}.")
        return split(options.first, last, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Heights):  # Spark also reads once if there is no partition
            yield from read_heights(self._options, partition)


class EvidenceReader(DataSourceReader):
    """The proofs of equivocation that brokers hold now, each checked."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, _: InputPartition) -> Iterator[pa.RecordBatch]:
        ledger = Ledger(self._network)
        yield from evidence_batches(ledger.evidence(), ledger.genesis)


# -- streams ---------------------------------------------------------------------------------------------------------


class LedgerPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All blocks up to `height` are done; `block` is the id of that one, empty before the first."""

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    chain: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    shard: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]  # whose committee certified the block
    height: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    block: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$")]


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`_here` is made when it is needed, and stays where it was made."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._target: LedgerPosition | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return msgspec.to_builtins(self._here.position(self._options.first - 1))  # type: ignore[no-any-return]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun, here = _decoded(start), self._here
        try:
            here.require_same_history(begun)
            end = here.newest() if self._target is None else self._target
            if end.height <= begun.height:
                return start  # nothing new; Spark itself would take a lower one, too
            if isinstance(limit, ReadMaxRows) and end.height > begun.height + limit.max_rows:
                end = here.position(begun.height + limit.max_rows)
        except Unreachable as error:  # which would end the query
            log.warning("No certified progress: %s", error)
            return start
        return msgspec.to_builtins(end)  # type: ignore[no-any-return]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Counted in blocks."""
        most = self._options.max_blocks
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        try:
            return msgspec.to_builtins(self._here.newest())  # type: ignore[no-any-return]
        except Unreachable:
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._here.newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Heights]:
        begun, ended = _decoded(start), _decoded(end)
        if ended.height < begun.height:
            raise BackwardOffset(
                f"The offsets go back from height {begun.height} to {ended.height}, which would repeat rows. Start the "
                f"query with a new checkpoint."
            )
        last = bytes.fromhex(ended.block) if ended.block else None
        return split(begun.height + 1, ended.height, self._options.min_partitions, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Heights):
            yield from read_heights(self._options, partition)

    def __getstate__(self) -> dict[str, Any]:
        """A task gets the options and nothing of the driver."""
        return {"_options": self._options, "_target": None}

    @cached_property
    def _here(self) -> _Driver:
        return _Driver(self._options.network)


class _Driver:
    """What is certified, asked for as seldom as possible."""

    def __init__(self, network: Network) -> None:
        self._ledger = Ledger(network)
        self._began = time.time_ns() // 1_000_000
        self._chain = self._ledger.genesis.chain.hex()
        self._committee = committee_of(self._ledger.genesis, network.shard)
        self._newest: tuple[float, LedgerPosition] | None = None
        self._head_time = 0
        self._same: LedgerPosition | None = None

    def newest(self) -> LedgerPosition:
        if self._newest is None or time.monotonic() - self._newest[0] >= KEPT_SECONDS:
            head = self._ledger.head()
            found = self.position(head.height)
            self._newest, self._head_time = (time.monotonic(), found), head.time
        return self._newest[1]

    def position(self, height: int) -> LedgerPosition:
        if height < 1:
            first = self._committee
            return LedgerPosition(VERSION, self._chain, first.shard, first.epoch, 0, "")
        block = self._ledger.block(height)
        if block is None:
            raise BadOption(f"startingHeight is {height + 1}, and the ledger has no block {height} yet.")
        header = block.header
        return LedgerPosition(VERSION, self._chain, header.shard, header.epoch, height, block.id.hex())

    def require_same_history(self, start: LedgerPosition) -> None:
        """That the block at which the query stands is one of this ledger: once for each place that it comes to."""
        if start == self._same or (self._newest is not None and start == self._newest[1]):
            return
        if start.chain != self._chain:
            raise BackwardOffset(
                "The checkpoint is of another network: its chain is not that of the genesis file. Start the query with a "
                "new checkpoint, or name the network that it was made with."
            )
        if start.shard != self._committee.shard:
            raise BackwardOffset(
                f"The checkpoint is of shard {start.shard}, and this is shard {self._committee.shard}. Name the shard that the "
                f"query was made with, or start it with a new checkpoint."
            )
        if start.height > self.newest().height:
            # A broker may be behind. But a header that was made after this query began, and so after its checkpoint was
            # written, knows of every block in that.
            if self._head_time > self._began:
                raise BackwardOffset(
                    f"The checkpoint stands at height {start.height}, and the ledger is certified up to "
                    f"{self.newest().height} only: it went back. Find out why before starting with a new checkpoint."
                )
            return
        if start.height and self.position(start.height) != start:
            raise BackwardOffset(_other_history(start.height))
        self._same = start


def _decoded(offset: Mapping[str, Any]) -> LedgerPosition:
    try:
        return msgspec.convert(dict(offset), LedgerPosition)
    except DECODE_ERRORS as error:
        raise BackwardOffset(
            f"The checkpoint holds no position of a ledger table ({error}). Start the query with a new checkpoint."
        ) from None


def _other_history(height: int) -> str:
    return (
        f"Block {height} of the ledger is not the one that the checkpoint has seen there: it is of another history. Start "
        f"the query with a new checkpoint, and find out why."
    )
