"""Staging: batches that are stored and invisible until one commit numbers all of them, so that a job's output is there once.

A staged batch takes no place in a sequence: only a commit makes it count, and a stage is committed once (P23). So it may
be signed anew whenever it is not certain what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from parley.client.asking import Panel, Request, pause
from parley.client.beliefs import Belief, Ordered, check_receipt, record_of
from parley.client.errors import NotStaged, Stalled, refused
from parley.client.lines import Applied, Author
from parley.crypto.hashing import digest
from parley.model import receipts
from parley.model.batches import FORMAT, MAX_NOT_AFTER, STAGED, BatchHeader, Message, sign_batch
from parley.model.errors import Code
from parley.model.operations import CommitStage
from parley.model.records import StageRecord, digests_hash, stage_key
from parley.net.messages import Receipted, Submit

__all__ = ["MAX_VALID", "VALID", "StagedBatch", "Stager", "Staging", "writer_id"]

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


class Staging:
    """What one client stages and commits."""

    def __init__(
        self,
        panel: Panel,
        author: Author,
        prove: Callable[[Sequence[bytes]], Awaitable[tuple[bytes | None, ...]]],
        operate: _Operate,
    ) -> None:
        self._panel = panel
        self._author = author
        self._prove = prove
        self._operate = operate

    def writer(self, topic: str, name: str) -> bytes:
        return writer_id(self._author.key.public, topic, name)

    async def record(self, topic: str, writer: bytes) -> StageRecord | None:
        """What the writer committed last, certified; None if it never did."""
        (value,) = await self._prove([stage_key(self._author.key.public, topic, writer)])
        return record_of(StageRecord, value)

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
        place, content = (topic, partition, writer, stage), tuple(messages)
        what = f"staging for partition {partition} of {topic}"
        clock, began = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        name = data = b""
        until = 0
        for number in count():
            if until <= self._panel.height:  # none yet, or it came too late
                header = self._header(place, len(content), valid)
                until, (name, data) = header.not_after, sign_batch(header, content, self._author.key)
            ordered = await self._panel.ask(_request(what, name, data), skip=number)
            match ordered.receipt.outcome:
                case receipts.Refused(code=Code.BUSY | Code.EXPIRED as code, detail=detail):
                    if self._panel.timeout is not None and clock() - began >= self._panel.timeout:
                        raise Stalled(what, {"all": f"{code.value}: {detail}"})
                    await asyncio.sleep(pause(number))
                case receipts.Refused(code=code, detail=detail):
                    raise refused(code, detail)
                case _:  # staged; or a duplicate of itself, which only what is staged can be
                    return StagedBatch(name, len(content), until)
        raise AssertionError("counting does not end")

    async def commit(self, topic: str, writer: bytes, stage: int, digests: Sequence[bytes]) -> int:
        """Number these batches, in this order, all or none: the height at which that was decided.

        Saying it again is no second commit: then the height is that of the first.
        """
        operation = CommitStage(topic, writer, stage, tuple(digests))
        applied = await self._operate(operation, repeats=True)
        if not isinstance(applied.ordered.receipt.outcome, receipts.Duplicate):
            return applied.ordered.height
        # This operation was ordered twice, or repeats one that was: the record says whether the first was accepted.
        record = await self.record(topic, writer)
        if record is None or (record.stage, record.digests) != (stage, digests_hash(operation.digests)):
            raise NotStaged(f"stage {stage} of this writer of {topic} was not committed with these batches")
        return record.at[0]

    def _header(self, place: tuple[str, int, bytes, int], messages: int, valid: int) -> BatchHeader:
        topic, partition, writer, stage = place
        author, until = self._author, self._panel.height + valid
        return BatchHeader(
            FORMAT,
            author.chain,
            STAGED,
            topic,
            partition,
            author.key.public,
            writer,
            stage,
            messages,
            until,
        )


def _request(what: str, name: bytes, data: bytes) -> Request[Receipted, Ordered]:
    def read(belief: Belief, answer: Receipted) -> Ordered:
        return check_receipt(belief, answer, name)

    return Request(what, Submit(0, data), Receipted, read)


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
        work = self._staging.stage(topic, partition, messages, writer, stage, valid=self._valid)
        task = asyncio.create_task(work)
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
