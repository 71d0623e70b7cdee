"""The sink: executors stage, the driver commits, and every row is published once, whoever is killed in between (P23).

The writer of a stream is named by its query, and the stage by the number of its batch: a batch that Spark repeats, because
it died before it noted the end of it, finds its stage committed and publishes nothing. So the first attempt that was
committed stands, even if the repetition has other rows. A job with `df.write` has a writer for itself alone.

Each topic is committed for itself. With several topics, a repetition finds some of them committed and commits the rest;
that is exactly once as long as the repetition sends a row to the same topic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from parley.client.client import Client
from parley.client.errors import NotStaged, StageOver
from parley.modules.staging.operations import MAX_STAGED_BATCHES, digests_hash
from parley.spark.errors import BadOption, ParleySparkError, StageFailed
from parley.spark.gateway import gateway
from parley.spark.options import WriteOptions, write_options
from parley.spark.rows import require_columns
from parley.spark.writing import TaskMessage, TopicPart, write_rows

ONLY_STAGE = 1  # of a job that writes once
RUN_SIZE = 16
MAX_RUN = 256  # characters


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


class StreamWriter(DataSourceStreamArrowWriter):
    """Pickled for every task, and made anew for every commit: all that ties them together is in the messages."""

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
            self._options, f"query {query}", stage_of(int(batch)), context.partitionId(), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        parts = _parts(messages)
        if any(part.stage != stage_of(batchId) for part in parts):
            raise StageFailed(f"Tasks staged for another batch than {batchId}, which is to be committed.")
        _commit(self._options, parts)

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
        _commit(self._options, _parts(messages))

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


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[TopicPart]:
    """In the order of the tasks, so that the same tasks are always committed in the same order."""
    found = [message for message in messages if isinstance(message, TaskMessage)]
    return [part for message in sorted(found, key=lambda one: one.task) for part in message.parts]


def _commit(options: WriteOptions, parts: Sequence[TopicPart]) -> None:
    """One commit per topic. What failed before its commit is dropped or expires, and nobody ever sees it."""
    topics: dict[str, list[TopicPart]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(part)
    if not topics:
        return
    done: list[str] = []
    try:
        network = gateway(options.network)
        for topic in sorted(topics):
            network.run(_commit_topic(network.client, topics[topic]))
            done.append(topic)
    except ParleySparkError as error:
        if done:
            raise type(error)(
                f"{error.message} Committed before that: {', '.join(done)}. A stream that is run again commits the rest only."
            ) from error
        raise


async def _commit_topic(client: Client, parts: Sequence[TopicPart]) -> None:
    first = parts[0]
    topic, writer, stage = first.topic, first.writer, first.stage
    if any(part.over for part in parts):
        await _require_over(client, parts)
        return
    digests = [digest for part in parts for digest in part.digests]
    if len(digests) > MAX_STAGED_BATCHES:
        raise StageFailed(
            f"One commit takes {MAX_STAGED_BATCHES} batches, and {len(digests)} were staged for {topic}. Nothing was "
            f"published. Give a stream a lower maxOffsetsPerTrigger, or batches of more rows: options batchSize, batchBytes."
        )
    try:
        await client.commit_stage(topic, writer, stage, digests)
    except StageOver:
        await _require_over(client, parts)
    except NotStaged as error:
        raise StageFailed(
            f"What was staged for {topic} had expired, or was dropped, before its commit: {error.detail}. Nothing was "
            f"published. Run the query again, which stages the rows anew; if it happens often, take fewer rows at a time "
            f"(maxOffsetsPerTrigger) or let them wait longer (option stageBlocks)."
        ) from error


async def _require_over(client: Client, parts: Sequence[TopicPart]) -> None:
    """That this stage was committed by an earlier attempt: its rows stand, and those of this attempt are dropped."""
    part = parts[0]
    record = await client.stage_record(part.topic, part.writer)
    if record is None or record.stage < part.stage:
        raise StageFailed(
            f"The network says that stage {part.stage} of {part.topic} is over, and that it was never committed."
        )
    if record.stage == part.stage and record.digests == digests_hash(()):
        raise StageFailed(f"The run was given up before: what it staged for {part.topic} was dropped.")
    if record.stage > part.stage:
        # Spark repeats its last batch and none before it. Whoever is further back has planned other rows under this number,
        # which would be lost without a word.
        raise StageFailed(
            f"Another run of this query has committed up to batch {record.stage - 1}, while this one is at batch "
            f"{part.stage - 1} of {part.topic}. Two queries must not share a checkpoint: stop one of them. If the checkpoint "
            f"was restored from an older copy, begin with a new one."
        )
