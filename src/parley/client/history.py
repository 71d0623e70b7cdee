"""Reading by offset: pages of a partition, and where it begins and ends, from as many brokers as must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count

from parley.client.beliefs import Stale, VerifiedView, check_entries, is_fresh, record_of
from parley.client.denials import Judge
from parley.client.errors import NotFound, UnknownPartition
from parley.client.messages import Message
from parley.client.quorum import QuorumClient, Request
from parley.client.verification import Page, Question, check_fetched
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.net.messages import Fetch, Fetched, Prove, Proven

PAGE_BYTES = 1024 * 1024

_Heads = tuple[PartitionRecord | None, ...]


class History:
    """What was published, as far as it is kept."""

    def __init__(self, quorum: QuorumClient, clock: Callable[[], int]) -> None:
        self._quorum = quorum
        self._clock = clock

    async def page(
        self, topic: str, partition: int, offset: int, *, wait: int = 0, max_bytes: int = PAGE_BYTES
    ) -> Page:
        """The messages from `offset` on; none only if there was none a moment ago, or after `wait` ms."""
        quorum = self._quorum
        question = Question(topic, partition, offset, quorum.height)

        def read(view: VerifiedView, answer: Fetched) -> Page:
            page = check_fetched(view, answer, quorum.reader, question)
            # Where the partition ends, and what this reader may not see, is so now only if the header is new.
            if not page.messages or any(message.empty for message in page.messages):
                self.require_fresh(view)
            return page

        request = Request(
            f"reading partition {partition} of {topic}",
            Fetch(0, topic, partition, offset, max_bytes, wait),
            Fetched,
            read,
            _common,
            Judge(quorum, self._clock, topic, partition, offset),
        )
        return await quorum.ask(request)

    async def head(self, topic: str, partition: int) -> PartitionRecord:
        """The offsets that exist now."""
        return (await self.heads(topic, [partition]))[0]

    async def heads(self, topic: str, partitions: Sequence[int]) -> tuple[PartitionRecord, ...]:
        quorum = self._quorum
        keys = tuple(HEADS.key(topic, partition) for partition in partitions)
        floor = quorum.height

        def read(view: VerifiedView, answer: Proven) -> _Heads:
            values = check_entries(view, answer, keys, floor)
            self.require_fresh(view)
            return tuple(record_of(HEADS, value) for value in values)

        what = f"asking for the ends of {topic}"
        found = await quorum.ask(
            Request(what, Prove(0, keys), Proven, read, _lowest, Judge(quorum, self._clock, topic))
        )
        for partition, record in zip(partitions, found, strict=True):
            if record is None:
                raise UnknownPartition("number", topic=topic, partition=partition)
        return tuple(record for record in found if record is not None)

    async def read(self, topic: str, partition: int, offset: int) -> Message:
        page = await self.page(topic, partition, offset, max_bytes=1)
        if not page.messages:
            raise NotFound("offset", topic=topic, partition=partition, offset=offset)
        return page.messages[0]

    async def messages(
        self, topic: str, partition: int, start: int, limit: int | None, *, follow: bool
    ) -> AsyncGenerator[Message, None]:
        """From `start` on, up to `limit` of them; at the end stop, or wait for more."""
        wait = self._quorum.timeouts.freshness if follow else 0
        left = limit
        while left is None or left > 0:
            page = await self.page(topic, partition, start, wait=wait)
            if not page.messages and not follow:
                return
            for message in page.messages[:left]:
                yield message
            start += len(page.messages)
            left = None if left is None else left - len(page.messages)

    def require_fresh(self, view: VerifiedView) -> None:
        if not is_fresh(view, self._clock(), self._quorum.timeouts.freshness):
            age = self._clock() - view.time
            raise Stale(f"its newest header is {age} ms old, so it cannot say how things are now")


def _common(pages: Sequence[Page], needed: int) -> Page | None:
    """As many messages as enough brokers agree on; brokers may be unequally far."""
    if needed == 1:
        return pages[-1]
    messages: list[Message] = []
    backers = list(pages)
    for at in count():
        votes = Counter(page.messages[at] for page in backers if len(page.messages) > at)
        best, number = max(votes.items(), key=lambda one: one[1], default=(None, 0))
        if best is None or number < needed:
            break
        messages.append(best)
        backers = [page for page in backers if len(page.messages) > at and page.messages[at] == best]
    if messages:
        return Page(tuple(messages), backers[0].head)
    empty = [page for page in pages if not page.messages]
    return empty[0] if len(empty) >= needed else None


def _lowest(answers: Sequence[_Heads], needed: int) -> _Heads | None:
    """Brokers may be unequally far; to begin a little too early is harmless."""
    if len(answers) < needed:
        return None
    return tuple(
        min(known, key=lambda record: (record.next_offset, record.log_start_offset), default=None)
        for known in (
            [record for record in records if record is not None] for records in zip(*answers, strict=True)
        )
    )
