"""Reading by offset: pages of a partition, and where it begins and ends, from as many brokers as must agree."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from parley.client.beliefs import VerifiedView, check_entries, record_of
from parley.client.denials import Judge
from parley.client.errors import UnknownPartition
from parley.client.messages import Message, OnUndecryptable, Withholding, wanted
from parley.client.opening import opened
from parley.client.quorum import QuorumClient, Request, pause
from parley.client.topics import Topics
from parley.client.verification import Page, Question, check_fetched
from parley.model.names import Position as TopicId
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.net.messages import Fetch, Fetched, Prove, Proven

PAGE_BYTES = 1024 * 1024

_Heads = tuple[PartitionRecord | None, ...]


@dataclass(frozen=True, repr=False)
class History:
    """What was published, as far as it is kept."""

    _quorum: QuorumClient
    topics: Topics

    async def page(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait: int = 0,
        max_bytes: int = PAGE_BYTES,
        topic_id: TopicId | None = None,
    ) -> Page:
        """The messages from `offset` on; none only if there was none a moment ago, or after `wait` ms.

        With a `topic_id`, raises `TopicReplaced` for those of a topic that was made later under the same name.
        """
        quorum = self._quorum
        question = Question(topic, partition, offset, quorum.height, topic_id)

        def read(view: VerifiedView, answer: Fetched) -> Page:
            page = check_fetched(view, answer, quorum.reader, question)
            # Where the partition ends, and what this reader may not see, is so now only if the header is new.
            if not page.messages or any(message.empty for message in page.messages):
                quorum.require_fresh(view)
            return page

        page = await quorum.ask(
            Request(
                f"reading partition {partition} of {topic}",
                Fetch(0, topic, partition, offset, max_bytes, wait),
                Fetched,
                read,
                _common,
                Judge(quorum, topic, partition, offset),
            )
        )
        page.require_topic(topic_id)
        if not page.messages:
            return page
        codec = await self.topics.to_read(topic, page.messages[0].topic_id)
        return replace(page, messages=tuple(await opened(codec, page.messages)))

    async def head(self, topic: str, partition: int) -> PartitionRecord:
        """The offsets that exist now."""
        return (await self.heads(topic, [partition]))[0]

    async def log_starts(self, topic: str, partitions: Sequence[int]) -> tuple[int, ...]:
        """The first offsets that are kept. Where answers are compared, enough brokers agree on them."""
        heads = await self._heads(topic, partitions, _of_one_start)
        return tuple(head.log_start_offset for head in heads)

    async def heads(self, topic: str, partitions: Sequence[int]) -> tuple[PartitionRecord, ...]:
        """What is kept in partitions. Where answers are compared, it may be less than there is."""
        return await self._heads(topic, partitions, _lowest)

    async def _heads(
        self, topic: str, partitions: Sequence[int], combine: Callable[[Sequence[_Heads], int], _Heads | None]
    ) -> tuple[PartitionRecord, ...]:
        quorum = self._quorum
        keys = tuple(HEADS.key(topic, partition) for partition in partitions)
        floor = quorum.height

        def read(view: VerifiedView, answer: Proven) -> _Heads:
            values = check_entries(view, answer, keys, floor)
            quorum.require_fresh(view)
            return tuple(record_of(HEADS, value) for value in values)

        found = await quorum.ask(
            Request(
                f"asking for the ends of {topic}",
                Prove(0, keys),
                Proven,
                read,
                combine,
                Judge(quorum, topic),
            )
        )
        for partition, record in zip(partitions, found, strict=True):
            if record is None:
                raise UnknownPartition("number", topic=topic, partition=partition)
        return tuple(record for record in found if record is not None)

    async def messages(
        self,
        topic: str,
        partition: int,
        start: int,
        limit: int | None,
        *,
        follow: bool,
        withheld: Withholding,
        on_undecryptable: OnUndecryptable,
    ) -> AsyncGenerator[Message, None]:
        """From `start` on, up to `limit` of them; at the end stop, or wait for more."""
        wait = self._quorum.timeouts.freshness if follow else 0
        clock = asyncio.get_running_loop().time
        left = limit
        early = 0  # empty pages in a row that came before their time
        while left is None or left > 0:
            asked = clock()
            page = await self.page(topic, partition, start, wait=wait)
            if not page.messages:
                if not follow:
                    return
                early = early + 1 if clock() - asked < wait / 2_000 else 0
                if early:  # a broker that does not wait would be asked without end
                    await asyncio.sleep(pause(early))
                continue
            early = 0
            shown = wanted(page.messages, withheld, on_undecryptable)[:left]
            for message in shown:
                yield message
            start += len(page.messages)
            left = None if left is None else left - len(shown)


def _common(pages: Sequence[Page], needed: int) -> Page | None:
    if (found := common_prefix([page.messages for page in pages], needed)) is None:
        return None
    page, length = pages[found[0]], found[1]
    return Page(page.messages[:length], page.head)


def common_prefix(answers: Sequence[Sequence[Hashable]], needed: int) -> tuple[int, int] | None:
    """Which answer to take, and how many of its first parts: as many as enough brokers agree on, or none of an empty one.

    Brokers may be unequally far.
    """
    if needed == 1:
        return len(answers) - 1, len(answers[-1])
    backers, length = list(range(len(answers))), 0
    while True:
        votes = Counter(answers[one][length] for one in backers if len(answers[one]) > length)
        best, number = max(votes.items(), key=lambda one: one[1], default=(None, 0))
        if number < needed:
            break
        backers = [one for one in backers if len(answers[one]) > length and answers[one][length] == best]
        length += 1
    if not length:
        backers = [one for one, parts in enumerate(answers) if not parts]
    return (backers[0], length) if length or len(backers) >= needed else None


def _of_one_start(answers: Sequence[_Heads], needed: int) -> _Heads | None:
    """An answer with whose log starts enough others agree: a liar's low one hides what is gone, a high one what is there."""
    starts = [tuple(head and head.log_start_offset for head in heads) for heads in answers]
    return next((answers[one] for one, said in enumerate(starts) if starts.count(said) >= needed), None)


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
