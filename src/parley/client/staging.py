"""Staging: batches that are stored and invisible until one commit numbers all of them, so that a job's output is there once.

A staged batch takes no place in a sequence: only a commit makes it count, and a stage is committed once (P23). So it may
be signed again whenever it is not certain what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from parley.client.errors import NotStaged, Refused, StageOver, Stalled
from parley.client.quorum import QuorumClient, pause, submission
from parley.client.sequences import Applied, Author
from parley.client.state import StateReader
from parley.client.topics import OLD_RECORD, Topics
from parley.crypto.hashing import digest
from parley.model.batches import MAX_NOT_AFTER, STAGED, Message, sign_batch
from parley.model.refusals import DUPLICATE, is_final
from parley.modules.staging.operations import CommitStage, Source, digests_hash, is_repetition
from parley.modules.staging.tables import STAGES, StageRecord

WRITER_SIZE = 16
VALID = 50_000  # heights for which what is staged waits for its commit
MAX_VALID = MAX_NOT_AFTER - 1_000  # a broker may be behind the height that the client has seen


def writer_id(publisher: bytes, topic: str, name: str) -> bytes:
    """Who stages: a key's writer of this name for one topic, for example a query that publishes there (P23)."""
    return digest("stage/writer", publisher, topic.encode(), name.encode())[:WRITER_SIZE]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What a commit needs of a batch. It may be committed up to height `until`."""

    digest: bytes
    messages: int
    until: int


class _Operate(Protocol):
    def __call__(self, operation: CommitStage, *, repeats: bool) -> Awaitable[Applied]: ...


@dataclass(frozen=True, repr=False)
class Staging:
    """What one client stages and commits."""

    _quorum: QuorumClient
    _author: Author
    _state: StateReader
    _operate: _Operate
    _topics: Topics

    def source(self, writer: bytes, stage: int, *, plan: bytes | None, rows: bytes | None) -> Source:
        """The source that a commit of this stage names: a hash of its plan and one of its rows, as far as they are known.

        Messages are salted, so that clients that may not read them can neither guess them nor see that two are equal.
        The same holds for these hashes, as rows may be few and short: a secret of this client, the writer and the stage
        go into them.
        """
        secret = self._secret()
        place = writer + stage.to_bytes(8, "big")
        return Source(
            None if plan is None else digest("stage/plan", secret, place, plan),
            None if rows is None else digest("stage/rows", secret, place, rows),
        )

    def row_key(self, writer: bytes, stage: int) -> bytes:
        """A secret key of this client for hashes of single rows of this stage, which are added up to one of all rows.

        A sum of hashes without a key does not tell rows apart: an attacker that chooses many rows finds other rows with
        the same sum by lattice reduction. With this key, only this client can compute the hashes.
        """
        return digest("stage/row-key", self._secret(), writer, stage.to_bytes(8, "big"))

    def _secret(self) -> bytes:
        """What only the key of this client can compute, and always to the same value. It never leaves the process."""
        return self._author.key.sign(digest("stage/secret", self._author.chain))

    async def record(self, topic: str, writer: bytes) -> StageRecord | None:
        """What the writer committed last, certified; None if it never did."""
        topic_id = await self._topics.topic_id(topic)
        return await self._state.entry(STAGES, topic, topic_id, self._author.key.public, writer)

    async def stage(
        self,
        topic: str,
        partition: int,
        messages: Sequence[Message],
        writer: bytes,
        stage: int,
        *,
        valid: int = VALID,
    ) -> StagedBatch:
        """Sign one batch and send the same bytes until its receipt is certified."""
        if not 1 <= valid <= MAX_VALID:
            raise ValueError(f"valid must be 1 to {MAX_VALID} heights, not {valid}")
        known = await self._topics.to_publish(topic)
        content = tuple(messages)
        what = f"staging for partition {partition} of {topic}"
        clock, began = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        digest = data = b""
        until = 0
        for number in count():
            if until <= self._quorum.height:  # none yet, or it came too late
                until = self._quorum.height + valid
                place = (STAGED, topic, known.record.created, partition)
                header = self._author.header(place, writer, stage, len(content), until)
                sealed = known.codec.seal(header, content)
                digest, data = sign_batch(header, sealed, self._author.key)
            ordered = await self._quorum.ask(submission(what, data, digest), skip=number)
            rejected = ordered.receipt.rejected
            if rejected is None:  # staged; or a duplicate of itself, which only what is staged can be
                return StagedBatch(digest, len(content), until)
            error = rejected.refusal.error()
            if is_final(rejected.code):
                self._look_again(topic, error)
                raise error
            if self._quorum.timeout is not None and clock() - began >= self._quorum.timeout:
                raise Stalled(what, {"all": str(error)})
            await asyncio.sleep(pause(number))
        raise AssertionError("counting does not end")

    async def commit(
        self, topic: str, writer: bytes, stage: int, digests: Sequence[bytes], source: Source
    ) -> int:
        """Number these batches, in this order, all or none: the height at which that was decided.

        Saying it again, or of other batches from the same source, is no second commit: then the height is that of the first.
        """
        operation = CommitStage(
            topic, writer, stage, tuple(digests), source, await self._topics.topic_id(topic)
        )
        try:
            applied = await self._operate(operation, repeats=True)
        except Refused as error:
            self._look_again(topic, error)
            raise
        if applied.ordered.receipt.code != DUPLICATE:
            return applied.ordered.height
        # This operation was ordered twice, or repeats one that was: the record says whether the first was accepted.
        record = await self.record(topic, writer)
        if record is None or record.stage < stage:
            raise NotStaged("stage", topic=topic, stage=stage)
        said = (source, digests_hash(operation.digests))
        if record.stage > stage or not is_repetition(said, (record.source, record.digests)):
            raise StageOver(stage=stage, last=record.stage, height=record.at[0])
        return record.at[0]

    def _look_again(self, topic: str, refused: Refused) -> None:
        if isinstance(refused, OLD_RECORD):
            self._topics.forget(topic)


class Stager:
    """The batches of one stage of one writer, of which at most `in_flight` are on their way at a time."""

    def __init__(
        self, staging: Staging, topic: str, writer: bytes, stage: int, *, in_flight: int, valid: int
    ) -> None:
        if in_flight < 1:
            raise ValueError("in_flight must be at least 1")
        self._staging = staging
        self._place = (topic, writer, stage)
        self._valid = valid
        self._room = asyncio.Semaphore(in_flight)
        self._sent: list[asyncio.Task[StagedBatch]] = []
        self._failed = False

    async def send(self, partition: int, messages: Sequence[Message]) -> None:
        """Put a batch on its way; this waits only for room. Raises what went wrong with an earlier one."""
        await self._room.acquire()  # whatever is on its way ends at its deadline
        if self._failed:
            await self.finish()
        topic, writer, stage = self._place
        task = asyncio.create_task(
            self._staging.stage(topic, partition, messages, writer, stage, valid=self._valid)
        )
        task.add_done_callback(self._settled)
        self._sent.append(task)

    async def finish(self) -> list[StagedBatch]:
        """All that was sent, in this order, or why one of them is not staged."""
        try:
            return await asyncio.gather(*self._sent)
        finally:
            self.cancel()

    def cancel(self) -> None:
        for task in self._sent:
            task.cancel()

    def _settled(self, task: asyncio.Task[StagedBatch]) -> None:
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            self._failed = True
