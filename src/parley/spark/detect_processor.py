"""The rules as Spark runs them: one stateful operator, with a key for each client and one for all brokers.

A key's state is the rules' own, as bytes in one value: small, bounded, and written once for each micro-batch. Spark's
event time is block time. Where it has passed the window of a client that did nothing more, its state goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from parley.applications import application_of
from parley.consensus.committee import committee_of
from parley.model.genesis import Genesis
from parley.spark.detect_brokers import BrokersState, Voted, heard
from parley.spark.detect_rules import Alert, ClientState, Event, Thresholds, observe, rest

BROKERS = "brokers"  # the key of all votes
CLIENT = "client:"  # what the key of a client's operations begins with; nothing follows for unregistered keys

_STATE = StructType([StructField("state", BinaryType())])

# `time` is block time in ms: what a Python worker makes of a timestamp depends on where it runs.
ALERTS = StructType(
    [
        StructField("alert", StringType()),
        StructField("kind", StringType()),
        StructField("subject", StringType()),
        StructField("organisation", StringType()),
        StructField("phase", StringType()),
        StructField("severity", StringType()),
        StructField("height_from", LongType()),
        StructField("height_to", LongType()),
        StructField("time", LongType()),
        StructField("count", LongType()),
        StructField("words", StringType()),
        StructField("evidence", ArrayType(LongType())),
    ]
)


class Detector(StatefulProcessor):
    """Rows in: watched, height, position, at (ms of block time), word (a code, or a broker), topic, digest, operation."""

    def __init__(self, genesis: Genesis, limits: Thresholds, shard: int | None = None) -> None:
        self._genesis = genesis
        self._shard = shard
        self._limits = limits

    def init(self, handle: StatefulProcessorHandle) -> None:
        application_of(self._genesis)  # so that the codes of its modules are known here
        self._handle = handle
        self._state: ValueState = handle.getValueState("watched", _STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: ANN401, ARG002, N802, N803 - names and types are Spark's
        watched = str(key[0])
        if watched == BROKERS:
            return map(alert_row, self._hear(rows))
        return map(alert_row, self._observe(watched.removeprefix(CLIENT), rows))

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        client = str(key[0]).removeprefix(CLIENT)
        state = self._client()
        alerts, wake = rest(state, client, timerValues.getCurrentWatermarkInMs(), self._limits)
        if wake:
            self._handle.registerTimer(wake)
            state.timer = wake
            self._state.update((_encode(state),))
        else:
            self._state.clear()
        return map(alert_row, alerts)

    def _hear(self, rows: Iterator[Row]) -> list[Alert]:
        state = BrokersState() if (kept := self._kept()) is None else _brokers.decode(kept)
        # A micro-batch is of some blocks; within it, rows come in any order.
        votes = sorted(Voted(row.height, row.at, row.word) for row in rows)
        members = committee_of(self._genesis, self._shard).members
        alerts = [alert for vote in votes for alert in heard(state, members, vote, self._limits)]
        self._state.update((_encode(state),))
        return alerts

    def _observe(self, client: str, rows: Iterator[Row]) -> list[Alert]:
        state = self._client()
        events = sorted(
            Event(row.height, row.position, row.at, row.word, row.topic, row.digest, row.operation)
            for row in rows
        )
        alerts = [alert for event in events for alert in observe(state, client, event, self._limits)]
        if not state.timer and events:
            # Later than any watermark: events that a watermark has passed do not come here.
            state.timer = events[-1].time + self._limits.window + 1
            self._handle.registerTimer(state.timer)
        self._state.update((_encode(state),))
        return alerts

    def _client(self) -> ClientState:
        return ClientState() if (kept := self._kept()) is None else _clients.decode(kept)

    def _kept(self) -> bytes | None:
        found = self._state.get()
        return None if found is None else bytes(cast("bytes", found[0]))


def alert_row(alert: Alert) -> Row:
    plain = msgspec.to_builtins(alert, builtin_types=(bytes,)) | {"evidence": list(alert.evidence)}
    return Row(**{name: plain[name] for name in ALERTS.names})


_encode = msgspec.msgpack.Encoder().encode
_clients = msgspec.msgpack.Decoder(ClientState)
_brokers = msgspec.msgpack.Decoder(BrokersState)
