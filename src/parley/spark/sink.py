"""The sink: executors stage, the driver commits, and every row is published once, whoever is killed in between (P23).

The writer of a stream is named by its query, and the stage by the number of its batch: a batch that Spark repeats, because
it died before it noted the end of it, finds its stage committed and publishes nothing. So the first attempt that was
committed stands, even if the repetition has other rows. That it is a repetition is seen by the plan in the checkpoint or,
where that cannot be read, by the rows (`repeating`): a checkpoint that is one batch old would give other rows under the same
number, and they would be lost. A job with `df.write` has a writer for itself alone.

Each topic is committed for itself. With several topics, a repetition finds some of them committed and commits the rest;
that is exactly once as long as the repetition sends a row to the same topic. So where there may be several, the rows of a
repetition must be those of the first attempt, also if the plans are equal.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from parley.client.client import Client
from parley.client.errors import NotStaged, StageOver
from parley.modules.staging.operations import (
    MAX_STAGED_BATCHES,
    Source,
    digests_hash,
    is_repetition,
)
from parley.modules.staging.tables import StageRecord
from parley.spark.errors import BadOption, ParleySparkError, StageFailed
from parley.spark.gateway import gateway
from parley.spark.options import WriteOptions, write_options
from parley.spark.repeating import Plan, RowSum, plan_of, rows_digest
from parley.spark.rows import require_columns
from parley.spark.writing import TaskMessage, TopicPart, write_rows

log = logging.getLogger("parley.spark")

ONLY_STAGE = 1  # of a job that writes once
RUN_SIZE = 16
MAX_RUN = 256  # characters
_GIVEN_UP = (Source(), digests_hash(()))  # what `abort` commits
BEHIND_PAUSE_S = 0.2  # between two looks at a writer's record


def stream_writer(schema: StructType, options: Mapping[str, str]) -> StreamWriter:
    """Raises `BadOption` or `BadRow` before anything is staged."""
    chosen = write_options(options)
    if chosen.run is not None:
        raise BadOption("runId is for df.write; a stream is known by the query id in its checkpoint.")
    require_columns(schema, chosen.topic or "")
    return StreamWriter(chosen)


def batch_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> BatchWriter:
    chosen = write_options(options)
    if overwrite:
        raise BadOption("What was published stays published: use mode('append').")
    if chosen.run is not None and not 1 <= len(chosen.run) <= MAX_RUN:
        raise BadOption(f"runId is a text of 1 to {MAX_RUN} characters.")
    require_columns(schema, chosen.topic or "")
    return BatchWriter(chosen)


def stage_of(batch: int) -> int:
    """Spark counts batches from 0; a writer that has never committed stands at stage 0."""
    return batch + 1


def query_run(query: str) -> str:
    """The name of the writer of a stream."""
    return f"query {query}"


class StreamWriter(DataSourceStreamArrowWriter):
    """Pickled for every task, and created again for every commit: all that they share is in the messages."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise StageFailed("Spark does not say which query and batch this task belongs to.")
        return write_rows(
            self._options, query_run(query), stage_of(int(batch)), context.partitionId(), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        parts = _parts(messages)
        if any(part.stage != stage_of(batchId) for part in parts):
            raise StageFailed(f"Tasks staged for another batch than {batchId}, which is to be committed.")
        plan = plan_of(self._options.checkpoint, batchId)
        run = _run_of(messages) or (None if plan is None else query_run(plan.query))
        if run is not None:  # else there was no task, and no plan to compare
            parts += _parts_without_rows(self._options, parts, run, stage_of(batchId))
        _commit(self._options, parts, plan)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the batch will be repeated under this stage, and its commit drops what this attempt has staged."""


class BatchWriter(DataSourceArrowWriter):
    """One run of a job. Spark makes it once, and pickles it for tasks and commit alike."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = f"run {options.run}" if options.run is not None else f"job {os.urandom(RUN_SIZE).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return write_rows(self._options, self._run, ONLY_STAGE, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = _parts(messages)
        if self._options.run is not None:
            parts += _parts_without_rows(self._options, parts, self._run, ONLY_STAGE)
        _commit(self._options, parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit nothing, so that what was staged goes at once, and a commit whose fate is unknown cannot follow.

        A run with a name may be repeated, which such a commit would prevent; what it staged expires.
        """
        if self._options.run is not None:
            return
        topics = {part.topic for part in _parts(messages)}
        topics |= {name for name in (self._options.topic, self._options.dead_letters) if name is not None}
        with suppress(ParleySparkError):  # the job failed for another reason, which is the one to be told
            network = gateway(self._options.network)
            for topic in sorted(topics):
                network.run(_drop(network.client, topic, self._run))


async def _drop(client: Client, topic: str, run: str) -> None:
    with suppress(StageOver):  # then it was committed after all
        await client.commit_stage(topic, client.writer(topic, run), ONLY_STAGE, ())


def _parts_without_rows(
    options: WriteOptions, parts: Sequence[TopicPart], run: str, stage: int
) -> list[TopicPart]:
    """An empty part for each topic of the options for which this batch has no rows, if this stage of it is over.

    With it, a batch without rows is compared with what was committed, too.
    """
    topics = {topic for topic in (options.topic, options.dead_letters) if topic is not None}
    found: list[TopicPart] = []
    missing = sorted(topics - {part.topic for part in parts})
    if not missing:
        return found
    network = gateway(options.network)
    for topic in missing:
        writer = network.client.writer(topic, run)
        record = network.run(network.client.stage_record(topic, writer))
        if record is not None and record.stage >= stage:
            found.append(TopicPart(topic, writer, stage, (), RowSum(), over=True))
    return found


def _run_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """The name of the writer; None if Spark ran no task."""
    return next((message.run for message in messages if isinstance(message, TaskMessage)), None)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[TopicPart]:
    """In the order of the tasks, so that the same tasks are always committed in the same order."""
    found = [message for message in messages if isinstance(message, TaskMessage)]
    return [part for message in sorted(found, key=lambda one: one.task) for part in message.parts]


def _commit(options: WriteOptions, parts: Sequence[TopicPart], plan: Plan | None = None) -> None:
    """One commit per topic. What failed before its commit is dropped or expires, and is never shown."""
    topics: dict[str, list[TopicPart]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(part)
    if not topics:
        return
    done: list[str] = []
    try:
        network = gateway(options.network)
        commits = [_Commit(network.client, options, topics[topic], plan) for topic in sorted(topics)]
        # Those that others have committed come first: if one of them shows that this is no repetition, nothing is.
        for commit in sorted(commits, key=lambda one: not one.over):
            network.run(commit.commit())
            done.append(commit.topic)
    except ParleySparkError as error:
        if done:
            raise type(error)(
                f"{error.message} Committed before that: {', '.join(sorted(done))}. A stream that is run again, or "
                f"df.write with the same runId, commits the rest only."
            ) from error
        raise


class _Commit:
    """What all tasks staged for one topic."""

    def __init__(
        self, client: Client, options: WriteOptions, parts: Sequence[TopicPart], plan: Plan | None
    ) -> None:
        self._client = client
        self._options = options
        self._parts = parts
        self.topic, self._writer, self._stage = parts[0].topic, parts[0].writer, parts[0].stage
        self.over = any(part.over for part in parts)
        self._digests = [digest for part in parts for digest in part.digests]
        # A folder of that name may hold the checkpoint of another query, here or on another file system.
        mine = plan is not None and client.writer(self.topic, query_run(plan.query)) == self._writer
        self._source = client.stage_source(
            self._writer,
            self._stage,
            plan=plan.offsets if plan is not None and mine else None,
            rows=rows_digest(part.rows for part in parts),
        )

    async def commit(self) -> None:
        if self.over:
            await self._require_first()
            return
        self._require_one_number_of_partitions()
        if len(self._digests) > MAX_STAGED_BATCHES:
            raise StageFailed(
                f"One commit takes {MAX_STAGED_BATCHES} batches, and {len(self._digests)} were staged for {self.topic}. "
                f"Nothing was published to it. Run the query again with batches of more rows: options batchSize and "
                f"batchBytes. What this attempt staged takes room until it expires after {self._options.stage_blocks} heights "
                f"(option stageBlocks). maxOffsetsPerTrigger applies to batches that are not planned yet; it does not change "
                f"the one that is repeated."
            )
        try:
            await self._client.commit_stage(
                self.topic, self._writer, self._stage, self._digests, self._source
            )
        except StageOver:
            await self._require_first()
        except NotStaged as error:
            raise StageFailed(
                f"What was staged for {self.topic} had expired, or was dropped, before its commit: {error.detail}. Nothing "
                f"was published to it. Run the query again, which stages the rows again; if it happens often, take fewer rows at a "
                f"time (maxOffsetsPerTrigger) or let them wait longer (option stageBlocks)."
            ) from error
        else:
            if self._has_several_topics() and self._source.plan is not None:
                # This may have repeated the commit of an attempt that had other rows of the same plan.
                await self._require_first()

    def _require_one_number_of_partitions(self) -> None:
        """Tasks begin at different times. If the topic grew in between, a key would go to two partitions in one batch."""
        numbers = {part.partitions for part in self._parts if part.partitions is not None}
        if len(numbers) > 1:
            told = " and ".join(map(str, sorted(numbers)))
            raise StageFailed(
                f"The number of partitions of {self.topic} changed while rows were staged: tasks found {told}. Nothing was "
                f"published to it, because a key could have gone to two partitions. Run the query again."
            )

    async def _require_first(self) -> None:
        """Raises `StageFailed` unless this stage was committed from the same source.

        If an earlier attempt committed it, its rows stand, and those of this attempt are dropped.
        """
        self._require_same_source(self._require_last(await self._record()))

    def _require_last(self, record: StageRecord | None) -> StageRecord:
        """The record of the writer, if this stage is the last one that it committed. Raises `StageFailed`."""
        if record is None or record.stage < self._stage:
            raise StageFailed(
                f"The network says that stage {self._stage} of {self.topic} is over, and that it was never committed. Nothing "
                f"was published to it. The brokers that answer may be behind: run the query again."
            )
        if record.stage == self._stage and (record.source, record.digests) == _GIVEN_UP:
            raise StageFailed(
                f"An earlier attempt of this run was given up, and what it staged for {self.topic} was dropped. Nothing was "
                f"published to it. Start the job again."
            )
        if record.stage > self._stage:
            # Spark repeats its last batch and none before it. A query that is further back has planned other rows under this
            # number, which would be lost without an error.
            raise StageFailed(
                f"Another run of this query has committed up to batch {record.stage - 1}, while this one is at batch "
                f"{self._stage - 1} of {self.topic}. Two queries must not share a checkpoint: stop one of them. If the "
                f"checkpoint was restored from an older copy, begin with a new one."
            )
        return record

    def _require_same_source(self, record: StageRecord) -> None:
        """Raises `StageFailed` if this stage was committed with something else. With keepFirst, the log warns instead."""
        said = (self._source, digests_hash(self._digests))
        if not is_repetition(said, (record.source, record.digests)):
            difference, advice = self._difference(record), self._advice(record)
        elif self._has_several_topics() and record.source.rows not in {None, self._source.rows}:
            # The first attempt may have been killed before it committed its other topics. If a row goes to another topic
            # now than it went then, it is lost or published twice.
            difference = (
                f"Batch {self._stage - 1} of this query was committed for {self.topic} and is repeated with other rows. Its "
                f"rows may go to several topics, and the first attempt may not have committed all of them, so rows could be "
                f"lost or published twice."
            )
            advice = (
                "Nothing more of the batch is published. To publish what the other topics get now, set the option "
                "onRepeat=keepFirst."
            )
        else:
            return
        if not self._options.keep_first:
            raise StageFailed(f"{difference} {advice}")
        log.warning("onRepeat=keepFirst drops rows. %s", difference)

    def _has_several_topics(self) -> bool:
        return self._options.topic is None or self._options.dead_letters is not None

    async def _record(self) -> StageRecord | None:
        """What the writer committed last. Brokers that do not know of this stage yet are asked again for a while.

        They may be behind what the tasks have seen, by as much as their headers count as fresh.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._client.genesis.timeouts.freshness / 1_000
        while True:
            record = await self._client.stage_record(self.topic, self._writer)
            if (record is not None and record.stage >= self._stage) or clock() >= until:
                return record
            await asyncio.sleep(BEHIND_PAUSE_S)

    def _difference(self, record: StageRecord) -> str:
        """How the commit differs from the first one of its stage, which it does not repeat."""
        before = f"was committed at height {record.at[0]} of the network"
        kept = "What was published stands, and these rows are not published."
        if self._options.run is not None:
            return f"The run {self._options.run!r} {before} with other rows for {self.topic}. {kept}"
        return (
            f"Batch {self._stage - 1} of this query {before} "
            f"{'from other offsets' if self._knows_plan(record) else 'with other rows'} for {self.topic}, so this is no "
            f"repetition of it. {kept}"
        )

    def _advice(self, record: StageRecord) -> str:
        """What to do about that difference."""
        if self._options.run is not None:
            return (
                "If they are new, give them another runId; if the job gives other rows each time and the first are to stand, "
                "set the option onRepeat=keepFirst."
            )
        plan = (
            ""
            if self._knows_plan(record)
            else ", or give the query its checkpointLocation as an option: the absolute path of a folder of the driver"
        )
        return (
            "If the checkpoint was restored from an older copy, begin with a new one. If the upstream gives other rows each "
            f"time and the first are to stand, set the option onRepeat=keepFirst{plan}."
        )

    def _knows_plan(self, record: StageRecord) -> bool:
        """Whether the plans of both commits are known."""
        return self._source.plan is not None and record.source.plan is not None
