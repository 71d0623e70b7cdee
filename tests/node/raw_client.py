"""The smallest client: it says what the protocol lets a client say, and checks nothing that a test does not check."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

from msgspec import Struct
from tests.node.network import SECONDS, LocalNetwork

from parley.application.operations import Operation, encode_operation
from parley.application.tables import Table
from parley.client.proofs import narrowed
from parley.ledger.proofs import Anchor, StateEntry, Trust
from parley.model.batches import (
    CONTROL,
    FORMAT,
    NO_TOPIC,
    PUBLISH,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    sign_batch,
)
from parley.model.credentials import Identity, possession
from parley.model.names import Position, Value, sorted_pairs
from parley.model.receipts import BatchReceipt
from parley.modules.registry.operations import RegisterClient
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.subscriptions.receipts import Subscribed
from parley.modules.topics.operations import CreateTopic
from parley.net import messages as net
from parley.net.frames import FrameStream
from parley.net.tls import Address, ConnectError, certificate_hash, client_context, tls_name
from parley.net.tls import connect as dial

A = TypeVar("A")
R = TypeVar("R", bound=Struct)


# By chain and name: the ids of the topics that a raw client of this process has created.
_created: dict[tuple[bytes, str], Position] = {}


def know_topic(chain: bytes, topic: str, topic_id: Position) -> None:
    """Let raw clients name a topic that none of them has created."""
    _created[chain, topic] = topic_id


def id_of(chain: bytes, topic: str) -> Position:
    return _created.get((chain, topic), NO_TOPIC)


class RawClient:
    """One connection of one identity to one broker."""

    def __init__(self, stream: FrameStream, identity: Identity, trust: Trust, shard: int = 0) -> None:
        self.stream = stream
        self.shard = shard
        self.identity = identity
        self.trust = trust
        self._ids = count(1)
        self._session = os.urandom(16)
        self._sequences: dict[tuple[int, str, int], int] = {}
        self._creating: dict[bytes, str] = {}  # topics, by the digests of the batches
        self._received: deque[net.Answer] = deque()

    def new_id(self) -> int:
        return next(self._ids)

    def send(self, question: net.Question) -> None:
        self.stream.write(net.encode(question))

    async def receive(self, kind: type[A]) -> A:
        """The next answer, which must be of this kind; receipts that come together one by one."""
        if not self._received:
            async with asyncio.timeout(SECONDS):
                frame = await self.stream.read()
            assert frame is not None, "the broker has closed the connection"
            self._received.extend(singly(net.decode_answer(frame)))
        answer = self._received.popleft()
        assert isinstance(answer, kind), answer
        return answer

    async def ask(self, question: net.Question, kind: type[A]) -> A:
        self.send(question)
        return await self.receive(kind)

    async def status(self) -> net.Status:
        return await self.ask(net.StatusRequest(self.new_id()), net.Status)

    def batch(
        self,
        kind: int,
        topic: str,
        partition: int,
        contents: tuple[Message, ...],
        not_after: int = 50_000,
    ) -> tuple[bytes, bytes]:
        """The digest and bytes of this session's next batch."""
        line = (kind, topic, partition)
        sequence = self._sequences.get(line, 0)
        self._sequences[line] = sequence + len(contents)
        header = BatchHeader(
            FORMAT,
            self.trust.genesis.chain,
            self.shard,
            kind,
            topic,
            self.topic_id(topic),
            partition,
            self.identity.credential.key,
            self._session,
            sequence,
            len(contents),
            not_after,
        )
        return sign_batch(header, contents, self.identity.key())

    def publication(
        self, topic: str, *contents: Message, partition: int = 0, not_after: int = 50_000
    ) -> tuple[bytes, bytes]:
        return self.batch(PUBLISH, topic, partition, contents, not_after)

    def control(self, operation: Operation) -> tuple[bytes, bytes]:
        batch = self.batch(CONTROL, "", 0, (message(encode_operation(operation)),))
        if isinstance(operation, CreateTopic):
            self._creating[batch[0]] = operation.name
        return batch

    def topic_id(self, topic: str) -> Position:
        return id_of(self.trust.genesis.chain, topic)

    async def submit(self, batch: tuple[bytes, bytes]) -> BatchReceipt:
        """The batch's receipt, checked against the genesis file and nothing else."""
        name, body = batch
        answer = await self.ask(net.Submit(self.new_id(), body), net.Receipted)
        return self.receipt(answer, name)

    def receipt(self, answer: net.Receipted, name: bytes) -> BatchReceipt:
        (leaf,) = self.trust.certified(answer.anchor).leaves(answer.proof)
        assert isinstance(leaf, BatchReceipt)
        assert leaf.digest == name
        if name in self._creating and leaf.is_done:
            here = (answer.proof.header.height, answer.proof.receipts.indices[0])
            _created[self.trust.genesis.chain, self._creating[name]] = here
        return leaf

    async def operate(self, operation: Operation) -> BatchReceipt:
        return await self.submit(self.control(operation))

    async def subscribe(self, topic: str, constraint: str = "") -> tuple[bytes, net.StreamPosition]:
        """To a topic with one partition: the constraint's id, and where a stream of it begins."""
        start = (await self.operate(Subscribe(topic, constraint, self.topic_id(topic)))).outcome
        assert isinstance(start, Subscribed)
        (one,) = start.partitions
        return start.constraint, net.StreamPosition(one.partition, one.incarnation, one.next_ps)

    async def fetch(self, topic: str, offset: int, *, partition: int = 0, wait: int = 0) -> net.Fetched:
        question = net.Fetch(self.new_id(), topic, partition, offset, 1_000_000, wait)
        return await self.ask(question, net.Fetched)

    def record(
        self, table: Table[R, *tuple[Any, ...]], entry: StateEntry, key: bytes, anchor: Anchor
    ) -> R | None:
        """The entry's record, once its proof has been checked."""
        value = self.trust.certified(anchor).value(entry, key)
        return None if value is None else table.decode(value)


