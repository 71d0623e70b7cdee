"""Publishing: messages of one partition are gathered into batches, each batch is signed once, each message gets a receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from parley.client.compose import MAX_CONTENT, Composer, partition_of, size_of
from parley.client.errors import ClientClosed, LimitExceeded
from parley.client.messages import Receipt, Receipts
from parley.client.quorum import QuorumClient
from parley.client.sequences import Applied, ProducerSequence
from parley.client.topics import OLD_RECORD, KnownTopic, Topics
from parley.model.batches import MAX_MESSAGES, MAX_RULES, Message
from parley.model.names import Value
from parley.modules.publishing.receipts import first_offset
from parley.modules.topics.tables import TopicRecord

__all__ = ["Pending", "Publisher", "Publishing", "publish_one"]

MAX_FAILED = 64  # failures that are kept for `flush`


@dataclass(frozen=True, repr=False)
class Publishing:
    """What publishers need of their client."""

    quorum: QuorumClient
    rng: Callable[[int], bytes]
    sequence: Callable[[TopicRecord, int], ProducerSequence]
    topics: Topics


@dataclass(eq=False, repr=False)
class _Batch:
    """Messages for one batch, composed for this topic. `done` is there once they were sent."""

    topic: KnownTopic
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    rules: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    sequence: ProducerSequence | None = None
    done: asyncio.Future[Applied] | None = None
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    seen: bool = False  # whether one of them was waited for

    def takes(self, topic: KnownTopic, message: Message, max_bytes: int) -> bool:
        """Whether the message may go with these: one for a topic that was made again must not."""
        if topic.record.created != self.topic.record.created:
            return False
        size = size_of(message, self.topic.codec.overhead)
        return self.size + size <= max_bytes and len(self.rules | {message.rule}) <= MAX_RULES

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.size += size_of(message, self.topic.codec.overhead)
        self.rules.add(message.rule)

    def submit(self, sequence: ProducerSequence) -> asyncio.Future[Applied]:
        self.sequence, self.done = sequence, sequence.submit(tuple(self.messages), codec=self.topic.codec)
        self.sent.set()
        return self.done

    def receipts(self, quorum: QuorumClient) -> Receipts:
        """Raises why there are none."""
        assert self.sequence is not None, "it was sent"
        assert self.done is not None, "it was sent"
        if not self.done.done():
            raise self.sequence.unanswered("publishing (what was sent may still be published)")
        applied = self.done.result()
        receipt = applied.ordered.receipt
        offset = first_offset(receipt)
        assert offset is not None, "a batch of messages is published or refused"
        return Receipts(
            receipt.topic,
            receipt.partition,
            offset,
            applied.ordered.height,
            applied.ordered.time,
            receipt.client,
            quorum.reader.level,
            applied.messages,
            partial(applied.evidence, quorum),
        )


@dataclass(eq=False, slots=True, repr=False)
class Pending:
    """A message on its way. Awaiting it gives its receipt, or raises why there is none."""

    _quorum: QuorumClient
    _batch: _Batch
    _index: int

    def __await__(self) -> Generator[object, None, Receipt]:
        return self._receipt().__await__()

    async def _receipt(self) -> Receipt:
        batch, quorum = self._batch, self._quorum
        batch.seen = True
        await batch.sent.wait()
        assert batch.done is not None, "it was sent"
        await asyncio.wait([batch.done], timeout=quorum.timeout)
        return batch.receipts(quorum)[self._index]


async def publish_one(publishing: Publishing, topic: KnownTopic, partition: int, message: Message) -> Receipt:
    """Publish a message in a batch of its own."""
    batch = _Batch(topic, [message])
    batch.submit(publishing.sequence(topic.record, partition))
    try:
        return await Pending(publishing.quorum, batch, 0)
    except OLD_RECORD:
        publishing.topics.forget(topic.name)
        raise


class Publisher:
    """Messages for one topic. A batch goes out when it is full or `linger` seconds old; `in_flight` bounds how many wait."""

    def __init__(
        self,
        publishing: Publishing,
        topic: str,
        *,
        linger: float = 0.005,
        batch_size: int = 100,
        max_bytes: int = MAX_CONTENT,
        in_flight: int = 16,
    ) -> None:
        if not 1 <= batch_size <= MAX_MESSAGES:
            raise ValueError(f"batch_size must be 1 to {MAX_MESSAGES}, not {batch_size}")
        if not 1 <= max_bytes <= MAX_CONTENT:
            raise ValueError(f"max_bytes must be 1 to {MAX_CONTENT}, not {max_bytes}")
        if in_flight < 1 or linger < 0:
            raise ValueError("in_flight must be at least 1, and linger not negative")
        self.topic = topic
        self._publishing = publishing
        self._linger = linger
        self._batch_size = batch_size
        self._max_bytes = max_bytes
        self._room = asyncio.Semaphore(in_flight)
        self._known: KnownTopic | None = None  # as it was looked up last
        self._open: dict[int, _Batch] = {}
        self._unsettled: dict[asyncio.Future[Applied], _Batch] = {}
        self._failed: list[_Batch] = []
        # The partition of messages without a key, for one batch at a time.
        self._turn = int.from_bytes(publishing.rng(2), "big")
        self._closed = False

    async def __aenter__(self) -> Self:
        self._known = await self._publishing.topics.to_publish(self.topic)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        if error is None:
            await self.flush()
        else:
            for partition in list(self._open):
                self._dispatch(partition)

    async def send(
        self,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        tags: Mapping[str, Value] | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        rule: str = "",
        partition: int | None = None,
    ) -> Pending:
        """Put a message on its way. This waits only while too many batches are in flight."""
        if self._closed:
            raise ClientClosed("The publisher is closed.")
        topic, partition = await self._place(key, partition)
        composer = self._composer(topic, key, tags, headers, rule)
        message = composer.message(value)
        batch = await self._batch(topic, partition, message)
        pending = Pending(self._publishing.quorum, batch, len(batch.messages))
        batch.add(message)
        if len(batch.messages) >= self._batch_size:
            self._dispatch(partition)
        return pending

    async def publish_many(
        self,
        values: Iterable[bytes | str],
        *,
        key: bytes | str | None = None,
        tags: Mapping[str, Value] | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        rule: str = "",
        partition: int | None = None,
    ) -> list[Receipts]:
        """Publish messages that have all but their values in common, after those sent before; one `Receipts` per batch.

        Several batches are on their way at a time, and several callers may be waiting. When some of the batches fail,
        the first failure is raised once all are settled.
        """
        if isinstance(values, bytes | str):
            raise TypeError("publish_many takes several values; for one, use send or Client.publish")
        topic, _ = await self._place(key, partition)
        composer = self._composer(topic, key, tags, headers, rule)
        sent: list[_Batch] = []
        for messages in composer.groups(values, lambda: self._batch_size, self._max_bytes):
            topic, at = await self._place(key, partition)
            self._dispatch(at)  # what was sent before comes before
            await self._acquire()
            if self._closed:
                self._room.release()
                raise ClientClosed("The publisher is closed.")
            batch = _Batch(topic, list(messages), seen=True)
            self._submit(at, batch)
            sent.append(batch)
        waiting = [batch.done for batch in sent if batch.done is not None]
        quorum = self._publishing.quorum
        if waiting:
            await asyncio.wait(waiting, timeout=quorum.timeout)
        return [batch.receipts(quorum) for batch in sent]

    def _composer(
        self,
        topic: KnownTopic,
        key: bytes | str | None,
        tags: Mapping[str, Value] | None,
        headers: Mapping[str, bytes | str] | None,
        rule: str,
    ) -> Composer:
        overhead, rng = topic.codec.overhead, self._publishing.rng
        return Composer(key=key, tags=tags, headers=headers, rule=rule, rng=rng, overhead=overhead)

    async def flush(self) -> None:
        """Send what is gathered and wait for all receipts; raises the first failure that was not waited for."""
        for partition in list(self._open):
            self._dispatch(partition)
        if self._unsettled:
            await asyncio.wait(list(self._unsettled), timeout=self._publishing.quorum.timeout)
            self._require_settled()
        failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.seen:
                batch.receipts(self._publishing.quorum)

    async def _place(self, key: bytes | str | None, partition: int | None) -> tuple[KnownTopic, int]:
        """The topic as it is known, and the partition of a message with this key, unless one is named."""
        if partition is None and key is None and self._turn in self._open:  # one batch at a time
            partition = self._turn
        if partition is not None and self._known is not None:
            return self._known, partition
        topic = self._known = await self._publishing.topics.to_publish(self.topic)
        if partition is not None:
            return topic, partition
        if key is None:
            self._turn %= topic.record.partitions
            return topic, self._turn
        return topic, partition_of(key.encode() if isinstance(key, str) else key, topic.record.partitions)

    async def _batch(self, topic: KnownTopic, partition: int, message: Message) -> _Batch:
        """The open batch of the partition, with room for this message."""
        while (batch := self._open.get(partition)) is None or not batch.takes(
            topic, message, self._max_bytes
        ):
            if batch is not None and batch.messages:
                self._dispatch(partition)
            await self._acquire()
            if partition in self._open:  # another sender was here first
                self._room.release()
            else:
                timer = asyncio.get_running_loop().call_later(self._linger, self._dispatch, partition)
                batch = self._open[partition] = _Batch(topic, timer=timer)
                break
        return batch

    async def _acquire(self) -> None:
        """Wait until another batch may be in flight; with a timeout, raise what keeps the others from being published."""
        limit = asyncio.timeout(self._publishing.quorum.timeout)
        try:
            async with limit:
                await self._room.acquire()
        except TimeoutError:
            if limit.expired():
                self._require_settled()
            raise

    def _require_settled(self) -> None:
        late = next(iter(self._unsettled.values()), None)
        if late is not None:
            assert late.sequence is not None, "it was sent"
            raise late.sequence.unanswered(f"publishing {len(self._unsettled)} batches to {self.topic}")

    def _dispatch(self, partition: int) -> None:
        batch = self._open.pop(partition, None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.messages:
            self._submit(partition, batch)
        else:
            self._room.release()

    def _submit(self, partition: int, batch: _Batch) -> None:
        if partition == self._turn:
            self._turn += 1
        done = batch.submit(self._publishing.sequence(batch.topic.record, partition))
        self._unsettled[done] = batch
        done.add_done_callback(partial(self._settled, batch))

    def _settled(self, batch: _Batch, done: asyncio.Future[Applied]) -> None:
        del self._unsettled[done]
        self._room.release()
        failure = done.exception()
        if isinstance(failure, OLD_RECORD):
            self._publishing.topics.forget(self.topic)
            self._known = None
        if isinstance(failure, LimitExceeded):
            # Too many subscribers to compare with. Its messages may not be sent again behind those that follow them, but
            # those to come are better sent in smaller batches.
            self._batch_size = max(1, min(self._batch_size, len(batch.messages) // 2))
        if failure is not None and not batch.seen and len(self._failed) < MAX_FAILED:
            self._failed.append(batch)
