"""The same client without `await`: one background thread runs its loop, so it works in scripts and in notebooks alike."""

from __future__ import annotations

import os
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

from parley.application.application import Application
from parley.client.client import Client, connect
from parley.client.compose import MAX_CONTENT
from parley.client.errors import DoubtfulBroker, LyingBroker, ParleyError
from parley.client.messages import Level, Message, Receipt, Receipts, Withholding
from parley.client.modules import BlockingModules
from parley.client.position import Position
from parley.client.publisher import Pending, Publisher
from parley.client.subscription import Start, Subscription
from parley.client.waiting import Thread, blocking
from parley.model.credentials import Identity
from parley.model.genesis import Genesis
from parley.model.names import Value
from parley.privacy.table import Codecs

__all__ = [
    "BlockingClient",
    "BlockingPending",
    "BlockingPublisher",
    "BlockingSubscription",
    "connect_blocking",
]

E = TypeVar("E", bound=AbstractAsyncContextManager[object])


def connect_blocking(
    context: str | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    genesis: Genesis | str | os.PathLike[str] | None = None,
    identity: Identity | str | os.PathLike[str] | None = None,
    brokers: Mapping[str, str] | Sequence[str] | None = None,
    verify: Level = "certified",
    trusted: int = 1,
    timeout: float | None = None,
    on_stalled: Callable[[ParleyError], None] | None = None,
    application: Application | None = None,
    shard: int | None = None,
    codecs: Codecs | None = None,
) -> BlockingClient:
    """Like `connect`, for code without `async`: use it with `with`."""
    return BlockingClient(
        connect(
            context,
            directory=directory,
            genesis=genesis,
            identity=identity,
            brokers=brokers,
            verify=verify,
            trusted=trusted,
            timeout=timeout,
            on_stalled=on_stalled,
            application=application,
            shard=shard,
            codecs=codecs,
        )
    )


class BlockingClient(BlockingModules):
    """Made by `connect_blocking`. Any thread may use it, inside `with`."""

    publish = blocking(Client.publish)
    publish_json = blocking(Client.publish_json)
    partitions = blocking(Client.partitions)
    topic_id = blocking(Client.topic_id)
    stage = blocking(Client.stage)
    commit_stage = blocking(Client.commit_stage)
    stage_record = blocking(Client.stage_record)
    read = blocking(Client.read)
    certified_height = blocking(Client.certified_height)
    blocks = blocking(Client.blocks)
    evidence = blocking(Client.evidence)
    advise = blocking(Client.advise)
    operate = blocking(Client.operate)
    entry = blocking(Client.entry)
    entries = blocking(Client.entries)
    entry_proof = blocking(Client.entry_proof)
    create_topic = blocking(Client.create_topic)
    alter_topic = blocking(Client.alter_topic)
    delete_topic = blocking(Client.delete_topic)
    topics = blocking(Client.topics)
    topic = blocking(Client.topic)
    register_client = blocking(Client.register_client)
    alter_client = blocking(Client.alter_client)
    revoke_client = blocking(Client.revoke_client)
    grant_right = blocking(Client.grant_right)
    revoke_right = blocking(Client.revoke_right)
    clients = blocking(Client.clients)
    client_record = blocking(Client.client_record)
    status = blocking(Client.status)

    def __init__(self, client: Client) -> None:
        self.client = client
        self.thread = Thread()
        self.name = client.name
        self.organisation = client.organisation
        self.genesis = client.genesis
        self.application = client.application

    def __enter__(self) -> Self:
        self.thread.start()
        try:
            self.thread.run(self.client.__aenter__())
        except BaseException:
            self.thread.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Once is enough; more does no harm."""
        try:
            if self.thread.is_running:
                self.thread.run(self.client.close())
        finally:
            self.thread.stop()

    @property
    def height(self) -> int:
        return self.client.height

    @property
    def clock_behind(self) -> int:
        return self.client.clock_behind

    @property
    def misbehaviour(self) -> tuple[LyingBroker, ...]:
        return self.client.misbehaviour

    @property
    def doubts(self) -> tuple[DoubtfulBroker, ...]:
        return self.client.doubts

    def publisher(
        self,
        topic: str,
        *,
        linger: float = 0.005,
        batch_size: int = 100,
        max_bytes: int = MAX_CONTENT,
        in_flight: int = 16,
    ) -> BlockingPublisher:
        return BlockingPublisher(
            self.thread,
            self.client.publisher(
                topic, linger=linger, batch_size=batch_size, max_bytes=max_bytes, in_flight=in_flight
            ),
        )

    def subscribe(
        self,
        topic: str,
        where: str = "",
        start: Start = "latest",
        *,
        keep: bool = False,
        withheld: Withholding = "skip",
    ) -> BlockingSubscription:
        subscription = self.client.subscribe(topic, where, start, keep=keep, withheld=withheld)
        return BlockingSubscription(self.thread, subscription)

    def fetch(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: Literal["earliest", "latest"] | int = "earliest",
        count: int | None = None,
        follow: bool = False,
        withheld: Withholding = "skip",
    ) -> Iterator[Message]:
        messages = self.client.fetch(
            topic, partition=partition, start=start, count=count, follow=follow, withheld=withheld
        )
        return _iterate(self.thread, messages)


@dataclass(frozen=True, eq=False, repr=False)
class BlockingPending:
    """A message on its way."""

    _thread: Thread
    _pending: Pending

    def receipt(self) -> Receipt:
        """Wait for the receipt, or raise why there is none."""
        return self._thread.run(self._pending)


@dataclass(frozen=True, eq=False, repr=False)
class _Blocking(Generic[E]):
    """A part of the client that is entered and left with `with`."""

    _thread: Thread
    _part: E

    def __enter__(self) -> Self:
        self._thread.run(self._part.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._part.__aexit__(kind, error, traceback))


class BlockingPublisher(_Blocking[Publisher]):
    """Messages for one topic, in batches: use it with `with`."""

    def send(
        self,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        tags: Mapping[str, Value] | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        rule: str = "",
        partition: int | None = None,
    ) -> BlockingPending:
        work = self._part.send(value, key=key, tags=tags, headers=headers, rule=rule, partition=partition)
        return BlockingPending(self._thread, self._thread.run(work))

    def publish_many(
        self,
        values: Iterable[bytes | str],
        *,
        key: bytes | str | None = None,
        tags: Mapping[str, Value] | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        rule: str = "",
        partition: int | None = None,
    ) -> list[Receipts]:
        return self._thread.run(
            self._part.publish_many(
                values, key=key, tags=tags, headers=headers, rule=rule, partition=partition
            )
        )

    def flush(self) -> None:
        self._thread.run(self._part.flush())


class BlockingSubscription(_Blocking[Subscription]):
    """A plain iterator over messages: use it with `with`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return self._thread.run(self._part.__anext__())

    def batches(self) -> Iterator[list[Message]]:
        """The same messages, as many at a time as are here."""
        while True:
            yield self._thread.run(self._part.take())

    @property
    def waiting(self) -> int:
        return self._part.waiting

    def position(self) -> Position:
        """Where to resume after all that was handed out so far."""

        async def ask() -> Position:
            return self._part.position()

        return self._thread.run(ask())


def _iterate(thread: Thread, messages: AsyncGenerator[Message, None]) -> Iterator[Message]:
    while True:
        try:
            message = thread.run(anext(messages))
        except StopAsyncIteration:
            return
        yield message