def singly(answer: net.Answer) -> list[net.Answer]:
    """An answer with several receipts as several answers."""
    if not isinstance(answer, net.Receipted):
        return [answer]
    return [
        net.Receipted(id_, answer.anchor, narrowed(answer.proof, at))
        for at, id_ in enumerate((answer.id, *answer.others))
    ]


def message(payload: bytes, rule: str = "", **tags: Value) -> Message:
    header = encode(MessageHeader(tags=sorted_pairs(tags)))
    return Message(os.urandom(16), header, rule, payload)


def registration(identity: Identity, **attributes: Value) -> RegisterClient:
    """What an administrator says to have this client known."""
    mine = identity.credential
    return RegisterClient(mine.name, mine.key, sorted_pairs(attributes), identity.proof())


@asynccontextmanager
async def client(
    network: LocalNetwork, broker: str, organisation: str, name: str, shard: int = 0
) -> AsyncIterator[RawClient]:
    """A client's authenticated connection to a broker that runs, or is about to."""
    stream = await reach(network, broker)
    try:
        yield await authenticated(network, broker, stream, network.identity(organisation, name), shard)
    finally:
        await stream.wait_closed()


async def reach(network: LocalNetwork, broker: str) -> FrameStream:
    """A connection to a broker that may still be starting."""
    member, organisation = network.broker(broker)
    context = client_context(organisation.tls_ca)
    name = tls_name(member.name, member.organisation)
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await dial(Address.parse(member.address), context, name, timeout=SECONDS)
            except ConnectError:
                assert network.is_running(broker), f"{broker} has ended"
                await asyncio.sleep(0.05)


async def authenticated(
    network: LocalNetwork, broker: str, stream: FrameStream, identity: Identity, shard: int = 0
) -> RawClient:
    answer = await authenticate(network, stream, identity, shard)
    assert isinstance(answer, net.Welcome), answer
    assert answer.broker == broker
    stream.limit = net.MAX_ANSWER
    return RawClient(stream, identity, network.trust, shard)


async def authenticate(
    network: LocalNetwork, stream: FrameStream, identity: Identity, shard: int = 0
) -> net.Opening:
    """Show the credential and prove its key; what the broker says to it."""
    stream.write(prove(network, stream, identity, await opening(stream), shard))
    return await opening(stream)


def prove(
    network: LocalNetwork, stream: FrameStream, identity: Identity, challenge: net.Opening, shard: int = 0
) -> bytes:
    """The frame that answers a challenge."""
    assert isinstance(challenge, net.Challenge)
    assert stream.peer_certificate is not None
    signed = possession(network.genesis.chain, challenge.nonce, certificate_hash(stream.peer_certificate))
    return net.encode(net.Authenticate(identity.credential, identity.key().sign(signed), shard))


async def opening(stream: FrameStream) -> net.Opening:
    async with asyncio.timeout(SECONDS):
        frame = await stream.read()
    assert frame is not None, "the broker has closed the connection"
    return net.decode_opening(frame)
