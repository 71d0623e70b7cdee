"""What an executor does: fetch a range of offsets from brokers of its choice, check all of it, and hand on Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from parley.client.columns import ColumnPage, Rows
from parley.client.compose import constraint
from parley.model.batches import MessageHeader
from parley.model.expressions import Constraint, parse_rule
from parley.model.names import Value
from parley.spark.arrow import Builder
from parley.spark.errors import DataLoss, RightsChanged, Undecryptable
from parley.spark.gateway import Gateway, gateway
from parley.spark.options import ReadOptions

log = logging.getLogger("parley.spark")


@dataclass(frozen=True)
class Range(InputPartition):
    """Some offsets of a partition, `start` up to, not including, `end`, as a reader with these attributes may see them."""

    topic: str
    partition: int
    start: int
    end: int
    floor: int  # the height at which the reader had the attributes; what brokers show must be at least as new
    attributes: Mapping[str, Value]
    rank: int  # which broker is asked first


def read(options: ReadOptions, piece: Range) -> Iterator[pa.RecordBatch]:
    """The rows, the same whenever it is called; an error rather than a row too many or too few."""
    builder = Builder(options, piece.topic, piece.partition)
    selection = _Selection(options, piece)
    for page in _pages(options, piece):
        batch = builder.batch(page, lambda rows, page=page: selection.wanted(rows, page.headers))  # type: ignore[misc]
        if batch is not None:
            yield batch


def _pages(options: ReadOptions, piece: Range) -> Iterator[ColumnPage]:
    """Each page is on its way while the one before it is handed on."""
    source = gateway(options.network, options.verify, piece.rank)
    offset = piece.start
    coming = source.start(_ask(source, piece, offset))
    try:
        while offset < piece.end:
            try:
                page = source.result(coming)
            except DataLoss as error:
                offset = _after_loss(source, options, piece, offset, error)
                coming = source.start(_ask(source, piece, offset))
                continue
            if page.end is None:
                raise DataLoss(
                    f"Partition {piece.partition} of {piece.topic} ends at {page.head.next_offset}, and the planned batch "
                    f"reaches to {piece.end}: this is not the network that the batch was planned on."
                )
            offset = page.end
            if offset < piece.end:
                coming = source.start(_ask(source, piece, offset))
            yield page
    finally:
        coming.cancel()


def _ask(source: Gateway, piece: Range, offset: int) -> Coroutine[Any, Any, ColumnPage]:
    return source.client.page(piece.topic, offset, partition=piece.partition, floor=piece.floor)


def _after_loss(source: Gateway, options: ReadOptions, piece: Range, offset: int, error: DataLoss) -> int:
    """Where to go on after what was pruned, if the query wants to."""
    where = f"offset {offset} of partition {piece.partition} of {piece.topic}"
    if options.fail_on_data_loss:
        raise DataLoss(
            f"The query was to read from {where} on, and its retention is over ({error.message}). Set failOnDataLoss to "
            f"false to go on after it, and keep data for longer than the query may stand still."
        )
    start = source.run(source.client.topic(piece.topic)).heads[piece.partition].start
    if start <= offset:
        raise error  # brokers contradict each other: asking on would have no end
    log.warning("Offsets %d to %d of %s were pruned before they were read.", offset, start - 1, where)
    return min(start, piece.end)


class _Selection:
    """Which rows the query gets: those of its range that its reader could see when the batch was planned, and that it wants.

    Rights are those of the plan, so that a batch that is run again gives the same rows; but what may not be seen any more
    is not shown by anybody, and then a batch cannot be run again.
    """

    def __init__(self, options: ReadOptions, piece: Range) -> None:
        self._piece = piece
        self._fail_on_undecryptable = options.fail_on_undecryptable
        self._constraint: Constraint | None = constraint(options.where) if options.where else None
        self._allowed: dict[str, bool] = {"": True}

    def wanted(self, rows: Rows, headers: Mapping[bytes, MessageHeader]) -> Sequence[int] | None:
        """The places of the wanted rows, None for all."""
        for offset, rule in rows.hidden:
            if offset < self._piece.end and self._allows(rule):
                raise RightsChanged(
                    f"Offset {offset} of partition {self._piece.partition} of {self._piece.topic} was to be read as this "
                    f"reader could at height {self._piece.floor}, and its attributes do not allow that any more. A batch "
                    f"that was planned before cannot be run again: start the query with a new checkpoint."
                )
        if rows.unopened:
            self._tell_unopened(rows)
        whole = rows.end <= self._piece.end and self._constraint is None
        if whole and all(map(self._allows, set(rows.rules))):
            return None
        return [
            at
            for at, (offset, rule, header) in enumerate(
                zip(rows.offsets, rows.rules, rows.headers, strict=True)
            )
            if offset < self._piece.end and self._allows(rule) and self._matches(header, headers)
        ]

    def _tell_unopened(self, rows: Rows) -> None:
        """Log messages that cannot be opened, or fail. They have no row, and hold up no other."""
        where = f"partition {self._piece.partition} of {self._piece.topic}"
        for offset, reason in rows.unopened:
            if offset < self._piece.end and self._fail_on_undecryptable:
                raise Undecryptable(
                    f"The message at offset {offset} of {where} cannot be opened: {reason}. Set onUndecryptable to skip to go "
                    f"on without it."
                )
        offset, reason = rows.unopened[0]
        log.warning(
            "%d messages of %s cannot be opened and have no rows; that at offset %d: %s.",
            len(rows.unopened),
            where,
            offset,
            reason,
        )

    def _allows(self, rule: str) -> bool:
        if rule not in self._allowed:
            self._allowed[rule] = parse_rule(rule).allows(self._piece.attributes)
        return self._allowed[rule]

    def _matches(self, header: bytes, headers: Mapping[bytes, MessageHeader]) -> bool:
        return self._constraint is None or self._constraint.matches(dict(headers[header].tags))
