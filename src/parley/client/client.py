"""The client: one object per identity, through which an application publishes, subscribes, reads and administers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from msgspec.structs import astuple

from parley.application.application import Application, VersionError
from parley.application.operations import Operation, encode_operation
from parley.application.tables import K, R, Table
from parley.applications import ApplicationError, application_of
from parley.client.administration import BrokerStatus, ClientInfo, Records, TopicInfo
from parley.client.beliefs import Reader
from parley.client.brokers import Brokers
from parley.client.columns import PAGE_BYTES as COLUMN_BYTES
from parley.client.columns import ColumnPage, Columns
from parley.client.compose import (
    EMPTY_HEADER,
    MAX_CONTENT,
    SALT_SIZE,
    Composer,
    canonical_rule,
    checked_pairs,
    constraint,
    partition_of,
)
from parley.client.connection import Dialler
from parley.client.contexts import Context, renewed, resolve
from parley.client.errors import (
    ContextError,
    DoubtfulBroker,
    LyingBroker,
    NotFound,
    ParleyError,
)
from parley.client.evidence import ProvenMisbehaviour, gather
from parley.client.feed import Subject
from parley.client.history import History
from parley.client.ledger import PAGE_BYTES, CertifiedHead, LedgerReader, VerifiedBlock
from parley.client.messages import (
    Level,
    Message,
    OnUndecryptable,
    OperationReceipt,
    Receipt,
    Withholding,
    require_choices,
)
from parley.client.modules import Modules
from parley.client.observing import Observer
from parley.client.position import Position
from parley.client.proofs import EntryProof
from parley.client.publisher import Publisher, Publishing, publish_one
from parley.client.quorum import ANSWER_SECONDS, QuorumClient
from parley.client.readers import ReaderStatus, advise, readers_of
from parley.client.sequences import Applied, Author, ProducerSequence
from parley.client.staging import VALID, StagedBatch, Stager, Staging, writer_id
from parley.client.state import StateReader
from parley.client.subscription import Start, Subscribing, Subscription
from parley.client.topics import KnownTopic, Topics, chosen_codecs
from parley.consensus.committee import Committee, UnknownShardError, all_brokers, committee_of
from parley.ledger.proofs import Trust
from parley.model.advisories import Advisory, Standpoint
from parley.model.batches import CONTROL, NO_TOPIC, PUBLISH
from parley.model.batches import Message as BatchMessage
from parley.model.credentials import Identity
from parley.model.genesis import Genesis
from parley.model.names import Position as TopicId
from parley.model.names import Value, sorted_pairs
from parley.model.principals import Right
from parley.modules.registry.operations import (
    AlterClient,
    GrantRight,
    RegisterClient,
    RevokeClient,
    RevokeRight,
)
from parley.modules.registry.tables import CLIENTS
from parley.modules.staging.operations import UNNAMED, Source
from parley.modules.staging.tables import StageRecord
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.tables import TopicRecord
from parley.privacy.table import Codecs

__all__ = ["Client", "connect"]

MAX_SEQUENCES = 10_000  # partitions that one client publishes to at a time

log = logging.getLogger("parley.client")


def connect(
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
) -> Client:
    """A client of the network that a context, a directory or files name: use it with `async with`.

    `brokers` changes addresses (a mapping) or says which brokers to use (names, in order of preference). `verify` is
    what it takes to believe an answer: `certified` checks every proof, `quorum` compares f+1 answers, `trusted` compares
    `trusted` answers of one's own organisation. Without `timeout` a network that stalls is waited for; `on_stalled`
    hears of it. `application` is what the network's brokers run, if it is not the one that this package brings;
    `codecs` are those that this program has, if it has more than Parley's (see docs/privacy.md). `shard` has to be named
    only where the network has several: a client speaks with one of them.
    """
    return Client(
        resolve(
            context, directory=directory, genesis=genesis, identity=identity, brokers=brokers, shard=shard
        ),
        verify=verify,
        trusted=trusted,
        timeout=timeout,
        on_stalled=on_stalled,
        application=application,
        codecs=codecs,
    )


def _clock() -> int:
    return time.time_ns() // 1_000_000


class Client(Modules):
    """Made by `connect`. Everything it returns was verified; what did not verify is in `misbehaviour`."""

    def __init__(
        self,
        context: Context,
        *,
        verify: Level = "certified",
        trusted: int = 1,
        timeout: float | None = None,
        on_stalled: Callable[[ParleyError], None] | None = None,
        application: Application | None = None,
        codecs: Codecs | None = None,
        clock: Callable[[], int] = _clock,
        rng: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.genesis = context.genesis
        self.application = _application(context.genesis, application)
        self.name = context.identity.credential.name
        self.organisation = context.identity.credential.organisation
        self.credential_ends = (
            context.identity.credential.not_after
        )  # ms since 1970, as it was at the beginning
        self.committee = _committee(context.genesis, context.shard)
        self._author = Author(self.genesis.chain, self.committee.shard, context.identity.key(), rng)
        self._identity = partial(renewed, context.identity, context.file)
        self._turn = int.from_bytes(rng(2), "big")  # many short-lived clients use all partitions, too
        self._sequences: dict[tuple[str, TopicId, int], ProducerSequence] = {}
        preference = _preference(context, self.committee, self.organisation, rng)
        own = [one for one in preference if _organisation(self.genesis, one) == self.organisation]
        f = self.committee.faults
        dialler = Dialler(self.genesis, self.committee.shard, context.identity, clock, context.file)
        trust = Trust(self.genesis, self.application.decode_leaf, self.committee.shard)
        self._quorum = QuorumClient(
            Brokers(
                dialler,
                {name: context.brokers[name] for name in context.brokers if name in preference},
                preference,
            ),
            Reader(trust, self.key, verify, self.organisation, self.name),
            self.genesis.timeouts,
            clock,
            needed=_needed(verify, f, trusted, len(own), self.organisation),
            faults=f,
            eligible=frozenset(own if verify == "trusted" else preference),
            timeout=timeout,
            report=on_stalled or partial(log.warning, "%s"),
        )
        self._state = StateReader(self._quorum)
        self._topics = Topics(self._quorum, self._state, chosen_codecs(codecs))
        self._history = History(self._quorum, self._topics)
        self._records = Records(self._quorum, self._state, self._history, self._topics)
        self._ledger = LedgerReader(self._quorum)
        self._columns = Columns(self._quorum, self._topics)
        self.observer = Observer(self._quorum)
        self._control = ProducerSequence(self._quorum, self._author, (CONTROL, "", NO_TOPIC, 0))
        self._publishing = Publishing(self._quorum, rng, self._sequence, self._topics)
        self._staging = Staging(self._quorum, self._author, self._state, self._operate, self._topics)
        self._subscribing = Subscribing(self._history, self._operate)

    async def __aenter__(self) -> Self:
        try:
            # Batches are signed for a range of heights, so one certified height has to be known first.
            await self._state.greet(CLIENTS, self.key)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cut all connections; whatever has no receipt yet fails with `ClientClosed`."""
        for sequence in (self._control, *self._sequences.values()):
            sequence.close()
        await self._quorum.brokers.close()

    @property
    def height(self) -> int:
        """The highest certified height that was seen."""
        return self._quorum.height

    @property
    def clock_behind(self) -> int:
        """By how many ms this machine's clock is behind, as certified headers show; 0: there is no sign of it."""
        return self._quorum.time.behind

    @property
    def key(self) -> bytes:
        """The public key that the registry knows this client by."""
        return self._author.key.public

    @property
    def verify(self) -> Level:
        return self._quorum.reader.level

    @property
    def misbehaviour(self) -> tuple[LyingBroker, ...]:
        """The lies that brokers were caught at, oldest first; only the newest are kept."""
        return tuple(self._quorum.brokers.misbehaviour)

    @property
    def doubts(self) -> tuple[DoubtfulBroker, ...]:
        """The brokers that were silent or showed old results while others did not, oldest first; only the newest are kept."""
        return tuple(self._quorum.brokers.doubts)

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        tags: Mapping[str, Value] | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        rule: str = "",
        partition: int | None = None,
    ) -> Receipt:
        """Publish one message and wait for its certified receipt. For many messages, `publisher` is far faster.

        A message with a key goes to the key's partition, one without goes to each partition in turn. If waiting is given
        up, the message may be published all the same.
        """
        known = await self._topics.to_publish(topic)
        overhead, rng = known.codec.overhead, self._author.rng
        composer = Composer(key=key, tags=tags, headers=headers, rule=rule, rng=rng, overhead=overhead)
        message = composer.message(value)
        at = self._partition(composer.key, known.record.partitions) if partition is None else partition
        return await publish_one(self._publishing, known, at, message)

    def _partition(self, key: bytes | None, partitions: int) -> int:
        if key is not None:
            return partition_of(key, partitions)
        partition, self._turn = self._turn % partitions, self._turn + 1
        return partition

    async def publish_json(
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - JSON is anything
        *,
        key: bytes | str | None = None,
        tags: Mapping[str, Value] | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        rule: str = "",
        partition: int | None = None,
    ) -> Receipt:
        """Publish a value as JSON."""
        return await self.publish(
            topic,
            json.dumps(value, ensure_ascii=False, separators=(",", ":")),
            key=key,
            tags=tags,
            headers=headers,
            rule=rule,
            partition=partition,
        )

    def publisher(
        self,
        topic: str,
        *,
        linger: float = 0.005,
        batch_size: int = 100,
        max_bytes: int = MAX_CONTENT,
        in_flight: int = 16,
    ) -> Publisher:
        """For many messages: batches of up to `batch_size`, sent after `linger` seconds at the latest."""
        return Publisher(
            self._publishing,
            topic,
            linger=linger,
            batch_size=batch_size,
            max_bytes=max_bytes,
            in_flight=in_flight,
        )

    # -- staging: for jobs that publish all of a stage, once, or nothing (P23) -----------------------------------------

    async def partitions(self, topic: str, *, fresh: bool = False) -> int:
        """The number of partitions, at most a minute old unless `fresh`. It only grows, unless the topic is created again."""
        return (await self._topics.record(topic, fresh=fresh)).partitions

    async def known_topic(self, topic: str, *, fresh: bool = False) -> KnownTopic:
        """What messages are composed for: the certified record and the codec, at most a minute old unless `fresh`."""
        return await self._topics.to_publish(topic, fresh=fresh)

    async def topic_id(self, topic: str, *, fresh: bool = False) -> TopicId:
        """The id of the topic that has this name: height and place of its creation; at most a minute old unless `fresh`.

        Operations name it, so that none of them acts on another topic that gets the name later.
        """
        return await self._topics.topic_id(topic, fresh=fresh)

    def writer(self, topic: str, name: str) -> bytes:
        """Who stages: this client's writer of this name for one topic."""
        return writer_id(self.key, topic, name)

    async def stage(
        self,
        topic: str,
        partition: int,
        messages: Sequence[BatchMessage],
        writer: bytes,
        stage: int,
        *,
        valid: int = VALID,
    ) -> StagedBatch:
        """Store a batch that stays invisible until its stage is committed, within `valid` heights from now."""
        return await self._staging.stage(topic, partition, messages, writer, stage, valid=valid)

    def stager(
        self, topic: str, writer: bytes, stage: int, *, in_flight: int = 8, valid: int = VALID
    ) -> Stager:
        """For many batches of one stage."""
        return Stager(self._staging, topic, writer, stage, in_flight=in_flight, valid=valid)

    def stage_source(
        self, writer: bytes, stage: int, *, plan: bytes | None = None, rows: bytes | None = None
    ) -> Source:
        """What this stage was made of, for its commit. `plan` names the input it takes, `rows` all that it publishes."""
        return self._staging.source(writer, stage, plan=plan, rows=rows)

    def stage_row_key(self, writer: bytes, stage: int) -> bytes:
        """A secret that belongs into the hash of each row if `rows` of a source are a sum of hashes: else it can be forged."""
        return self._staging.row_key(writer, stage)

    async def commit_stage(
        self, topic: str, writer: bytes, stage: int, digests: Sequence[bytes], source: Source = UNNAMED
    ) -> int:
        """Publish these staged batches, all or none, and nothing else under this stage: the height of the decision.

        A repetition is known by its source, or, if it names none, by its batches. Any other raises `StageOver`.
        """
        return await self._staging.commit(topic, writer, stage, digests, source)

    async def stage_record(self, topic: str, writer: bytes) -> StageRecord | None:
        """The last stage that a writer committed, None if there is none."""
        return await self._staging.record(topic, writer)

    # -- reading -----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        where: str = "",
        start: Start = "latest",
        *,
        keep: bool = False,
        withheld: Withholding = "skip",
        on_undecryptable: OnUndecryptable = "raise",
    ) -> Subscription:
        """Messages whose tags satisfy `where`, in order, as they come; from `start` on if that lies in the past.

        `start` may be the `position()` of an earlier subscription: then nothing is missed and nothing comes twice. With
        `keep` the order stays alive for its lease after this subscription was left, so that its numbers go on.
        Messages that their rule hides from this client are checked and skipped; with `withheld="yield"` they come, too,
        and their content raises `Redacted`. What the topic's codec cannot open comes as well, and its content raises
        `Undecryptable`; with `on_undecryptable="skip"` it is left out.
        """
        require_choices(withheld, on_undecryptable)
        wanted = constraint(where)
        if isinstance(start, Position):
            start.require(self.genesis.chain, topic, wanted.text)
        return Subscription(
            self._subscribing,
            Subject(self._quorum, topic, wanted),
            start,
            keep=keep,
            withheld=withheld,
            on_undecryptable=on_undecryptable,
        )

    async def fetch(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: Literal["earliest", "latest"] | int = "earliest",
        count: int | None = None,
        follow: bool = False,
        withheld: Withholding = "skip",
        on_undecryptable: OnUndecryptable = "raise",
    ) -> AsyncGenerator[Message, None]:
        """Messages of a partition by offset: `count` of them, up to the end, or, to `follow`, beyond it.

        `withheld` and `on_undecryptable` are as in `subscribe`.
        """
        require_choices(withheld, on_undecryptable)
        if isinstance(start, int):
            offset = start
        else:
            head = await self._history.head(topic, partition)
            offset = head.log_start_offset if start == "earliest" else head.next_offset
        async for message in self._history.messages(
            topic,
            partition,
            offset,
            count,
            follow=follow,
            withheld=withheld,
            on_undecryptable=on_undecryptable,
        ):
            yield message

    async def read(self, topic: str, offset: int, *, partition: int = 0) -> Message:
        """One publication with its proof; if its rule hides it from this client, its content raises `Redacted`."""
        page = await self._history.page(topic, partition, offset, max_bytes=1)
        if not page.messages:
            raise NotFound("offset", topic=topic, partition=partition, offset=offset)
        return page.messages[0]

    async def page(
        self, topic: str, offset: int, *, partition: int = 0, floor: int = 0, max_bytes: int = COLUMN_BYTES
    ) -> ColumnPage:
        """Publications from an offset on, column by column: for those who read very many.

        Nothing in it is called hidden or ended as of before height `floor`.
        """
        return await self._columns.page(topic, partition, offset, floor=floor, max_bytes=max_bytes)

    # -- operations and tables of any module -------------------------------------------------------------------------

    async def operate(self, operation: Operation) -> OperationReceipt:
        """Order an operation of the network's application and wait for its certified receipt.

        Raises the operation's refusal. If waiting is given up, the operation may take effect all the same.
        """
        applied = await self._operate(operation)
        ordered = applied.ordered
        return OperationReceipt(
            operation,
            ordered.height,
            ordered.time,
            ordered.receipt.client,
            self.verify,
            ordered.receipt,
            partial(applied.operation_proof, self._quorum.reader.trust, self.application),
        )

    async def entry(self, table: Table[R, *K], *key: *K) -> R | None:
        """The certified record under a key of a table, None if there is certainly none."""
        return await self._state.entry(table, *key)

    async def entries(self, table: Table[R, *K], *leading: object) -> list[tuple[tuple[*K], R]]:
        """The certified entries of a table whose key begins with these values, as pairs of key and record.

        Each is proven. That the list is complete is the word of f+1 brokers, one of which is honest.
        """
        return await self._state.entries(table, *leading)

    async def entry_proof(self, table: Table[R, *K], *key: *K) -> EntryProof:
        """What a third party can check of an entry, or of there being none; its `save` writes it to a file."""
        return await self._state.proof(table, *key)

    # -- the ledger itself -------------------------------------------------------------------------------------------

    async def certified_height(self) -> CertifiedHead:
        """How far the ledger is certified now: the height, the id and the time of the header that says so."""
        return await self._ledger.certified_head()

    async def blocks(
        self, height: int, *, bodies: bool = True, max_bytes: int = PAGE_BYTES
    ) -> list[VerifiedBlock]:
        """Whole blocks from a height on, about `max_bytes` of them and at least one; none if there is none yet.

        Only for auditors: others get `PermissionDenied`. Proofs are checked at every level of `verify`.
        """
        return await self._ledger.blocks(height, bodies=bodies, max_bytes=max_bytes)

    async def evidence(self) -> list[ProvenMisbehaviour]:
        """The proofs that brokers hold against each other, each of them checked. Only for auditors."""
        return await gather(self._quorum)

    async def advise(
        self, query: str, topic: str, positions: Mapping[int, tuple[int, int]], *, run: str = ""
    ) -> None:
        """Tell brokers where a query stands, for `parley status`: by partition the next offset and the known end.

        It is kept for two minutes, and is no acknowledgement: nothing depends on it.
        """
        standpoints = tuple(Standpoint(partition, *place) for partition, place in sorted(positions.items()))
        now = self._quorum.clock()
        advisory = Advisory(self._identity().credential, query, run, topic, standpoints, now)
        await advise(self._quorum, advisory, self._author.key)

    def readers(self, answers: Iterable[BrokerStatus]) -> list[ReaderStatus]:
        """What readers say of themselves in the answers to `status`, as far as they signed it."""
        return readers_of(answers, self.genesis, self._quorum.clock())

    # -- administration: each returns the height at which it took effect -----------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        publish: str = "",
        subscribe: str = "",
        retention: int = 0,
        policy: Policy | None = None,
    ) -> int:
        """A topic of one's own organisation; `publish` and `subscribe` are rules over attributes, empty for any client."""
        policy = policy or Policy(retention=retention)
        return await self._done(
            CreateTopic(name, partitions, policy, canonical_rule(publish), canonical_rule(subscribe))
        )

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: int | None = None,
        publish: str | None = None,
        subscribe: str | None = None,
    ) -> int:
        """Change what is given. Partitions only grow; where many subscribe they come some blocks later, all at once."""
        rules = [None if rule is None else canonical_rule(rule) for rule in (publish, subscribe)]
        return await self._done(AlterTopic(name, partitions, retention, *rules))

    async def delete_topic(self, name: str) -> int:
        return await self._done(DeleteTopic(name))

    async def topics(self) -> list[TopicInfo]:
        """Those that this client may publish or subscribe to, or administers."""
        return await self._records.topics()

    async def topic(self, name: str) -> TopicInfo:
        """A topic with the ends of its partitions."""
        return await self._records.topic(name)

    async def register_client(
        self, name: str, key: bytes, attributes: Mapping[str, Value] | None = None, *, proof: bytes
    ) -> int:
        """A client of one's own organisation, with the attributes that rules look at.

        `proof` is that the key agrees: its holder makes it with `prove_registration`, or `Identity.proof`.
        """
        pairs = sorted_pairs(checked_pairs("attribute", attributes or {}))
        return await self._done(RegisterClient(name, key, pairs, proof))

    async def alter_client(
        self,
        name: str,
        *,
        set: Mapping[str, Value] | None = None,  # noqa: A002 - the word of the operation
        remove: Sequence[str] = (),
    ) -> int:
        """Set some attributes and remove others."""
        pairs = sorted_pairs(checked_pairs("attribute", set or {}))
        return await self._done(AlterClient(name, pairs, tuple(remove)))

    async def revoke_client(self, name: str) -> int:
        """For ever: its key never becomes valid again."""
        return await self._done(RevokeClient(name))

    async def grant_right(self, name: str, right: Right = "auditor") -> int:
        """Give a client of one's own organisation a right that the genesis file gives the organisation."""
        return await self._done(GrantRight(name, right))

    async def revoke_right(self, name: str, right: Right = "auditor") -> int:
        return await self._done(RevokeRight(name, right))

    async def clients(self) -> list[ClientInfo]:
        """The live clients of one's own organisation."""
        return await self._records.clients(self.organisation)

    async def client_record(self, name: str | None = None) -> ClientInfo:
        """A client of one's own organisation, by default oneself."""
        return await self._records.client(self.organisation, name or self.name)

    async def status(self, timeout: float = ANSWER_SECONDS) -> list[BrokerStatus]:  # noqa: ASYNC109 - of each
        """What each broker says of itself, in the order of the genesis file; at most `timeout` seconds are waited."""
        return await self._records.status(timeout)

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _done(self, operation: Operation) -> int:
        return (await self._operate(operation)).ordered.height

    async def _operate(self, operation: Operation, *, repeats: bool = False) -> Applied:
        """Order an operation and wait for its certified receipt."""
        payload = encode_operation(operation)
        self.application.decode_operation(payload)  # brokers would refuse what cannot be read
        message = BatchMessage(self._author.rng(SALT_SIZE), EMPTY_HEADER, "", payload)
        what = _words(operation)
        done = self._control.submit((message,), what, repeats=repeats)
        finished, _ = await asyncio.wait([done], timeout=self._quorum.timeout)
        if not finished:
            raise self._control.unanswered(f"{what} (it may still take effect)")
        return done.result()

    def _sequence(self, topic: TopicRecord, partition: int) -> ProducerSequence:
        place = (topic.name, topic.created, partition)
        found = self._sequences.get(place)
        if found is None:
            if len(self._sequences) >= MAX_SEQUENCES:
                self._sequences = {place: one for place, one in self._sequences.items() if not one.is_idle}
            found = ProducerSequence(self._quorum, self._author, (PUBLISH, *place))
            self._sequences[place] = found
        return found


