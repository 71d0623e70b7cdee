"""A subscription: history by offset up to where its certified order begins, then that order, without gap or double (P6).

The lease is renewed in the background. If it is lost all the same, subscribing again begins another order, and what lies
between the two is read by offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from parley.client.asking import heed
from parley.client.errors import ClientClosed, Invalid, ParleyError, Pruned, Refused, Stalled, Unreachable
from parley.client.feed import Feed, Over, Subject
from parley.client.history import History
from parley.client.lines import Applied
from parley.client.messages import Message
from parley.client.verification import Place
from parley.model.operations import Subscribe, Unsubscribe
from parley.model.receipts import PartitionStart, Subscribed

__all__ = ["Start", "Subscribing", "Subscription"]

Start = Literal["latest", "earliest"] | int | Mapping[int, int]

UNSUBSCRIBE_SECONDS = 2.0
RETRY_SECONDS = 3.0  # thrice the time after which a failed renewal is tried again
EVERYTHING = "true"  # the constraint that matches all

log = logging.getLogger("parley.client")


@dataclass(frozen=True)
class Subscribing:
    """What subscriptions need of their client."""

    history: History
    operate: Callable[[Subscribe | Unsubscribe], Awaitable[Applied]]
    enter: Callable[[Subject], None]
    leave: Callable[[Subject], bool]  # whether it was the last of its kind


@dataclass
class _Bridge:
    """What is read by offset before the order goes on."""

    partition: int
    offset: int
    stop: int


class Subscription:
    """An asynchronous iterator over messages. Everything published after it was entered will come, once, in order."""

    def __init__(self, subscribing: Subscribing, subject: Subject, start: Start) -> None:
        self._subscribing = subscribing
        self._subject = subject
        self._start = start
        self._places: dict[int, Place] = {}
        self._bridges: deque[_Bridge] = deque()
        self._buffer: deque[Message] = deque()
        self._feed: Feed | None = None
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

    async def __aenter__(self) -> Self:
        self._subscribing.enter(self._subject)
        try:
            await self._begin(await self._subscribe())
        except BaseException:
            await self._leave()
            raise
        self._closed = False
        self._renewal = asyncio.create_task(self._renew())
        self._renewal.add_done_callback(heed)
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
        # Every step leaves a consistent state behind, so that waiting may be given up at any time.
        while not self._buffer:
            if self._closed:
                raise ClientClosed("The subscription is closed; iterate inside `async with`.")
            if self._failure is not None:
                raise self._failure
            try:
                await self._advance()
            except Unreachable as error:
                if self._subject.panel.timeout is not None:
                    raise
                self._subject.panel.report(error)
        return self._buffer.popleft()

    async def _advance(self) -> None:
        """Get some more messages, or one step closer to them."""
        news, self._news = self._news, None
        if news is not None:
            self._adopt(news)
            await self._end_feed()
        elif self._bridges:
            await self._cross(self._bridges[0])
        else:
            await self._follow()

    # -- where it begins ---------------------------------------------------------------------------------------------

    async def _subscribe(self) -> tuple[PartitionStart, ...]:
        """Subscribe, or renew the lease; where the order stands in every partition."""
        subject = self._subject
        applied = await self._subscribing.operate(Subscribe(subject.topic, subject.constraint.text))
        outcome = applied.ordered.receipt.outcome
        if not isinstance(outcome, Subscribed) or outcome.constraint != subject.constraint.id:
            raise ParleyError(
                "The network answered a subscription with something else; its brokers are broken."
            )
        self._lease = (outcome.lease_until - applied.ordered.time) / 1_000
        return outcome.partitions

    async def _begin(self, starts: tuple[PartitionStart, ...]) -> None:
        ends = {start.partition: start.next_offset for start in starts}
        for partition, offset in (await self._offsets(ends)).items():
            if offset < ends[partition]:
                self._bridges.append(_Bridge(partition, offset, ends[partition]))
        self._places = {
            start.partition: Place(start.partition, start.incarnation, start.next_ps, start.next_offset)
            for start in starts
        }

    async def _offsets(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Where to begin reading in each partition that has a history to be read."""
        start = self._start
        if start == "latest":
            return {}
        if start == "earliest":
            heads = await self._subscribing.history.heads(self.topic, list(ends))
            return {partition: head.log_start_offset for partition, head in zip(ends, heads, strict=True)}
        if isinstance(start, int):
            if len(ends) > 1:
                raise Invalid(
                    f"topic {self.topic} has {len(ends)} partitions: give start as {{partition: offset}}"
                )
            start = {0: start}
        if not isinstance(start, Mapping):
            raise Invalid(f"start is 'latest', 'earliest', an offset or {{partition: offset}}, not {start!r}")
        for partition, offset in start.items():
            if not 0 <= offset <= ends.get(partition, -1):
                raise Invalid(f"there is no offset {offset} in partition {partition} of {self.topic} yet")
        return start

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _cross(self, bridge: _Bridge) -> None:
        history = self._subscribing.history
        wait = self._subject.panel.timeouts.freshness  # a broker that lags has not got there yet
        try:
            page = await history.page(self.topic, bridge.partition, bridge.offset, wait=wait)
        except Pruned:
            # The reader has to know what it missed, and may go on with what is left.
            bridge.offset = (await history.head(self.topic, bridge.partition)).log_start_offset
            self._forget_crossed()
            raise
        messages = page.messages[: bridge.stop - bridge.offset]
        constraint = self._subject.constraint
        # What hides an empty hides its tags: it may be interesting only to who wants everything.
        self._buffer.extend(
            message
            for message in messages
            if (constraint.text == EVERYTHING if message.empty else constraint.matches(message.tags))
        )
        bridge.offset += len(messages)
        self._forget_crossed()

    def _forget_crossed(self) -> None:
        while self._bridges and self._bridges[0].offset >= self._bridges[0].stop:
            self._bridges.popleft()

    async def _follow(self) -> None:
        if self._feed is None:
            self._feed = Feed(self._subject, self._places.values())
        feed = self._feed
        try:
            block = await feed.next()
        except Over as over:
            await self._go_on(feed, over.suspect)
        else:
            self._places = dict(feed.places)
            self._buffer.extend(block)

    async def _go_on(self, feed: Feed, suspect: str | None) -> None:
        """The order has ended, or a broker says so, or a renewal brought news."""
        if self._news is not None:
            return
        starts = await self._subscribe()
        if self._changes(starts):
            self._news = starts
            return
        if suspect is not None:
            self._subject.panel.brokers.distrust(suspect, "it says that an order has ended, and it goes on")
            feed.avoid(suspect, "it says that the order has ended")
        feed.resume()

    def _changes(self, starts: tuple[PartitionStart, ...]) -> bool:
        known = {partition: place.incarnation for partition, place in self._places.items()}
        return any(known.get(start.partition) != start.incarnation for start in starts)

    def _adopt(self, starts: tuple[PartitionStart, ...]) -> None:
        incarnations = {place.incarnation for place in self._places.values()}
        exist = {start.partition for start in starts}  # a topic that was made anew may have fewer
        self._places = {partition: place for partition, place in self._places.items() if partition in exist}
        self._bridges = deque(bridge for bridge in self._bridges if bridge.partition in exist)
        for start in starts:
            partition, incarnation = start.partition, start.incarnation
            old = self._places.get(partition)
            if old is not None and old.incarnation == incarnation:
                continue
            if old is None and incarnation in incarnations:
                # A partition that was added while this order lived has it from the start.
                self._places[partition] = Place(partition, incarnation, 0, 0)
                continue
            offset = 0 if old is None else old.next_offset
            if offset < start.next_offset:
                self._bridges.append(_Bridge(partition, offset, start.next_offset))
            self._places[partition] = Place(partition, incarnation, start.next_ps, start.next_offset)

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
                log.warning("The lease of a subscription to %s was not renewed: %s", self.topic, error)
                self._lease = min(self._lease, RETRY_SECONDS)
            else:
                if self._changes(starts):
                    self._news = starts
                    self._interrupt()

    def _interrupt(self) -> None:
        if self._feed is not None:
            self._feed.interrupt()

    async def _leave(self) -> None:
        """Unsubscribe, as a courtesy: if that fails, the lease ends by itself."""
        subject = self._subject
        if not self._subscribing.leave(subject):
            return
        with suppress(ParleyError, TimeoutError):
            async with asyncio.timeout(UNSUBSCRIBE_SECONDS):
                await self._subscribing.operate(Unsubscribe(subject.topic, subject.constraint.text))
