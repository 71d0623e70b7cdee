"""What one task of a write does in an executor: rows become batches, batches are staged, and their digests go to the driver.

Memory is bounded: by the batches that are being filled, and by those that wait for their receipts.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from parley.client.compose import MAX_CONTENT, partition_of
from parley.client.errors import LimitExceeded, StageOver
from parley.client.topics import KnownTopic
from parley.model.batches import MAX_RULES, Message
from parley.spark.errors import StageFailed
from parley.spark.gateway import Gateway, gateway
from parley.spark.options import T, WriteOptions
from parley.spark.repeating import RowSum
from parley.spark.rows import Faulty, Publication, Rows, too_large

MAX_OPEN = 16 * 1024 * 1024  # bytes of batches that are being filled by one task
_ROOM = "staged_"  # how the reasons of `LimitExceeded` begin if too much is staged and not committed


@dataclass(frozen=True, slots=True)
class TopicPart:
    """What a task staged for one topic: the digests of its batches, in their order. Nothing if the stage is `over`.

    `rows` are those that it was given, also if the stage is over. `partitions`: how many the topic had, if that decided
    where a key goes.
    """

    topic: str
    writer: bytes
    stage: int
    digests: tuple[bytes, ...]
    rows: RowSum
    over: bool = False
    partitions: int | None = None


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver; the rows themselves are on the ledger. `run` names the writer, also if it had no rows."""

    task: int
    run: str
    parts: tuple[TopicPart, ...]


