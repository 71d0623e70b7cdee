"""Who attacks: one organisation's administrator and the clients that it registers, and how they send batches made by hand."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Self

from parley.application.operations import Operation
from parley.chaos.expensive.jobs import Job
from parley.chaos.identities import administrator, new_identity
from parley.client import Client, connect
from parley.client.compose import EMPTY_HEADER, SALT_SIZE
from parley.client.connection import Connection, Dialler, Gone
from parley.client.sequences import SESSION_SIZE, Author
from parley.consensus.committee import all_brokers
from parley.model.batches import PUBLISH, Message, MessageHeader, encode, sign_batch
from parley.model.credentials import Identity
from parley.model.genesis import Genesis
from parley.model.names import Position, Value, sorted_pairs
from parley.modules.subscriptions.operations import Subscribe
from parley.net.messages import Answer, Failure
from parley.net.tls import Address

POLL_SECONDS = 0.05
AT_ONCE = 100  # batches that are signed before anything else has a turn
LONG_VALID = 10_000  # heights for which brokers keep a batch; an honest client is content with fewer
LEAVING_SECONDS = 20.0  # after which a sender does not wait for answers any more


class Sender:
    """A client that says what the library would not: each batch is made by hand and sent once, to one broker."""

    def __init__(
        self,
        connection: Connection,
        author: Author,
        height: Callable[[], int],
        topics: Mapping[str, Position],
    ) -> None:
        """`topics`: their ids, by name."""
        self._topics = topics
        self._connection = connection
        self._author = author
        self._height = height
        self._open = 0
        self._answered = asyncio.Event()
        self.answers: Counter[str] = Counter()  # by the code of a failure; "" for receipts

    def publication(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        sequence: int = 0,
        valid: int = LONG_VALID,
    ) -> bytes:
        """The first batch of a session of its own, or one that claims to come later."""
        session = self._author.rng(SESSION_SIZE)
        not_after = self._height() + valid
        place = (PUBLISH, topic, self._topics[topic], partition)
        header = self._author.header(place, session, sequence, len(messages), not_after)
        return sign_batch(header, tuple(messages), self._author.key)[1]

    async def send(self, batches: Iterable[bytes]) -> None:
        """All of them, as fast as the broker takes them, and the answers as far as they come within some time."""
        for number, batch in enumerate(batches, 1):
            while not self._connection.post(batch, self._note):
                await self._until_answered()
            self._open += 1
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                while self._open:
                    await self._until_answered()

    async def leave(self) -> None:
        await self._connection.close()

    async def _until_answered(self) -> None:
        """Until something was answered, which makes room. Raises `Gone` if nothing more will be."""
        if not self._connection.is_open:
            raise Gone("the broker closed the connection to a sender")
        self._answered.clear()
        await self._answered.wait()

    def _note(self, answer: Answer | Exception) -> None:
        self._open -= 1
        self._answered.set()
        match answer:
            case Failure():
                self.answers[answer.code] += 1
            case Exception():
                self.answers["unanswered"] += 1
            case _:
                self.answers[""] += 1


class Attackers:
    """All of one organisation. Entered before the first attack; all clients leave with it."""

    def __init__(self, job: Job, genesis: Genesis, brokers: Mapping[str, str]) -> None:
        self.size = job.size
        self.metrics = job.metrics  # of the organisation's own broker
        self._directory = Path(job.directory)
        self._genesis = genesis
        self._organisation = job.organisation
        self._brokers = brokers
        self._stack = AsyncExitStack()
        self._numbers = count(1)
        self.admin: Client
        self.topics: dict[str, Position] = {}  # that were created, with their ids

    async def __aenter__(self) -> Self:
        self.admin = await self.client(administrator(self._directory, self._organisation))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- who ---------------------------------------------------------------------------------------------------------

    def name(self, word: str) -> str:
        """One that was not used before in this run."""
        return f"{word}-{next(self._numbers)}"

    async def recruit(self) -> Identity:
        """A new client, registered."""
        name = self.name("client")
        identity = new_identity(self._directory, self._genesis, self._organisation, name)
        await self.admin.register_client(name, identity.credential.key, proof=identity.proof())
        return identity

    async def client(self, identity: Identity) -> Client:
        """A connected client that believes its own organisation's broker: proofs would only cost the attackers time."""
        client = connect(
            genesis=self._genesis, identity=identity, brokers=dict(self._brokers), verify="trusted"
        )
        return await self._stack.enter_async_context(client)

    async def sender(self, identity: Identity) -> Sender:
        """A connection to the organisation's own broker, for batches made by hand."""
        own = next(one for one in all_brokers(self._genesis) if one.organisation == self._organisation)
        dialler = Dialler(self._genesis, self.admin.committee.shard, identity, _clock)
        connection = await dialler.connect(own, Address.parse(self._brokers[own.name]))
        author = Author(self._genesis.chain, self.admin.committee.shard, identity.key(), os.urandom)
        return Sender(connection, author, lambda: self.admin.height, self.topics)

    # -- what --------------------------------------------------------------------------------------------------------

    async def topic(self, word: str, partitions: int = 1) -> str:
        name = self.name(word)
        await self.admin.create_topic(name, partitions=partitions)
        self.topics[name] = await self.admin.topic_id(name)
        return name

    async def crowd(self, topic: str, constraints: int) -> list[Client]:
        """Clients that hold so many subscriptions to a topic, each of them as many as it may."""
        most = self._genesis.limits.subscriptions_per_client
        clients: list[Client] = []
        for first in range(0, constraints, most):
            client = await self.client(await self.recruit())
            wanted = range(first, min(first + most, constraints))
            asked = [Subscribe(topic, f"number == {one}", self.topics[topic]) for one in wanted]
            await operate_all(client, asked)
            clients.append(client)
        return clients


async def operate_all(client: Client, operations: Iterable[Operation]) -> None:
    """One session's operations, as many on their way at a time as a connection takes."""
    await asyncio.gather(*map(client.operate, operations))


def message(payload: bytes = b"x", **tags: Value) -> Message:
    header = encode(MessageHeader(tags=sorted_pairs(tags))) if tags else EMPTY_HEADER
    return Message(os.urandom(SALT_SIZE), header, "", payload)


def _clock() -> int:
    return time.time_ns() // 1_000_000
