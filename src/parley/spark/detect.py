"""The job that looks for misbehaviour: ledger tables in, alerts out, each once however often the job is restarted.

The stream is Spark's, exactly once up to the sink. The sink names its files after what they hold, so that a micro-batch
that Spark runs again writes nothing new. Proofs of equivocation are not in the ledger but with the brokers, in no order
that a stream could follow: they are asked for now and then, and an alert of one has a file of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from parley.applications import application_of
from parley.consensus.committee import committee_of
from parley.ledger.proofs import verifier_of
from parley.model.genesis import Genesis
from parley.spark.auditing import Ledger
from parley.spark.detect_brokers import accuse
from parley.spark.detect_processor import ALERTS, BROKERS, CLIENT, Detector
from parley.spark.detect_rules import Alert, Thresholds, counted
from parley.spark.detect_table import AlertTable
from parley.spark.errors import Unreachable

NAME = "parley-watch"
# Rows of one table come in the order of block time, so that nothing is late; two tables may be apart.
LATE = "1 second"
LOOK_SECONDS = 0.2  # between two looks at whether it goes on
EVIDENCE_SECONDS = 5.0  # between two questions to brokers for what they hold against each other
INTERVAL = "2 seconds"  # between micro-batches: each of them is a few files
DEFAULTS = Thresholds()
MAX_BLOCKS = 5_000  # of a micro-batch, which bounds what a worker sorts


@dataclass(frozen=True)
class Watch:
    """What to watch, how closely, and where to write."""

    genesis: Genesis
    options: Mapping[str, str]  # of `format("parley")`: which network, and as whom
    table: Path
    checkpoint: Path
    limits: Thresholds = DEFAULTS
    delta: Path | None = None

    @property
    def shard(self) -> int | None:
        """The shard that the options name."""
        return int(self.options["shard"]) if "shard" in self.options else None


def watched(spark: SparkSession, watch: Watch) -> DataFrame:
    """The stream of alerts of a network."""
    operations, votes = (_ledger_table(spark, watch, name) for name in ("operations", "votes"))
    return alerts_of(operations, votes, watch.genesis, watch.limits, watch.shard)


def _ledger_table(spark: SparkSession, watch: Watch, name: str) -> DataFrame:
    reader = spark.readStream.format("parley").options(**watch.options)
    return reader.option("table", name).option("maxBlocksPerTrigger", MAX_BLOCKS).load()


def alerts_of(
    operations: DataFrame, votes: DataFrame, genesis: Genesis, limits: Thresholds, shard: int | None = None
) -> DataFrame:
    """Streams of the two tables of a shard as a stream of alerts."""
    application_of(genesis)  # so that the codes of its modules are known
    grouped = _operations(operations).unionByName(_votes(votes)).groupBy("watched")
    return grouped.transformWithState(Detector(genesis, limits, shard), ALERTS, "Append", "EventTime")


def _operations(operations: DataFrame) -> DataFrame:
    time, arguments = f.col("time"), f.col("arguments")
    # A publication's topic is in its receipt; other operations have it among their arguments.
    named = f.when(f.col("operation").endswith("_topic"), f.get_json_object(arguments, "$.name"))
    topic = f.coalesce(
        f.nullif("topic", f.lit("")), f.get_json_object(arguments, "$.topic"), named, f.lit("")
    )
    return (
        operations.withWatermark("time", LATE)
        # No block is that old; but a filter that does not name the time goes first, and then time stands still for as
        # long as nobody does wrong.
        .where(f.col("code").isin(sorted(counted())) | (time < f.lit("1970-01-01")))
        .select(
            f.concat(f.lit(CLIENT), f.coalesce("publisher", f.lit(""))).alias("watched"),
            "height",
            f.col("position").cast("int").alias("position"),
            f.unix_millis(time).alias("at"),
            f.col("code").alias("word"),
            topic.alias("topic"),
            f.hex("digest").alias("digest"),
            f.coalesce("operation", f.lit("")).alias("operation"),
            "time",
        )
    )


def _votes(votes: DataFrame) -> DataFrame:
    votes = votes.withWatermark("time", LATE).where((f.col("kind") == "vote") & f.col("voted"))
    return votes.select(
        f.lit(BROKERS).alias("watched"),
        f.col("voted_height").alias("height"),
        f.lit(0).alias("position"),
        f.unix_millis("time").alias("at"),
        f.col("broker").alias("word"),
        f.lit("").alias("topic"),
        f.lit("").alias("digest"),
        f.lit("").alias("operation"),
        "time",
    )


class Job:
    """A watch that writes its table. `tell` gets alerts after they were written, and may get them again after a crash."""

    def __init__(self, watch: Watch, tell: Callable[[Sequence[Alert]], None]) -> None:
        self._watch = watch
        self._table = AlertTable(watch.table, watch.delta)
        self._tell = tell
        committee = committee_of(watch.genesis, watch.shard)
        self._members, self._verifier = committee.members, verifier_of(committee, watch.genesis.start_time)

    def run(self, spark: SparkSession, ledger: Ledger, *, once: bool, ended: Event | None = None) -> None:
        """To the end of what is certified now, or until `ended`. Brokers are asked for proofs meanwhile, and at the end."""
        ended, asked = ended or Event(), time.monotonic()
        if ended.is_set():
            return
        query = self.start(watched(spark, self._watch), once=once)
        while query.isActive and not ended.wait(LOOK_SECONDS):
            if time.monotonic() - asked > EVIDENCE_SECONDS:
                with suppress(Unreachable):  # the stream waits for the network as well
                    self.ask(ledger)
                asked = time.monotonic()
        if ended.is_set():
            query.stop()
        query.awaitTermination()  # raises what ended it, if that was an error
        if not ended.is_set():  # who has asked for the end does not wait for a network that may not answer
            self.ask(ledger)

    def ask(self, ledger: Ledger) -> None:
        """What brokers hold against each other now."""
        self.accuse([proof.record for proof in ledger.evidence()], ledger.head().time)

    def start(self, found: DataFrame, *, once: bool = False) -> StreamingQuery:
        """Begin, or go on where this checkpoint's last run ended. `once`: to the end of what is certified now."""
        writer = found.writeStream.queryName(NAME).outputMode("append").foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._watch.checkpoint))
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=INTERVAL)
        return writer.start()

    def accuse(self, records: Iterable[bytes], now: int) -> None:
        """Take proofs that brokers hold into account; `now` is the certified block time."""
        proved = accuse(records, self._members, self._verifier, now)
        self._told([alert for alert in proved if self._table.write(f"evidence-{alert.alert}", 0, [alert])])

    def _take(self, rows: DataFrame, number: int) -> None:
        # Alerts are few, or thresholds are wrong: a client has one open for each kind.
        found = [msgspec.convert(row.asDict(), Alert) for row in rows.collect()]
        found.sort(key=lambda alert: (alert.time, alert.kind, alert.subject, alert.alert))
        self._table.write(self._query(), number, found)
        self._told(found)

    def _told(self, found: Sequence[Alert]) -> None:
        if found:
            self._tell(found)

    def _query(self) -> str:
        """The name that Spark gave the query when its checkpoint was made, which restarts keep."""
        return str(json.loads((self._watch.checkpoint / "metadata").read_bytes())["id"])
