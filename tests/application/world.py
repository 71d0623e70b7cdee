"""A network of four organisations without a network: signed batches go in blocks, blocks are applied, nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from msgspec.structs import replace

from parley.application.application import Application
from parley.application.machine import Machine
from parley.application.operations import Operation, encode_operation
from parley.application.tables import Table
from parley.applications import DATA_SHARD, VERSION
from parley.consensus.types import Block, Instance, genesis_block
from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.ledger import state_map
from parley.ledger.application import Mounted, Results
from parley.model.batches import (
    CONTROL,
    FORMAT,
    NO_TOPIC,
    PUBLISH,
    STAGED,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    sign_batch,
)
from parley.model.credentials import prove_registration
from parley.model.genesis import FORMAT as GENESIS_FORMAT
from parley.model.genesis import Broker, Genesis, Limits, Organisation, Timeouts, one_shard
from parley.model.names import Pairs, Position, Value, sorted_pairs
from parley.model.receipts import BatchReceipt, Leaf
from parley.model.refusals import DUPLICATE, OK
from parley.modules.registry.operations import RegisterClient
from parley.modules.staging.operations import UNNAMED, CommitStage, Source
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Closed, Match, closed_of, match_of
from parley.modules.topics.operations import CreateTopic, Policy
from parley.modules.topics.tables import TOPICS
from parley.store.interface import KeyValue
from parley.store.memory import MemoryStore

R = TypeVar("R")
K = TypeVarTuple("K")

ORGANISATIONS = ("hospital-a", "hospital-b", "insurer", "laboratory")
START = 1_700_000_000_000
SESSION = bytes(16)
WRITER = b"w" * 16
VALID = 1_000  # heights for which batches are made to be valid


@dataclass(frozen=True)
class Actor:
    """Somebody who signs."""

    name: str
    organisation: str
    secret: SecretKey

    @property
    def key(self) -> bytes:
        return self.secret.public


@dataclass(frozen=True)
class Signed:
    """A batch as it travels."""

    digest: bytes
    body: bytes


def actor(name: str, organisation: str = ORGANISATIONS[0]) -> Actor:
    return Actor(
        name, organisation, SecretKey.from_seed(digest("test/actor", name.encode(), organisation.encode()))
    )


ADMINS = {organisation: actor("admin", organisation) for organisation in ORGANISATIONS}
ADMIN = ADMINS[ORGANISATIONS[0]]


def make_genesis(limits: Limits | None = None, timeouts: Timeouts | None = None) -> Genesis:
    brokers = tuple(
        Broker(f"broker-{name}", name, actor("broker", name).key, "127.0.0.1:1") for name in ORGANISATIONS
    )
    return Genesis(
        format=GENESIS_FORMAT,
        application=VERSION,
        network="health",
        start_time=START,
        depth=2,
        leaders="round-robin",
        allow_faults=False,
        timeouts=timeouts or Timeouts(),
        limits=limits or Limits(),
        organisations=tuple(
            Organisation(name, actor("anchor", name).key, b"ca", (ADMINS[name].key,))
            for name in ORGANISATIONS
        ),
        brokers=brokers,
        shards=one_shard(brokers),
    )


def registration(
    chain: bytes, who: Actor, attributes: Pairs = (), *, name: str = "", organisation: str = ""
) -> RegisterClient:
    """With the agreement of the key to this name and organisation, which are its own unless given."""
    name, organisation = name or who.name, organisation or who.organisation
    proof = prove_registration(who.secret, chain, organisation, name)
    return RegisterClient(name, who.key, attributes, proof)


def tagged(*, payload: bytes = b"payload", **tags: Value) -> Message:
    return Message(bytes(16), encode(MessageHeader(tags=sorted_pairs(tags))), "", payload)


def mount(genesis: Genesis, application: Application = DATA_SHARD, shard: int = 0) -> Mounted[Machine]:
    """The application on one broker."""
    return application.mount(genesis, shard)


class World:
    """Keeps the chain of one network, and for every sequence the next number that its author has not used."""

    def __init__(
        self, limits: Limits | None = None, timeouts: Timeouts | None = None, *, shard: int = 0
    ) -> None:
        self.genesis = make_genesis(limits, timeouts)
        self.chain = self.genesis.chain
        self.shard = shard
        self.machine, self.keeper = mount(self.genesis, shard=shard)
        self.store = MemoryStore()
        self.ids_from: KeyValue = self.store  # the state in which topics have their ids
        self.height = 0
        self.time = START
        self.root = self.machine.genesis().state_root
        self.blocks: list[tuple[Block, list[Signed]]] = []
        self.outcomes: list[Results] = []
        self._sequences: defaultdict[tuple[object, ...], int] = defaultdict(int)
        self._headers: dict[bytes, BatchHeader] = {}
        self._first = genesis_block(Instance(self.chain, 0, 0, 4, VERSION), self.root, START).header

    # -- what clients make -------------------------------------------------------------------------------------------

    def batch(
        self,
        author: Actor,
        messages: Sequence[Message],
        *,
        kind: int = PUBLISH,
        topic: str = "",
        topic_id: Position | None = None,
        partition: int = 0,
        session: bytes = SESSION,
        sequence: int | None = None,
        not_after: int | None = None,
        shard: int | None = None,
    ) -> Signed:
        """Unless given otherwise, for this ledger and for the topic that has the name now."""
        its_id = self.topic_id(topic) if topic_id is None else topic_id
        ledger = self.shard if shard is None else shard
        which = (ledger, author.key, session, kind, topic, its_id, partition)
        if sequence is None:
            sequence = self._sequences[which]
            self._sequences[which] += len(messages)
        last = self.height + VALID if not_after is None else not_after
        place, count = (kind, topic, its_id, partition), len(messages)
        header = BatchHeader(FORMAT, self.chain, ledger, *place, author.key, session, sequence, count, last)
        signed = Signed(*sign_batch(header, tuple(messages), author.secret))
        self._headers[signed.digest] = header
        return signed

    def sequence(self, author: Actor, session: bytes, kind: int, topic: str, partition: int) -> int:
        """What the author should use next, by the receipts of its batches."""
        its_id = self.topic_id(topic)
        return self._sequences[self.shard, author.key, session, kind, topic, its_id, partition]

    def topic_id(self, topic: str) -> Position:
        """Of the topic that has the name, or had it last."""
        record = TOPICS.stored(self.ids_from, topic) if topic else None
        return NO_TOPIC if record is None else record.created

    def control(
        self,
        author: Actor,
        operation: Operation,
        *,
        session: bytes = SESSION,
        sequence: int | None = None,
        not_after: int | None = None,
        shard: int | None = None,
    ) -> Signed:
        """What does not say for which topic it is meant is for the one that has the name now."""
        payload = encode_operation(self.named(operation))
        message = Message(bytes(16), encode(MessageHeader()), "", payload)
        return self.batch(
            author,
            [message],
            kind=CONTROL,
            session=session,
            sequence=sequence,
            not_after=not_after,
            shard=shard,
        )

    def named(self, operation: Operation) -> Operation:
        """With the id of the topic that has its name now, if it does not say for which topic it is meant."""
        if isinstance(operation, Subscribe | Unsubscribe | CommitStage) and operation.topic_id == NO_TOPIC:
            return replace(operation, topic_id=self.topic_id(operation.topic))
        return operation

    def publication(
        self,
        author: Actor,
        topic: str,
        *messages: Message,
        topic_id: Position | None = None,
        partition: int = 0,
        session: bytes = SESSION,
        sequence: int | None = None,
        not_after: int | None = None,
        shard: int | None = None,
    ) -> Signed:
        return self.batch(
            author,
            messages or [tagged()],
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            session=session,
            sequence=sequence,
            not_after=not_after,
            shard=shard,
        )

    def staged(
        self,
        author: Actor,
        topic: str,
        *messages: Message,
        stage: int = 0,
        writer: bytes = WRITER,
        topic_id: Position | None = None,
        partition: int = 0,
        not_after: int | None = None,
    ) -> Signed:
        return self.batch(
            author,
            messages or [tagged()],
            kind=STAGED,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            session=writer,
            sequence=stage,
            not_after=not_after,
        )

    def commit(
        self,
        author: Actor,
        topic: str,
        stage: int,
        *batches: Signed,
        writer: bytes = WRITER,
        source: Source = UNNAMED,
        topic_id: Position = NO_TOPIC,
    ) -> Signed:
        named = tuple(batch.digest for batch in batches)
        return self.control(author, CommitStage(topic, writer, stage, named, source, topic_id))

    # -- what the chain does -----------------------------------------------------------------------------------------

    def next_block(self, batches: Sequence[Signed], time: int | None = None) -> Block:
        header = replace(self._first, height=self.height + 1, time=self.time + 1 if time is None else time)
        return Block(header, tuple(batch.digest for batch in batches))

    def apply(self, *batches: Signed, time: int | None = None) -> list[Leaf]:
        """One block; its leaves."""
        for batch in batches:
            assert self.machine.admit(batch.body).digest == batch.digest
        return self.apply_admitted(*batches, time=time)

    def apply_admitted(self, *batches: Signed, time: int | None = None) -> list[Leaf]:
        """As a replica does that was restarted since it admitted the batches."""
        block = self.next_block(batches, time)
        outcome = self.machine.apply(block, [(batch.digest, batch.body) for batch in batches], self.store)
        self.store.write(outcome.writes)
        self.height, self.time, self.root = block.height, block.header.time, outcome.state_root
        self.blocks.append((block, list(batches)))
        self.outcomes.append(outcome)
        leaves = [DATA_SHARD.decode_leaf(leaf) for leaf in outcome.leaves]
        for leaf in leaves:
            if isinstance(leaf, BatchReceipt):
                self._learn(leaf)
        return leaves

    def _learn(self, receipt: BatchReceipt) -> None:
        """Where a sequence stands, as clients do: a refusal says it."""
        header = self._headers[receipt.digest]
        which = _sequence_of(header)
        if receipt.rejected is not None:
            self._sequences[which] = receipt.rejected.next_sequence
        elif receipt.code != DUPLICATE:
            self._sequences[which] = max(self._sequences[which], header.sequence + header.count)

    def order(self, *batches: Signed) -> list[BatchReceipt]:
        return [leaf for leaf in self.apply(*batches) if isinstance(leaf, BatchReceipt)]

    def order_one(self, batch: Signed) -> BatchReceipt:
        (receipt,) = self.order(batch)
        return receipt

    def do(self, author: Actor, operation: Operation) -> BatchReceipt:
        return self.order_one(self.control(author, operation))

    def publish(self, author: Actor, topic: str, *messages: Message, partition: int = 0) -> BatchReceipt:
        return self.order_one(self.publication(author, topic, *messages, partition=partition))

    def wait(self, blocks: int) -> None:
        for _ in range(blocks):
            self.apply()

    # -- what a story begins with ------------------------------------------------------------------------------------

    def client(self, name: str, organisation: str = ORGANISATIONS[0], **attributes: Value) -> Actor:
        """A registered client."""
        made = actor(name, organisation)
        operation = registration(self.chain, made, sorted_pairs(attributes))
        assert self.do(ADMINS[organisation], operation).code == OK
        return made

    def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        publish: str = "",
        subscribe: str = "",
        organisation: str = ORGANISATIONS[0],
        retention: int = 0,
    ) -> str:
        operation = CreateTopic(name, partitions, Policy(retention=retention), publish, subscribe)
        assert self.do(ADMINS[organisation], operation).code == OK
        return name

    # -- what anybody may look at ------------------------------------------------------------------------------------

    def record(self, table: Table[R, *K], *key: *K) -> R | None:
        return table.stored(self.store, *key)

    def table(self, table: Table[R, *K]) -> dict[tuple[*K], R]:
        """All of its entries, by the tuples of their keys."""
        return dict(table.scan_stored(self.store))

    def entries(self, prefix: bytes = b"") -> dict[bytes, bytes]:
        """The replicated state under a prefix."""
        return {key[1:]: value for key, value in self.store.scan(b"k" + prefix)}

    def rebuilt_root(self) -> bytes:
        """The root of a map made from the entries alone."""
        return state_map.update({}, self.entries())[0]

    def leaves(self, height: int) -> list[Leaf]:
        return [DATA_SHARD.decode_leaf(leaf) for leaf in self.outcomes[height - 1].leaves]


def _sequence_of(header: BatchHeader) -> tuple[object, ...]:
    whose, topic = (header.shard, header.publisher, header.session), (header.topic, header.topic_id)
    return *whose, header.kind, *topic, header.partition


def matches(leaves: Iterable[Leaf]) -> list[Match]:
    return [match for leaf in leaves if (match := match_of(leaf)) is not None]


def closings(leaves: Iterable[Leaf]) -> list[Closed]:
    return [closed for leaf in leaves if (closed := closed_of(leaf)) is not None]


def pairs(**values: Value) -> Pairs:
    return sorted_pairs(values)