def _words(operation: Operation) -> str:
    """For errors: the operation, and the client or topic that it is about."""
    verb = operation.name_of().replace("_", " ")
    return f"the operation '{' '.join([verb, *map(str, astuple(operation)[:1])])}'"


def _application(genesis: Genesis, given: Application | None) -> Application:
    """The application of the network. Raises `ContextError` if this program does not have it."""
    try:
        application = application_of(genesis) if given is None else given
        application.require_version(genesis)
    except (ApplicationError, VersionError) as error:
        raise ContextError(f"The network cannot be used: {error}.") from error
    return application


def _organisation(genesis: Genesis, broker: str) -> str:
    return next(one.organisation for one in all_brokers(genesis) if one.name == broker)


def _committee(genesis: Genesis, shard: int | None) -> Committee:
    """The members of the shard that is asked for. Raises `ContextError` if it has to be named, or does not exist."""
    try:
        return committee_of(genesis, shard)
    except UnknownShardError as error:
        raise ContextError(f"{error}; say shard= or `shard` in the context.".capitalize()) from None


def _preference(
    context: Context, committee: Committee, organisation: str, rng: Callable[[int], bytes]
) -> list[str]:
    """As given, or one's own organisation's brokers first and the others from a random one on, to spread the load."""
    names = [name for name in context.brokers if name in committee.names]
    if not names:
        raise ContextError(
            f"None of the brokers in use ({', '.join(context.brokers)}) is a member of shard {committee.shard}; its members are "
            f"{', '.join(committee.names)}."
        )
    if context.chosen:
        return names
    own = [name for name in names if _organisation(context.genesis, name) == organisation]
    others = deque(name for name in names if name not in own)
    others.rotate(rng(1)[0])
    return [*own, *others]


def _needed(verify: str, f: int, trusted: int, own: int, organisation: str) -> int:
    match verify:
        case "certified":
            return 1
        case "quorum":
            return f + 1
        case "trusted":
            if not 1 <= trusted <= own:
                raise ParleyError(
                    f"{organisation} runs {own} of the brokers in use, so its word cannot be asked for {trusted} times."
                )
            return trusted
        case _:
            raise ParleyError(f"verify is 'certified', 'quorum' or 'trusted', not {verify!r}.")
