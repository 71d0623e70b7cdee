"""The columns of the ledger tables, and blocks as record batches of them.

Four tables are those of every ledger; the others are the ones that the modules of its application declare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from parley.application.application import Application
from parley.application.rows import ChangeTable, ColumnType
from parley.client.evidence import ProvenMisbehaviour
from parley.client.ledger import VerifiedBlock
from parley.consensus.committee import all_brokers
from parley.model.genesis import Genesis
from parley.spark.ledger_rows import (
    Row,
    block_rows,
    change_rows,
    operation_rows,
    receipt_rows,
    vote_rows,
)

ROWS = 4096  # of a record batch
BYTES = 8 * 1024 * 1024  # of the blocks that one is made of, about: rows may be large

_LONG, _INT, _TEXT, _BYTES, _YES = pa.int64(), pa.int32(), pa.string(), pa.binary(), pa.bool_()
_TIME = pa.timestamp("us", tz="UTC")
_TYPES: Mapping[ColumnType, pa.DataType] = {
    "text": _TEXT,
    "bytes": _BYTES,
    "int": _INT,
    "long": _LONG,
    "flag": _YES,
    "pairs": pa.map_(_TEXT, _TEXT),
    "texts": pa.list_(_TEXT),
    "longs": pa.list_(_LONG),
}
# A batch that was refused is a row, too: columns hold whatever a client can sign, or one of them would end every query.
# A place of the ledger: every table begins with it.
_PLACE = [("height", _LONG), ("time", _TIME)]
_LEAF = [("height", _LONG), ("position", _INT), ("time", _TIME)]

Rows = Callable[[VerifiedBlock, Genesis, Application], Iterator[Row]]


@dataclass(frozen=True)
class Table:
    """`bodies`: whether its rows need more of a batch than the receipt tells."""

    schema: pa.Schema
    rows: Rows
    bodies: bool = False


def ledger_tables(application: Application) -> Mapping[str, Table]:
    """By name, but for `evidence`, which is not of the ledger."""
    return {**_TABLES, **{name: _change_table(table) for name, table in application.changes.items()}}


def _change_table(table: ChangeTable) -> Table:
    columns = [(name, _TYPES[kind]) for name, kind in table.columns.items()]
    return Table(pa.schema([*_BY, *columns]), partial(change_rows, table), bodies=True)


def record_batches(
    table: Table, blocks: Iterable[VerifiedBlock], genesis: Genesis, application: Application
) -> Iterator[pa.RecordBatch]:
    waiting: list[Row] = []
    size = 0
    for block in blocks:
        for row in table.rows(block, genesis, application):
            waiting.append(row)
            if len(waiting) == ROWS:
                yield _batch(table.schema, waiting)
                waiting, size = [], 0
        size += sum(map(len, block.raw_leaves)) + sum(len(body) for body in block.bodies if body is not None)
        if waiting and size >= BYTES:
            yield _batch(table.schema, waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(table.schema, waiting)


def _batch(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def evidence_batches(proofs: Sequence[ProvenMisbehaviour], genesis: Genesis) -> Iterator[pa.RecordBatch]:
    """The proofs of equivocation that brokers hold. They are no part of the ledger, so they have no height."""
    organisations = {broker.name: broker.organisation for broker in all_brokers(genesis)}
    if proofs:
        yield _batch(
            EVIDENCE_SCHEMA,
            [
                (one.broker, organisations[one.broker], one.kind, one.view, list(one.held_by), one.record)
                for one in proofs
            ],
        )


# What a leaf says of itself.
_OF_LEAF = [
    *[
        ("topic", _TEXT),
        ("partition", _LONG),
        ("digest", _BYTES),
        ("publisher", _TEXT),
        ("publisher_key", _BYTES),
    ],
    *[("count", _INT), ("code", _TEXT), ("detail", _TEXT), ("first_offset", _LONG)],
    *[("constraint", _BYTES), ("ps", _LONG), ("offsets", pa.list_(_LONG))],
]
_BY = [*_LEAF, ("by", _TEXT), ("by_key", _BYTES), ("change", _TEXT), ("organisation", _TEXT)]

EVIDENCE_SCHEMA = pa.schema(
    [
        *[("broker", _TEXT), ("organisation", _TEXT), ("kind", _TEXT), ("view", _LONG)],
        *[("held_by", pa.list_(_TEXT)), ("record", _BYTES)],
    ]
)

_TABLES: Mapping[str, Table] = {
    "blocks": Table(
        pa.schema(
            [
                *_PLACE,
                *[("id", _BYTES), ("parent", _BYTES), ("epoch", _LONG), ("view", _LONG)],
                *[("failed_views", _LONG), ("proposer", _TEXT), ("batches", _INT), ("publications", _LONG)],
                *[("refused", _INT), ("executed_height", _LONG), ("state_root", _BYTES)],
                *[("history_root", _BYTES), ("batches_root", _BYTES), ("receipts_root", _BYTES)],
            ]
        ),
        block_rows,
    ),
    "operations": Table(
        pa.schema(
            [
                *_LEAF,
                *[("operation", _TEXT), ("publisher", _TEXT), ("publisher_key", _BYTES), ("topic", _TEXT)],
                *[("partition", _LONG), ("count", _INT), ("digest", _BYTES), ("session", _BYTES)],
                *[("sequence", _LONG), ("not_after", _LONG), ("outcome", _TEXT), ("code", _TEXT)],
                *[("detail", _TEXT), ("first_offset", _LONG), ("arguments", _TEXT)],
            ]
        ),
        operation_rows,
        bodies=True,
    ),
    "receipts": Table(
        pa.schema([*_LEAF, ("kind", _TEXT), *_OF_LEAF, ("leaf", _BYTES)]),
        partial(receipt_rows, [name for name, _ in _OF_LEAF]),
    ),
    "votes": Table(
        pa.schema(
            [
                *_PLACE,
                *[("kind", _TEXT), ("view", _LONG), ("voted_height", _LONG), ("voted_block", _BYTES)],
                *[("broker", _TEXT), ("organisation", _TEXT), ("voted", _YES), ("qc_view", _LONG)],
            ]
        ),
        vote_rows,
    ),
}
