"""`bench spark`: what checking costs a Spark job that reads, how fast one publishes, and how fast a ledger is audited.

The certified source is compared with a synthetic one that hashes the same rows from memory, in alternating rounds of one
session. The brokers that serve run on the same cores, and their work is part of what the source costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from parley.bench.errors import Unavailable
from parley.bench.figures import spread
from parley.bench.measure import enough_in_flight, measure, publisher_jobs
from parley.bench.network import Network
from parley.node.config import load
from parley.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 0.5  # of the synthetic source that hashes, at the smallest size
TASKS = 2
CORES = (1, TASKS)
LOAD_SECONDS = 5.0  # of one helping of data
SINK_SHARE = 16  # of the rows that are read, one in so many is published again
SINK = "bench-sink"
MILLION = 1_000_000


@dataclass(frozen=True)
class Plan:
    """How much is read by how many rounds. Larger messages are fewer, so that they are about as many bytes."""

    sizes: tuple[int, ...] = (128, 1024)
    rows: int = 1_000_000  # of the first size
    batch: int = 100
    runs: int = 5
    brokers: int = 4
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def audits(self) -> int:
        """An audit takes longer than all the rest, and varies less."""
        return min(self.runs, 3)

    def rows_of(self, size: int) -> int:
        return max(1, self.rows * min(1024, 2 * self.sizes[0]) // max(size, 2 * self.sizes[0]))


class Rate(Struct):
    """One line: rows per second, and those of what it is compared with in the same rounds."""

    case: str
    size: int | None
    rows_per_s: float
    baseline: str | None
    baseline_rows_per_s: float | None
    ratio: float | None
    spread: float


class AuditTime(Struct):
    cores: int
    publications: int
    seconds: float
    seconds_per_million: float
    spread: float


class Result(Struct):
    """What `bench spark` prints."""

    results: list[Rate]
    audit: list[AuditTime]
    goal: float
    reached: float  # the ratio that the goal is about
    brokers: int
    batch: int
    runs: int
    rows: dict[int, int]  # by size
    arrow_rows: dict[int, int]  # of one Arrow batch, by size


def steps(plan: Plan) -> int:
    """How often `advance` is called."""
    return len(plan.sizes) * (2 + plan.runs) + 1 + plan.runs + len(CORES) * plan.audits


async def work(home: Path, plan: Plan, advance: Callable[[], None], *, keep: bool = False) -> Result:
    network = Network(home / "network", plan.brokers, plan.settings)
    try:
        async with network.running():
            (identity,) = await network.register("load", 1)
            for size in plan.sizes:
                await _load(network, identity, plan, size)
                advance()
            await network.create_topics([SINK])
            where = {"genesis": str(network.directory / "genesis.json"), "identity": str(identity)}
            with _session(TASKS) as spark:
                read = [_Reading(spark, plan, size, where).measure(advance) for size in plan.sizes]
                sink = _sink(spark, plan, where, read[0].arrow_rows, advance)
        audits = [_audit(network, plan, cores, advance) for cores in CORES]
    finally:
        if not keep:
            network.remove()
    rates = [rate for one in read for rate in one.rates()]
    return Result(
        results=[*rates, sink, *_audit_rates(audits)],
        audit=audits,
        goal=GOAL,
        reached=rates[0].ratio or 0.0,
        brokers=plan.brokers,
        batch=plan.batch,
        runs=plan.runs,
        rows={one.size: one.rows for one in read},
        arrow_rows={one.size: one.arrow_rows for one in read},
    )


def topic_of(size: int) -> str:
    return f"bench-{size}"


async def _load(network: Network, identity: Path, plan: Plan, size: int) -> None:
    """At least so many rows, as fast as they are certified."""
    topic, wanted, published = topic_of(size), plan.rows_of(size), 0
    await network.create_topics([topic])
    jobs = publisher_jobs(
        network,
        [identity],
        topics=[topic],
        size=size,
        batch=plan.batch,
        in_flight=enough_in_flight(size, plan.batch),
    )
    while published < wanted:
        readings = await measure(network, jobs, LOAD_SECONDS, warm_up=0.0)
        published += sum(report.publications for report in readings.reports)


@contextmanager
def _session(cores: int) -> Iterator[SparkSession]:
    from parley.bench.spark_source import Synthetic  # noqa: PLC0415 - the extra `spark`

    spark = spark_session("parley bench spark", f"local[{cores}]")
    try:
        spark.dataSource.register(Synthetic)
        yield spark
    finally:
        spark.stop()


def timed(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


class _Reading:
    """All ways to get rows of one size, one after another in every round."""

    def __init__(self, spark: SparkSession, plan: Plan, size: int, where: Mapping[str, str]) -> None:
        self._spark = spark
        self._runs = plan.runs
        self.size = size
        self._options = {**where, "subscribe": topic_of(size), "minPartitions": str(TASKS)}
        self.rows = self._network("certified", payload="false").count()
        if self.rows < plan.rows_of(size):
            raise Unavailable(f"Only {self.rows} of the messages that were published can be read.")
        self.arrow_rows = self._arrow_rows()
        self._seconds: dict[str, list[float]] = {case: [] for case in self._cases()}

    def measure(self, advance: Callable[[], None]) -> _Reading:
        """One round is for warming up and does not count."""
        for number in range(1 + self._runs):
            for case, frame in self._cases().items():
                taken = timed(frame.write.format("noop").mode("overwrite").save)
                if number:
                    self._seconds[case].append(taken)
            advance()
        return self

    def rates(self) -> list[Rate]:
        compared = (
            ("certified", "hashing from memory"),
            ("certified", "bytes from memory"),
            ("trusted", "bytes from memory"),
            ("hashing from memory", "bytes from memory"),
        )
        return [self._rate(case, baseline) for case, baseline in compared]

    def _cases(self) -> dict[str, DataFrame]:
        return {
            "hashing from memory": self._synthetic(hashed=True),
            "certified": self._network("certified"),
            "bytes from memory": self._synthetic(hashed=False),
            "trusted": self._network("trusted"),
        }

    def _network(self, verify: str, **more: str) -> DataFrame:
        return self._spark.read.format("parley").options(**self._options, verify=verify, **more).load()

    def _synthetic(self, *, hashed: bool) -> DataFrame:
        return synthetic(self._spark, self.rows, self.size, self.arrow_rows, hashed=hashed)

    def _arrow_rows(self) -> int:
        """Of the batches that the real source makes, the middle one of the first few: the other source makes such, too."""
        from parley.spark.source import ParleySource  # noqa: PLC0415 - the extra `spark`

        source = ParleySource(self._options)
        reader = source.reader(source.schema())
        first = islice(reader.read(reader.partitions()[0]), 8)
        sizes: list[int] = [batch.num_rows for batch in first]
        return statistics.median_low(sizes)

    def _rate(self, case: str, baseline: str) -> Rate:
        """The ratio is the median of the rounds': what the machine does meanwhile slows both down."""
        ours, theirs = self._seconds[case], self._seconds[baseline]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        return Rate(
            f"{case} {self.size} B",
            self.size,
            round(self.rows / statistics.median(ours), 1),
            baseline,
            round(self.rows / statistics.median(theirs), 1),
            round(statistics.median(ratios), 3),
            spread(ratios),
        )


