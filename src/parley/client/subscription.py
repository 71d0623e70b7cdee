"""A subscription: history by offset up to where its certified order begins, then that order, without gap or double (P6).

The lease is renewed in the background. If it is lost all the same, subscribing again begins another order, and what lies
between the two is read by offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, Self

from parley.client.errors import (
    ClientClosed,
    Invalid,
    ParleyError,
    Pruned,
    Refused,
    Stalled,
    Unreachable,
)
from parley.client.feed import Feed, Over, Subject
from parley.client.history import History
from parley.client.messages import Message, OnUndecryptable, Withholding, wanted
from parley.client.opening import opened
from parley.client.position import Position
from parley.client.quorum import pause, swallow_result
from parley.client.reading import Bridge, ReadingState
from parley.client.sequences import Applied
from parley.client.verification import Place
from parley.model.batches import NO_TOPIC
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import PartitionStart, Subscribed
from parley.privacy.table import TopicCodec

__all__ = ["Batches", "Start", "Subscribing", "Subscription"]

Start = Literal["latest", "earliest"] | int | Mapping[int, int] | Position

UNSUBSCRIBE_SECONDS = 2.0
EVERYTHING = "true"  # the constraint that matches all

log = logging.getLogger("parley.client")


@dataclass(frozen=True)
class Subscribing:
    """What subscriptions need of their client."""

    history: History
    operate: Callable[[Subscribe | Unsubscribe], Awaitable[Applied]]
    _open: Counter[tuple[str, bytes]] = field(default_factory=Counter)  # by topic and constraint

    def enter(self, subject: Subject) -> None:
        self._open[subject.topic, subject.constraint.id] += 1

    def leave(self, subject: Subject) -> bool:
        """Whether it was the last of its kind."""
        kind = (subject.topic, subject.constraint.id)
        self._open[kind] -= 1
        last = not self._open[kind]
        if last:
            del self._open[kind]
        return last


class Subscription:
    """An asynchronous iterator over messages. Everything published after it was entered will come, once, in order.

    With `keep` its order lives on after it was left, until the lease ends, so that it can be resumed.
    """

    def __init__(
        self,
        subscribing: Subscribing,
        subject: Subject,
        start: Start,
        *,
        keep: bool = False,
        withheld: Withholding = "skip",
        on_undecryptable: OnUndecryptable = "raise",
    ) -> None:
        self._subscribing = subscribing
        self._subject = subject
        self._start = start
        self._keep = keep
        self._withheld: Withholding = withheld
        self._on_undecryptable: OnUndecryptable = on_undecryptable
        self._topic_id = start.topic_id if isinstance(start, Position) else NO_TOPIC
        self._ledger = (0, 0)  # shard and epoch, of the newest receipt of the subscription
        self._reading = ReadingState()
        self._feed: Feed | None = None
        self._codec: TopicCodec | None = None  # of the topic that was subscribed to, as long as it lives
        # What the feed has brought, and where it stands then: nothing is lost if opening is given up.
        self._brought: tuple[list[Message], dict[int, Place]] | None = None
        self._news: tuple[PartitionStart, ...] | None = None  # of a renewal that changed something
        self._failure: Refused | None = None
        self._lease = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._closed = True

    @property
    def topic(self) -> str:
        return self._subject.topic

    @property
    def where(self) -> str:
        """The constraint, in its canonical form."""
        return self._subject.constraint.text

    @property
    def brokers(self) -> tuple[str, ...]:
        """The brokers that deliver now; none while history is read."""
        return () if self._feed is None else self._feed.brokers

    @property
    def waiting(self) -> int:
        """How many messages are here already and come without waiting."""
        return len(self._reading.waiting)

    def position(self) -> Position:
        """Where to resume after all that was handed out so far; see `Client.subscribe`."""
        if not self._reading.places:
            raise ClientClosed("The subscription has no position yet; ask inside `async with`.")
        chain = self._subject.quorum.reader.trust.genesis.chain
        return Position(
            chain.hex(),
            *self._ledger,
            self.topic,
            self._topic_id,
            self.where,
            self._reading.positions(),
        )

    async def __aenter__(self) -> Self:
        if not isinstance(self._start, Position):
            self._topic_id = await self._subscribing.history.topics.topic_id(self.topic, fresh=True)
        self._subscribing.enter(self._subject)
        try:
            starts = await self._subscribe()
            self._codec = await self._subscribing.history.topics.to_read(self.topic, self._topic_id)
            await self._begin(starts)
        except BaseException:
            await self._leave()
            raise
        self._closed = False
        self._renewal = asyncio.create_task(self._renew())
        self._renewal.add_done_callback(swallow_result)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        await self._end_feed()
        await self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._reading.waiting:
            await self._gather()
        return self._reading.waiting.popleft()

    def batches(self) -> Batches:
        """The same messages, as many at a time as are here: `async for messages in subscription.batches()`."""
        return Batches(self)

    async def take(self) -> list[Message]:
        """All messages that are here, at least one; they count as handed out."""
        if not self._reading.waiting:
            await self._gather()
        messages = list(self._reading.waiting)
        self._reading.waiting.clear()
        return messages

    async def _gather(self) -> None:
        # Every step leaves a consistent state behind, so that waiting may be given up at any time.
        while not self._reading.waiting:
            if self._closed:
                raise ClientClosed("The subscription is closed; iterate inside `async with`.")
            if self._failure is not None:
                raise self._failure
            try:
                await self._advance()
            except Unreachable as error:
                if self._subject.quorum.timeout is not None:
                    raise
                self._subject.quorum.report(error)

    async def _advance(self) -> None:
        """Get some more messages, or one step closer to them."""
        if self._brought is not None:
            await self._open(*self._brought)
            return
        news, self._news = self._news, None
        if news is not None:
            self._reading.adopt(news)
            await self._end_feed()
        elif self._reading.bridges:
            await self._cross(self._reading.bridges[0])
        else:
            await self._follow()

    # -- where it begins ---------------------------------------------------------------------------------------------

    async def _subscribe(self) -> tuple[PartitionStart, ...]:
        """Subscribe, or renew the lease; where the order stands in every partition, by the newest receipt so far.

        Receipts may come late, and the reader may follow a later order by then.
        """
        subject = self._subject
        asked = Subscribe(subject.topic, subject.constraint.text, self._topic_id)
        applied = await self._subscribing.operate(asked)
        outcome = applied.ordered.receipt.given(Subscribed)
        if outcome is None or outcome.constraint != subject.constraint.id:
            raise ParleyError(
                "The network answered a subscription with something else; its brokers are broken."
            )
        header = applied.ordered.anchor.header
        self._ledger = max(self._ledger, (header.shard, header.epoch))
        self._lease = (outcome.lease_until - applied.ordered.time) / 1_000
        return self._reading.newest(applied.ordered.height, outcome.partitions)

    async def _begin(self, starts: tuple[PartitionStart, ...]) -> None:
        if isinstance(self._start, Position):
            self._start.require_ledger(*self._ledger)
            self._reading.resume(self._start.partitions, starts)
        else:
            ends = {start.partition: start.next_offset for start in starts}
            self._reading.begin(starts, await self._offsets(self._start, ends))

    async def _offsets(self, start: object, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Where to begin reading in each partition that has a history to be read."""
        if start == "latest":
            return {}
        if start == "earliest":
            heads = await self._subscribing.history.heads(self.topic, list(ends))
            return {partition: head.log_start_offset for partition, head in zip(ends, heads, strict=True)}
        if isinstance(start, int):
            if len(ends) > 1:
                raise Invalid("start_of_partitions", topic=self.topic, partitions=len(ends))
            start = {0: start}
        if not isinstance(start, Mapping):
            raise Invalid("start", start=repr(start))
        for partition, offset in start.items():
            if not 0 <= offset <= ends.get(partition, -1):
                raise Invalid("offset_ahead", topic=self.topic, partition=partition, offset=offset)
        return start

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _cross(self, bridge: Bridge) -> None:
        history, quorum = self._subscribing.history, self._subject.quorum
        wait = quorum.timeouts.freshness  # a broker that lags has not got there yet
        try:
            page = await history.page(
                self.topic, bridge.partition, bridge.offset, wait=wait, topic_id=self._topic_id
            )
        except Pruned:
            start = (await history.log_starts(self.topic, [bridge.partition]))[0]
            if start <= bridge.offset and quorum.reader.level != "trusted":
                # What is proved, or what enough brokers say, is otherwise: others have it.
                await asyncio.sleep(pause(0))
                return
            # The reader has to know what it missed, and may go on with what is left, never with what it had before.
            bridge.offset = max(bridge.offset, start)
            self._reading.crossed()
            raise
        messages = page.messages[: bridge.stop - bridge.offset]
        constraint = self._subject.constraint
        # A redacted message shows no tags either: it may concern only a subscription to everything.
        self._hold(
            message
            for message in messages
            if (constraint.text == EVERYTHING if message.empty else constraint.matches(message.tags))
        )
        bridge.offset += len(messages)
        self._reading.crossed()

    async def _follow(self) -> None:
        if self._feed is None:
            assert self._codec is not None, "it was entered"
            subject = replace(self._subject, matching=self._codec.matching)
            self._feed = Feed(subject, self._reading.places.values())
        feed = self._feed
        try:
            messages = await feed.next()
        except Over as over:
            await self._go_on(feed, over)
        else:
            self._brought = messages, dict(feed.places)
            await self._open(*self._brought)

    async def _open(self, messages: list[Message], places: dict[int, Place]) -> None:
        assert self._codec is not None, "it was entered"
        found = await opened(self._codec, messages)
        self._brought, self._reading.places = None, places
        self._hold(found)

    def _hold(self, messages: Iterable[Message]) -> None:
        """Queue messages for the reader, without those that it does not want. They are checked already."""
        self._reading.waiting.extend(wanted(messages, self._withheld, self._on_undecryptable))

    async def _go_on(self, feed: Feed, over: Over) -> None:
        """The order has ended, or a broker says so, or a renewal brought news."""
        if self._news is not None:
            return
        if over.pruned:
            await self._skip_pruned(feed, over.suspect)
            return
        starts = await self._subscribe()
        if self._reading.changes(starts):
            self._news = starts
        else:
            feed.resume(over.suspect, "it says that an order has ended, and it goes on")

    async def _skip_pruned(self, feed: Feed, suspect: str | None) -> None:
        """What the order has next is not kept any more: say so once, and go on by offset with what is left."""
        starts_now = await self._subscribing.history.log_starts(self.topic, list(self._reading.places))
        log_starts = dict(zip(self._reading.places, starts_now, strict=True))
        if suspect is not None and not any(log_starts.values()):
            feed.resume(suspect, "it says that messages were pruned, and none was")
            return
        starts = await self._subscribe()
        if suspect is not None:
            self._subject.quorum.brokers.failed(
                suspect
            )  # if others do have what it says is gone, they come first
        lost = self._reading.prune(log_starts)
        self._news = starts
        if lost:
            where = (Pruned("start", partition=one, start=log_starts[one]).detail for one in lost)
            raise Pruned("unread", topic=self.topic, starts=", ".join(where))

    async def _end_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.close()

    # -- the lease ---------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Well before half of the lease is over, in block time, for as long as the subscription is open."""
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                starts = await self._subscribe()
            except Refused as refusal:
                self._failure = refusal
                self._interrupt()
                return
            except (Unreachable, Stalled) as error:
                # The client goes on sending this one. To order another one now would pile them up while nothing is ordered.
                log.warning("The lease of a subscription to %s is not renewed yet: %s", self.topic, error)
            else:
                if self._reading.changes(starts):
                    self._news = starts
                    self._interrupt()

    def _interrupt(self) -> None:
        if self._feed is not None:
            self._feed.interrupt()

    async def _leave(self) -> None:
        """Unsubscribe, as a courtesy: if that fails, the lease ends by itself."""
        subject = self._subject
        if not self._subscribing.leave(subject) or self._keep:
            return
        with suppress(ParleyError, TimeoutError):
            async with asyncio.timeout(UNSUBSCRIBE_SECONDS):
                asked = Unsubscribe(subject.topic, subject.constraint.text, self._topic_id)
                await self._subscribing.operate(asked)


@dataclass(frozen=True, eq=False)
class Batches:
    """An asynchronous iterator over what a subscription has at a time. Giving up a wait loses nothing."""

    _subscription: Subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        return await self._subscription.take()