def write_rows(
    options: WriteOptions, run: str, stage: int, task: int, batches: Iterable[pa.RecordBatch]
) -> TaskMessage:
    """Stage all rows of a task under the writer that `run` names. A task without rows asks nobody anything."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return TaskMessage(task, run, ())
    work = _Task(gateway(options.network, rank=task), options, run, stage)
    work.add(first)
    del first
    for batch in filled:  # to the end, also when the stage is over: an upstream keeps its state by being read
        work.add(batch)
    return TaskMessage(task, run, work.finish())


@dataclass(slots=True)
class _Open:
    """A batch that is being filled."""

    messages: list[Message] = field(default_factory=list)
    size: int = 0
    rules: set[str] = field(default_factory=set)


class _Task:
    def __init__(self, network: Gateway, options: WriteOptions, run: str, stage: int) -> None:
        self._network = network
        self._options = options
        self._run = run
        self._stage = stage
        self._rows = Rows(options.topic or "", options.rule)
        self._topics: dict[str, _Topic] = {}
        self._open = 0  # bytes
        if options.topic is not None:
            self._topic(options.topic)

    def add(self, batch: pa.RecordBatch) -> None:
        for row in self._rows.of(batch):
            match row:
                case Publication():
                    self._add(row)
                case Faulty():
                    self._set_aside(row)

    def finish(self) -> tuple[TopicPart, ...]:
        parts = [self._topics[name].finish() for name in sorted(self._topics)]
        return tuple(part for part in parts if part.digests or part.over)

    def _add(self, row: Publication) -> None:
        topic = self._topic(row.topic)
        if row.partition is not None and not 0 <= row.partition < topic.partitions:
            there = f"{row.topic} has partitions 0 to {topic.partitions - 1}"
            self._set_aside(Faulty(row.topic, row.key, f"there is no partition {row.partition}", there))
            return
        if row.size + topic.overhead > MAX_CONTENT:
            self._set_aside(Faulty(row.topic, row.key, too_large(row.size + topic.overhead)))
            return
        self._open += topic.add(row)
        if self._open > MAX_OPEN:
            self._open = sum(one.flush() for one in self._topics.values())

    def _set_aside(self, row: Faulty) -> None:
        known = self._topics.get(row.topic)
        if self._options.dead_letters is not None:
            self._add(row.letter(self._options.dead_letters))
        elif known is not None and known.over:
            known.count(row.letter(row.topic))  # the attempt that stands had no such row
        else:
            raise row.error()

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            self._topics[name] = _Topic(self._network, self._options, name, self._run, self._stage)
        return self._topics[name]


class _Topic:
    """What one task stages for one topic, in the partitions that a publisher would choose."""

    def __init__(self, network: Gateway, options: WriteOptions, topic: str, run: str, stage: int) -> None:
        self._network = network
        self._options = options
        self._topic = topic
        client = network.client
        self._writer = client.writer(topic, run)
        self._stage = stage
        self._open: dict[int, _Open] = {}
        self._turn = int.from_bytes(os.urandom(2), "big")
        self.rows = RowSum()
        self._row_key = client.stage_row_key(self._writer, stage)
        self._by_key = False
        record = network.run(client.stage_record(topic, self._writer))
        self.over = record is not None and record.stage >= stage
        self._stager = client.stager(
            topic, self._writer, stage, in_flight=options.in_flight, valid=options.stage_blocks
        )

    @cached_property
    def _known(self) -> KnownTopic:
        """As of now: with what this process remembers, one key of a batch could go to two partitions."""
        return self._network.run(self._network.client.known_topic(self._topic, fresh=True))

    @property
    def partitions(self) -> int:
        return self._known.record.partitions

    @cached_property
    def overhead(self) -> int:
        """Bytes that sealing may add to a row. What is not staged is not sealed."""
        return 0 if self.over else self._known.codec.overhead

    def add(self, row: Publication) -> int:
        """By how many bytes there is more to be sent."""
        self.count(row)
        if self.over:
            return 0
        size = row.size + self.overhead
        partition = self._partition(row)
        batch = self._open.get(partition)
        sent = 0
        if batch is not None and not self._fits(batch, row.message.rule, size):
            sent = self._send(partition)
            batch = None
        if batch is None:
            batch = self._open[partition] = _Open()
        batch.messages.append(row.message)
        batch.size += size
        batch.rules.add(row.message.rule)
        if len(batch.messages) >= self._options.batch_size:
            sent += self._send(partition)
        return size - sent

    def count(self, row: Publication) -> None:
        """Put a row into the digest by which a repetition is known, without staging it."""
        self.rows.add(row, self._row_key)

    def flush(self) -> int:
        """Send all that is open: nothing is left of it."""
        for partition in list(self._open):
            self._send(partition)
        return 0

    def finish(self) -> TopicPart:
        self.flush()
        staged = None if self.over else self._run(self._stager.finish())
        if staged is None:
            return TopicPart(self._topic, self._writer, self._stage, (), self.rows, over=True)
        digests = tuple(one.digest for one in staged)
        partitions = self.partitions if self._by_key else None
        return TopicPart(self._topic, self._writer, self._stage, digests, self.rows, partitions=partitions)

    def _partition(self, row: Publication) -> int:
        if row.partition is not None:
            return row.partition
        if row.key is not None:
            self._by_key = True
            return partition_of(row.key, self.partitions)
        return self._turn % self.partitions  # one batch at a time

    def _fits(self, batch: _Open, rule: str, size: int) -> bool:
        rules = batch.rules
        return batch.size + size <= self._options.batch_bytes and (rule in rules or len(rules) < MAX_RULES)

    def _send(self, partition: int) -> int:
        batch = self._open.pop(partition)
        if partition == self._turn % self.partitions:
            self._turn += 1
        if not self.over:
            self._run(self._stager.send(partition, batch.messages))
        return batch.size

    def _run(self, work: Awaitable[T]) -> T | None:
        """None if another attempt of this batch was committed meanwhile."""
        try:
            return self._network.run(_told(work, self._topic, self._options))
        except _Over:
            self.over = True
            return None


class _Over(Exception):  # noqa: N818 - it names the condition, and never leaves this module
    pass


async def _told(work: Awaitable[T], topic: str, options: WriteOptions) -> T:
    try:
        return await work
    except StageOver:
        raise _Over from None
    except LimitExceeded as error:
        raise StageFailed(limit_text(error, topic, options)) from None


def limit_text(error: LimitExceeded, topic: str, options: WriteOptions) -> str:
    """What to do if the network refuses a batch because of a limit: of all that is staged, or of a single batch."""
    nothing = f"Nothing of this stage was published to {topic}."
    if not error.reason.startswith(_ROOM):
        return (
            f"The network refuses a batch: {error.detail}. {nothing} Run the query again with smaller batches: the option "
            f"batchSize is {options.batch_size} now."
        )
    return (
        f"The network takes no more that is not committed: {error.detail}. {nothing} What earlier attempts staged is "
        f"gone after stageBlocks heights at the latest ({options.stage_blocks} in this attempt): run the query again then. A "
        f"lower stageBlocks makes this time shorter for later attempts. maxOffsetsPerTrigger applies to batches that are not "
        f"planned yet; it does not change the one that is repeated. Write a large table in parts."
    )
