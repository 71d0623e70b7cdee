"""Four brokers in one process, behind real TLS and the real protocol, that share one ledger. Any of them can be told to lie.

Blocks are made at once for whatever is submitted, and block time is the clock of the clients, so nothing waits for time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace
from tests.application.world import ADMIN, Actor, Signed, actor
from tests.client.ledger import Ledger, place_of
from tests.net.network import OpenDoor, alone

from parley.client.client import Client
from parley.client.contexts import Context
from parley.client.errors import (
    DoubtfulBroker,
    Expired,
    LyingBroker,
    NotFound,
    NotReady,
    NotSubscribed,
    ParleyError,
    Pruned,
    Refused,
    UnknownTopic,
    Unsupported,
)
from parley.client.messages import Level
from parley.model.credentials import Identity, issue_credential
from parley.model.expressions import parse_constraint
from parley.model.genesis import Broker, Timeouts
from parley.model.principals import Principal
from parley.model.receipts import receipt_of
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.receipts import Match, PartitionStart
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.access import Action, authorise
from parley.modules.topics.operations import CreateTopic, DeleteTopic, Policy
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net.frames import FrameError, FrameStream
from parley.net.listener import Listener, listen
from parley.net.messages import (
    Advise,
    Advised,
    Answer,
    CloseStream,
    Credit,
    EvidenceList,
    Failure,
    Fetch,
    Listed,
    ListKeys,
    OpenStream,
    Prove,
    Question,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
    ReadHeader,
    Receipted,
    ShownHeader,
    SignedAdvisory,
    Submit,
    decode_question,
    encode,
)
from parley.net.tls import Address, certificate_hash, load_certificate, server_context
from parley.node.authentication import Authenticator
from parley.node.certificates import create_authority, issue

TIMEOUTS = Timeouts(view=1_000, heartbeat=200, ack=10_000, freshness=2_000, lease=600_000)
LOOPBACK = Address("127.0.0.1", 0)
FOREVER = 2**61
HEARTBEAT = 200  # ms between two heads of a stream in which nothing happens

Lie = Callable[[Question, Answer], Answer | bytes | None]  # what is said instead; None: nothing


@dataclass
class StagedBroker:
    """`lie` changes what it says, `deaf` says what it does not even take in, and `slow` is awaited before it says anything.

    It counts the questions of each kind, and keeps the batches that it was sent.
    """

    stage: Stage
    broker: Broker
    certificate: Path
    key: Path
    lie: Lie | None = None
    deaf: Callable[[Question], bool] = lambda _: False
    slow: Callable[[Question, Answer], Awaitable[object]] | None = None
    asked: Counter[str] = field(default_factory=Counter)
    batches: list[bytes] = field(default_factory=list)
    whole: bool = True  # whether it has all receipts of the past
    erased: set[bytes] = field(default_factory=set)  # batches of which it has only what stays
    evidence: tuple[bytes, ...] = ()  # what it can prove of others; one record fits an answer
    advisories: list[SignedAdvisory] = field(default_factory=list)
    listener: Listener | None = None
    address: Address = LOOPBACK
    _heard: asyncio.Event = field(default_factory=asyncio.Event)
    _streams: set[FrameStream] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.broker.name

    def start(self, address: Address = LOOPBACK) -> None:
        authorities = [one.tls_ca for one in self.stage.ledger.genesis.organisations]
        context = server_context(self.certificate, self.key, authorities)
        self.listener = listen(address, context, OpenDoor(), alone(self._serve))
        self.address = self.listener.address

    async def stop(self) -> None:
        """As when it is killed."""
        listener, self.listener = self.listener, None
        if listener is not None:
            await listener.close()

    async def sent(self, batches: int) -> None:
        """Until so many batches were sent to it."""
        while len(self.batches) < batches:
            self._heard.clear()
            await self._heard.wait()

    def cut(self) -> None:
        """Close all connections, but go on listening."""
        for stream in self._streams:
            stream.close()

    async def _serve(self, stream: FrameStream) -> None:
        ledger = self.stage.ledger
        own = certificate_hash(load_certificate(self.certificate))
        asker, _ = await Authenticator(ledger.genesis, self.name, (0,), own).welcome(
            stream, self.stage.ledger.time + self.stage.late
        )
        stream.limit = 2 * 1024 * 1024
        self._streams.add(stream)
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            while (frame := await stream.read()) is not None:
                question = decode_question(frame)
                self.asked[type(question).__name__] += 1
                if isinstance(question, Submit):
                    self.batches.append(question.batch)
                    self._heard.set()
                if isinstance(question, Credit | CloseStream) or self.deaf(question):
                    continue
                tasks[question.id] = asyncio.create_task(self._answer(stream, asker.key, question))
        except FrameError:
            pass
        finally:
            self._streams.discard(stream)
            for task in tasks.values():
                task.cancel()

    async def _answer(self, stream: FrameStream, who: bytes, question: Question) -> None:
        try:
            async for answer in self._answers(who, question):
                said = answer if self.lie is None else self.lie(question, answer)
                if self.slow is not None:
                    await self.slow(question, answer)
                if said is not None:
                    stream.write(said if isinstance(said, bytes) else encode(said))
        except Refused as refused:
            stream.write(encode(Failure.of(question.id, refused)))
        except Exception as fault:  # it would be taken for silence
            self.stage.faults.append(fault)
            raise

    async def _answers(self, who: bytes, question: Question) -> AsyncIterator[Answer]:
        ledger = self.stage.ledger
        match question:
            case Submit():
                yield _numbered(self._receipted(question.batch), question.id)
            case Prove():
                self._require_known(question.keys)
                yield _numbered(ledger.proven(*question.keys), question.id)
            case ListKeys():
                found = [key for key in ledger.entries(question.prefix) if key > question.after]
                yield Listed(question.id, tuple(sorted(found)), more=False)
            case Fetch():
                self._require_reader(who, question.topic, question.partition)
                self._require_kept(question.topic, question.partition, question.offset)
                if question.wait:
                    await self.stage.until(lambda: self._has(question), question.wait)
                reader = self.stage.actor_of(who)
                answer = ledger.fetched(reader, question.topic, question.offset, question.partition)
                yield _numbered(answer, question.id)
            case OpenStream():
                self._require_reader(who, question.topic)
                async for pushed in self._pushed(self.stage.actor_of(who), question):
                    yield pushed
            case ReadBlocks() | ReadBodies() | ReadEvidence() | Advise():
                yield self._looked_up(question)
            case ReadHeader():
                yield self._header(question)
            case _:
                raise Unsupported("not on this stage")

    def _receipted(self, batch: bytes) -> Receipted:
        ledger = self.stage.ledger
        if self.whole:
            return ledger.receipted(self.stage.order(batch))
        # It knows of no receipt, and orders the batch again.
        name = ledger.machine.admit(batch).digest
        self.stage.apply(Signed(name, batch))
        receipt = receipt_of(ledger.leaves(ledger.height)[0])
        if receipt is not None and receipt.code == Expired.code:
            raise NotReady("filling_in")
        return Receipted(1, ledger.anchor(), ledger.proof(ledger.height, [0]))

    def _header(self, question: ReadHeader) -> ShownHeader:
        ledger = self.stage.ledger
        height = question.height or ledger.height
        if height > ledger.height:
            return ShownHeader(question.id, ledger.anchor(), None)
        return ShownHeader(question.id, ledger.anchor(), ledger.shown_block(height))

    def _looked_up(self, question: ReadBlocks | ReadBodies | ReadEvidence | Advise) -> Answer:
        ledger = self.stage.ledger
        match question:
            case ReadBlocks():
                found = ledger.raw_blocks(question.height, bodies=question.bodies, erased=self.erased)
                return _numbered(found, question.id)
            case ReadBodies():
                return _numbered(ledger.raw_bodies(question.digests, self.erased), question.id)
            case ReadEvidence():
                left = self.evidence[question.skip :]
                return EvidenceList(question.id, left[:1], more=len(left) > 1)
            case Advise():
                self.advisories.append(SignedAdvisory(question.advisory, question.signature))
                return Advised(question.id)

    async def _pushed(self, reader: Actor, question: OpenStream) -> AsyncIterator[Answer]:
        ledger = self.stage.ledger
        starts = {
            one.partition: PartitionStart(one.partition, one.incarnation, one.next_ps, 0)
            for one in question.positions
        }
        while True:
            height = ledger.height
            where = self.stage.constraints[question.constraint]
            for start in starts.values():
                self._require_this_life(question.topic, start)
            if ledger.record(SUBSCRIPTIONS, question.topic, question.constraint, reader.key) is None:
                shown = ledger.own_subscription(reader, question.topic, where)
            else:
                for partition, start in starts.items():
                    head = ledger.record(ORDER_HEADS, question.topic, partition, question.constraint)
                    if head is None or head.incarnation != start.incarnation:
                        raise NotSubscribed("ended")
                    delivery = ledger.delivery(reader, question.topic, where, place_of(start))
                    if delivery is not None:
                        first = ledger.trust.certified(delivery.anchor).leaves(delivery.blocks[0].proof)[-1]
                        if isinstance(first, Match):
                            self._require_kept(question.topic, partition, first.items[0][0])
                        yield _numbered(delivery, question.id)
                    starts[partition] = PartitionStart(partition, start.incarnation, head.next_ps, 0)
                shown = ledger.head(question.topic, where, len(starts))
            yield _numbered(shown, question.id)
            await self.stage.until(lambda height=height: ledger.height > height, HEARTBEAT)  # type: ignore[misc]

    def _has(self, question: Fetch) -> bool:
        head = self.stage.ledger.record(HEADS, question.topic, question.partition)
        return head is not None and head.next_offset > question.offset

    def _require_kept(self, topic: str, partition: int, offset: int) -> None:
        head = self.stage.ledger.record(HEADS, topic, partition)
        if head is not None and offset < head.log_start_offset:
            raise Pruned(topic=topic, partition=partition, start=head.log_start_offset)

    def _require_this_life(self, name: str, start: PartitionStart) -> None:
        topic = self.stage.ledger.record(TOPICS, name)
        if topic is not None and start.incarnation < topic.created:
            raise NotFound("deleted and made anew")

    def _require_known(self, keys: Sequence[bytes]) -> None:
        """That there is no topic is not proved to anybody."""
        ledger = self.stage.ledger
        for key in keys:
            if key.startswith(TOPICS.prefix()) and ledger.record(TOPICS, *TOPICS.unpack(key)) is None:
                raise UnknownTopic(topic=TOPICS.unpack(key)[0], judged=ledger.height)

    def _require_reader(self, who: bytes, name: str, partition: int = 0) -> None:
        ledger = self.stage.ledger
        reader = Principal(who, None, ledger.record(CLIENTS, who))
        topic = ledger.record(TOPICS, name)
        if (why := authorise(reader, Action.SUBSCRIBE, name, topic, partition)) is not None:
            raise why


class Stage:
    """The brokers, their ledger, and clients of it. Use it as a context: brokers listen inside."""

    def __init__(self, folder: Path, timeouts: Timeouts = TIMEOUTS) -> None:
        now = time.time_ns() // 1_000_000
        organisations = Ledger().genesis.organisations
        authorities = {one.name: create_authority(one.name, now=now) for one in organisations}
        self.ledger = Ledger(timeouts, {name: one.certificate for name, one in authorities.items()})
        self.constraints: dict[bytes, str] = {}
        self.late = 0  # ms by which block time lags behind the clients' clock
        self.faults: list[Exception] = []
        self.ahead = 0  # ms by which the clients' clock is ahead of the brokers'
        self.lies: tuple[LyingBroker, ...] = ()  # what a client has caught, for after its end
        self.doubts: tuple[DoubtfulBroker, ...] = ()  # and whom it has doubted
        self._changed = asyncio.Event()
        self.brokers: list[StagedBroker] = []
        for broker in self.ledger.genesis.brokers:
            issued = issue(authorities[broker.organisation], broker.name, broker.organisation, now=now)
            certificate, key = folder / f"{broker.name}.crt", folder / f"{broker.name}.key"
            certificate.write_bytes(issued.certificate)
            key.write_bytes(issued.key)
            self.brokers.append(StagedBroker(self, broker, certificate, key))
        self.actors: dict[bytes, Actor] = {}

    async def __aenter__(self) -> Self:
        for broker in self.brokers:
            broker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers))
        if self.faults:
            raise self.faults[0]

    def __getitem__(self, name: str) -> StagedBroker:
        return next(broker for broker in self.brokers if broker.name == name)

    # -- the ledger ----------------------------------------------------------------------------------------------

    def order(self, body: bytes) -> bytes:
        """Put a batch into a block of its own, unless it has a final receipt; its digest."""
        ledger = self.ledger
        name = ledger.machine.admit(body).digest
        place = ledger.place(name)
        if place is None or not place.final:
            self.apply(Signed(name, body))
        return name

    def order_again(self, question: Submit) -> Receipted:
        """Order a batch although it has a receipt, and show the second one."""
        ledger = self.ledger
        self.apply(Signed(ledger.machine.admit(question.batch).digest, question.batch))
        return Receipted(question.id, ledger.anchor(), ledger.proof(ledger.height, [0]))

    def remake(self, partitions: int, topic: str = "notes") -> None:
        """Delete the topic, and create it again with so many partitions."""
        self.ledger.do(ADMIN, DeleteTopic(topic))
        self.ledger.do(ADMIN, CreateTopic(topic, partitions, Policy(), "", ""))

    def apply(self, *batches: Signed, time: int | None = None) -> None:
        self.ledger.apply(*batches, time=time)
        self._changed.set()
        self._changed = asyncio.Event()

    def asked(self, kind: str) -> int:
        """How many questions of this kind all brokers were asked."""
        return sum(broker.asked[kind] for broker in self.brokers)

    async def until(self, condition: Callable[[], bool], wait: int) -> None:
        """Until it holds, or for `wait` ms."""
        try:
            async with asyncio.timeout(wait / 1_000):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            pass

    # -- clients -------------------------------------------------------------------------------------------------

    def registered(self, name: str, organisation: str = "hospital-a", **attributes: str) -> Actor:
        return self.known(self.ledger.client(name, organisation, **attributes))

    def known(self, who: Actor) -> Actor:
        self.actors[who.key] = who
        return who

    def actor_of(self, key: bytes) -> Actor:
        return self.actors[key]

    def watch(self, where: str) -> str:
        """Brokers know constraints by their ids; this tells them the text."""
        self.constraints[parse_constraint(where).id] = where
        return where

    def identity(self, who: Actor) -> Identity:
        anchor = actor("anchor", who.organisation).secret
        credential = issue_credential(
            self.ledger.chain, who.organisation, who.name, who.key, not_after=FOREVER, anchor=anchor
        )
        return Identity(credential, who.secret.seed())

    def client(
        self,
        who: Actor,
        *,
        verify: Level = "certified",
        trusted: int = 1,
        patience: float | None = 20.0,
        first: str | None = None,
        on_stalled: Callable[[ParleyError], None] | None = None,
    ) -> Client:
        """Not connected yet; it will prefer `first`, by default the broker of its own organisation."""
        addresses = {broker.name: broker.address for broker in self.brokers}
        if first is not None:
            addresses = {first: addresses.pop(first), **addresses}
        return Client(
            Context(self.ledger.genesis, self.identity(who), addresses, chosen=first is not None),
            verify=verify,
            trusted=trusted,
            timeout=patience,
            on_stalled=on_stalled,
            clock=lambda: self.ledger.time + self.late + self.ahead,
        )


def on_stage(
    test: Callable[[Stage], Awaitable[None]], timeouts: Timeouts = TIMEOUTS
) -> Callable[[Path], None]:
    """A test that plays on a stage of its own, with a topic `notes` of three partitions."""

    async def play(folder: Path) -> None:
        async with Stage(folder, timeouts) as stage:
            stage.ledger.topic("notes", partitions=3)
            await test(stage)

    def run(tmp_path: Path) -> None:
        asyncio.run(play(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def on_stage_with(
    timeouts: Timeouts,
) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Path], None]]:
    return lambda test: on_stage(test, timeouts)


def _numbered(answer: Answer, number: int) -> Answer:

    return replace(answer, id=number)