def synthetic(spark: SparkSession, rows: int, size: int, batch: int, *, hashed: bool) -> DataFrame:
    reader = spark.read.format("parley-synthetic").options(rows=rows, size=size, batch=batch, tasks=TASKS)
    return reader.option("hash", hashed).load()


def _sink(
    spark: SparkSession, plan: Plan, where: Mapping[str, str], batch: int, advance: Callable[[], None]
) -> Rate:
    """Rows from memory, staged by two tasks and committed by the driver."""
    size, rows = plan.sizes[0], max(1, plan.rows // SINK_SHARE)
    frame = synthetic(spark, rows, size, min(batch, rows), hashed=False).select("value")
    taken = []
    for number in range(1 + plan.runs):
        writer = frame.write.format("parley").mode("append").options(**where, topic=SINK)
        seconds = timed(writer.save)
        if number:
            taken.append(seconds)
        advance()
    rate = round(rows / statistics.median(taken), 1)
    return Rate(f"sink {size} B", size, rate, None, None, None, spread(taken))


def _audit(network: Network, plan: Plan, cores: int, advance: Callable[[], None]) -> AuditTime:
    """The ledger of one broker, which has stopped; blocks are not executed again."""
    from parley.spark.audit import audit_store  # noqa: PLC0415 - the extra `spark`

    path = load(network.brokers[0].config).data
    taken, publications = [], 0
    with _session(cores) as spark:
        for _ in range(plan.audits):
            report = audit_store(spark, path, network.genesis)
            if not report.valid:
                raise Unavailable(f"The ledger that was measured is not sound: {report.first_fault}.")
            publications = report.publications
            taken.append(report.seconds)
            advance()
    seconds = statistics.median(taken)
    each = seconds * MILLION / max(1, publications)
    return AuditTime(cores, publications, round(seconds, 2), round(each, 2), spread(taken))


def _audit_rates(audits: Sequence[AuditTime]) -> Iterator[Rate]:
    """More cores against the first."""
    first = audits[0].publications / audits[0].seconds
    for one in audits:
        rate = one.publications / one.seconds
        compared = one is not audits[0]
        yield Rate(
            f"audit on {one.cores} core{'s' * (one.cores > 1)}",
            None,
            round(rate, 1),
            f"audit on {audits[0].cores} core" if compared else None,
            round(first, 1) if compared else None,
            round(rate / first, 3) if compared else None,
            one.spread,
        )
