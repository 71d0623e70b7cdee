"""The same promises written down a second time, as plainly as possible: dictionaries, loops, no caches, no expiry."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from tests.application import models

from parley.application.operations import Operation
from parley.applications import DATA_SHARD
from parley.crypto import ed25519
from parley.model.batches import MAX_NOT_AFTER, PUBLISH, STAGED, Batch, decode_message_header
from parley.model.credentials import registration
from parley.model.expressions import parse_constraint, parse_rule
from parley.model.genesis import Genesis
from parley.model.names import Position, Value
from parley.model.refusals import (
    DUPLICATE,
    OK,
    Expired,
    Invalid,
    LimitExceeded,
    OutOfSequence,
    PermissionDenied,
    Revoked,
    SequenceReused,
    UnknownClient,
    Unsupported,
)
from parley.modules.registry.operations import AlterClient, RegisterClient, RevokeClient
from parley.modules.registry.refusals import ClientExists
from parley.modules.staging.operations import CommitStage, Source
from parley.modules.staging.refusals import NotStaged, StageOver
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic
from parley.modules.topics.refusals import TopicExists, TopicReplaced, UnknownPartition, UnknownTopic


class No(Exception):  # noqa: N818
    def __init__(self, code: str) -> None:
        self.code = code


@dataclass
class Client:
    organisation: str
    name: str
    attributes: dict[str, Value]
    revoked: bool = False

    def satisfies(self, rule: str) -> bool:
        sees = {**self.attributes, "org": self.organisation, "client": self.name}
        return not self.revoked and parse_rule(rule).allows(sees)


@dataclass
class Topic:
    organisation: str
    partitions: int
    publish: str
    subscribe: str
    created: Position
    retention: int = 0
    deleted: bool = False


@dataclass
class Order:
    """Everything that a constraint was ever given in one partition, in one incarnation."""

    incarnation: Position
    items: list[tuple[int, bytes]] = field(default_factory=list)
    closed: bool = False


@dataclass
class Commit:
    """The last stage of a writer."""

    stage: int
    digests: tuple[bytes, ...]
    at: Position
    source: Source

    def is_said_again(self, by: CommitStage) -> bool:
        both_plan = by.source.plan is not None and self.source.plan is not None
        both_rows = by.source.rows is not None and self.source.rows is not None
        if both_plan:
            return by.source.plan == self.source.plan
        if both_rows:
            return by.source.rows == self.source.rows
        return (by.source, by.digests) == (self.source, self.digests)


Writer = tuple[bytes, str, Position, bytes]  # publisher, topic and its id, writer
OrderName = tuple[str, int, bytes, Position]


class Reference:
    def __init__(self, genesis: Genesis, numbered: int = 1_000_000) -> None:
        """`numbered`: how many staged batches a block numbers, at most."""
        self.genesis = genesis
        self.most = numbered
        self.admins = {key: o.name for o in genesis.organisations for key in o.admins}
        self.clients: dict[bytes, Client] = {}
        self.topics: dict[str, Topic] = {}
        self.log: dict[tuple[str, int], list[bytes]] = {}
        self.start: dict[tuple[str, int], int] = {}
        self.ages: dict[
            tuple[str, int], list[int]
        ] = {}  # of every message, the end of the granule that it is in
        self.subscriptions: dict[tuple[str, bytes, bytes], int] = {}  # topic, constraint, client -> lease
        self.texts: dict[bytes, str] = {}
        self.orders: dict[OrderName, Order] = {}
        self.models = [file.Model(self) for file in models.FILES]
        self.next: dict[tuple[object, ...], int] = {}
        self.known: dict[bytes, Position] = {}
        self.original: dict[bytes, Position] = {}  # what the last duplicate of a batch was told
        self.staged: dict[bytes, Batch] = {}  # and not committed
        self.stages: dict[Writer, Commit] = {}
        self.queue: list[tuple[bytes, Batch, Position]] = []  # committed and not numbered
        self.turns: dict[str, int] = {}  # of organisations that wait: the lowest is next
        self.turns_of: dict[bytes, int] = {}  # of clients that wait
        self.last: dict[str, int] = {}  # the highest that a client of the organisation had
        self.ending: set[str] = set()  # topics that this block deleted
        self.leaving: set[bytes] = set()  # clients that this block revoked
        self.height = self.time = 0

    def apply(self, height: int, time: int, batches: list[tuple[bytes, Batch]]) -> list[tuple[bytes, str]]:
        """(digest, code) in the order of application."""
        self.height, self.time = height, time
        for key in sorted(self.subscriptions):
            if self.subscriptions[key] < time or key[0] in self.ending or key[2] in self.leaving:
                self.end(key)
        for log, ages in self.ages.items():
            retention = self.topics[log[0]].retention
            while retention and any(age + retention <= time for age in ages[self.start[log] :][:1]):
                self.start[log] += 1
        for model in self.models:
            model.begin_block(self.ending, self.leaving)
        for digest, batch in list(self.staged.items()):
            if batch.header.not_after < height:
                del self.staged[digest]
        self.ending.clear()
        self.leaving.clear()
        waiting = list(batches)
        codes: list[tuple[bytes, str]] = []
        # The first place of a sequence goes to its lowest sequence, and so on.
        for _, place in batches:
            mine = [found for found in waiting if sequence_of(found[1]) == sequence_of(place)]
            chosen = min(mine, key=lambda found: found[1].header.sequence)
            waiting.remove(chosen)
            codes.append((chosen[0], self.one(*chosen, (height, len(codes)))))
        return codes + self.number()

    def number(self) -> list[tuple[bytes, str]]:
        codes: list[tuple[bytes, str]] = []
        for digest, batch, committed in [self.take() for _ in self.queue[: self.most]]:
            topic = self.topics[batch.header.topic]
            assert batch.header.topic_id < committed
            if not topic.deleted and topic.created == batch.header.topic_id:
                self.append(batch)
                codes.append((digest, OK))
        return codes

    def take(self) -> tuple[bytes, Batch, Position]:
        """What is next: of the organisation that had least since it waits, and there of the client that had least."""
        owners = {key: self.clients[key].organisation for key in self.turns_of}
        organisation = min(sorted(self.turns, key=self.place), key=lambda name: self.turns[name])
        mine = [key for key, owner in owners.items() if owner == organisation]
        client = min(mine, key=lambda key: (self.turns_of[key], key))
        found = next(waiting for waiting in self.queue if waiting[1].header.publisher == client)
        self.queue.remove(found)
        self.turns[organisation] += 1
        self.turns_of[client] += 1
        self.last[organisation] = max(self.last[organisation], self.turns_of[client])
        if all(batch.header.publisher != client for _, batch, _ in self.queue):
            del self.turns_of[client]
        if organisation not in {self.clients[key].organisation for key in self.turns_of}:
            del self.turns[organisation], self.last[organisation]
        return found

    def place(self, organisation: str) -> int:
        return [one.name for one in self.genesis.organisations].index(organisation)

    def wait(self, client: bytes) -> None:
        """Begin to wait, behind those who do."""
        organisation = self.clients[client].organisation
        if organisation not in self.turns:
            self.turns[organisation] = max(self.turns.values(), default=0) + 1
            self.last[organisation] = 0
        if client not in self.turns_of:
            self.last[organisation] += 1
            self.turns_of[client] = self.last[organisation]

    def one(self, digest: bytes, batch: Batch, at: Position) -> str:
        if batch.header.kind == STAGED:
            return self.stage(digest, batch, at)
        header = batch.header
        expected = self.next.get(sequence_of(batch), 0)
        if not self.height <= header.not_after <= self.height + MAX_NOT_AFTER:
            return Expired.code
        if digest in self.known:
            self.original[digest] = self.known[digest]
            return DUPLICATE
        if header.publisher not in self.admins and header.publisher not in self.clients:
            self.known[digest] = at
            return UnknownClient.code
        revoked = header.publisher not in self.admins and self.clients[header.publisher].revoked
        if revoked and sequence_of(batch) not in self.next:
            return Revoked.code
        if header.kind == PUBLISH and self.is_replaced(header.publisher, header.topic, header.topic_id):
            return TopicReplaced.code
        if header.sequence < expected:
            return SequenceReused.code
        if header.sequence > expected:
            return OutOfSequence.code
        self.next[sequence_of(batch)] = expected + header.count
        self.known[digest] = at
        try:
            if header.kind == PUBLISH:
                self.require_publishing(batch)
                self.append(batch)
            else:
                operation = DATA_SHARD.decode_operation(batch.messages[0].payload)
                if isinstance(operation, CommitStage):
                    self.commit(digest, header.publisher, operation, at)
                else:
                    self.operate(header.publisher, operation, at)
        except No as no:
            return no.code
        return OK

    def stage(self, digest: bytes, batch: Batch, at: Position) -> str:
        header = batch.header
        last = self.stages.get((header.publisher, header.topic, header.topic_id, header.session))
        if not self.height <= header.not_after <= self.height + MAX_NOT_AFTER:
            return Expired.code
        if last is not None and header.sequence <= last.stage:
            return StageOver.code
        if digest in self.staged:
            self.original[digest] = self.known[digest]
            return DUPLICATE
        try:
            self.require_publishing(batch)
        except No as no:
            return no.code
        self.staged[digest] = batch
        self.known[digest] = at
        return OK

    def commit(self, digest: bytes, key: bytes, operation: CommitStage, at: Position) -> None:
        client, writer = self.client(key), (key, operation.topic, operation.topic_id, operation.writer)
        last = self.stages.get(writer)
        if last is not None and operation.stage <= last.stage:
            if last.stage == operation.stage and last.is_said_again(operation):
                self.original[digest] = last.at
                raise No(DUPLICATE)
            raise No(StageOver.code)
        self.require_this(key, operation.topic, operation.topic_id)
        self.allow(self.topic(operation.topic), "publish", client)
        if len(set(operation.digests)) < len(operation.digests):
            raise No(Invalid.code)
        for name in operation.digests:
            found = self.staged.get(name)
            if found is None or (*writer, operation.stage) != stage_of(found):
                raise No(NotStaged.code)
        self.stages[writer] = Commit(operation.stage, operation.digests, at, operation.source)
        self.queue += [(name, self.staged.pop(name), at) for name in operation.digests]
        if operation.digests:
            self.wait(key)

    def client(self, key: bytes) -> Client:
        if key not in self.clients:
            raise No(UnknownClient.code)
        if self.clients[key].revoked:
            raise No(Revoked.code)
        return self.clients[key]

    def topic(self, name: str) -> Topic:
        if name not in self.topics or self.topics[name].deleted:
            raise No(UnknownTopic.code)
        return self.topics[name]

    def is_replaced(self, key: bytes, name: str, topic_id: Position) -> bool:
        """Whether it was meant for an earlier topic of the name, and the key may know of the present one."""
        if name not in self.topics or topic_id >= self.topics[name].created:
            return False
        try:
            self.describe(self.topics[name], self.clients.get(key), self.admins.get(key))
        except No:
            return False
        return True

    def require_this(self, key: bytes, name: str, topic_id: Position) -> None:
        if self.is_replaced(key, name, topic_id):
            raise No(TopicReplaced.code)
        if self.topic(name).created != topic_id:
            raise No(UnknownTopic.code)

    def allow(self, topic: Topic, what: str, client: Client) -> None:
        self.describe(topic, client)
        if not client.satisfies(getattr(topic, what)):
            raise No(PermissionDenied.code)

    def describe(self, topic: Topic, client: Client | None, administers: str | None = None) -> None:
        """There is no topic for those who may not know of it."""
        rules = (topic.publish, topic.subscribe)
        if administers == topic.organisation or (client is not None and any(map(client.satisfies, rules))):
            return
        raise No(UnknownTopic.code)

    def require_publishing(self, batch: Batch) -> None:
        client = self.client(batch.header.publisher)
        self.require_this(batch.header.publisher, batch.header.topic, batch.header.topic_id)
        topic = self.topic(batch.header.topic)
        self.describe(topic, client)
        if batch.header.partition >= topic.partitions:
            raise No(UnknownPartition.code)
        self.allow(topic, "publish", client)

    def append(self, batch: Batch) -> None:
        header, topic = batch.header, self.topics[batch.header.topic]
        log = self.log[header.topic, header.partition]
        ages = self.ages[header.topic, header.partition]
        opens = self.start[header.topic, header.partition] == len(ages) or ages[-1] <= self.time
        end = self.time + ceil(topic.retention / 16) if opens else ages[-1]
        ages += [end] * len(batch.messages)
        for message in batch.messages:
            tags = dict(decode_message_header(message.header).tags)
            for (name, partition, constraint, _), order in self.orders.items():
                here = (name, partition) == (header.topic, header.partition) and not order.closed
                if here and parse_constraint(self.texts[constraint]).matches(tags):
                    order.items.append((len(log), message.leaf()))
            log.append(message.leaf())

    def administrator(self, key: bytes) -> str:
        if key not in self.admins:
            self.client(key)
            raise No(PermissionDenied.code)
        return self.admins[key]

    def named(self, organisation: str, name: str) -> bytes:
        for key, client in self.clients.items():
            if (client.organisation, client.name, client.revoked) == (organisation, name, False):
                return key
        raise No(UnknownClient.code)

    def owned(self, key: bytes, name: str) -> Topic:
        if key not in self.admins:
            self.client(key)
        topic = self.topic(name)
        self.describe(topic, self.clients.get(key), self.admins.get(key))
        if self.admins.get(key) != topic.organisation:
            raise No(PermissionDenied.code)
        return topic

    def operate(self, key: bytes, operation: Operation, at: Position) -> None:  # noqa: C901, PLR0912
        match operation:
            case RegisterClient():
                organisation = self.administrator(key)
                if {"org", "client"} & dict(operation.attributes).keys():
                    raise No(Invalid.code)
                names = [(c.organisation, c.name) for c in self.clients.values() if not c.revoked]
                if operation.key in self.clients or (organisation, operation.name) in names:
                    raise No(ClientExists.code)
                agreed = registration(self.genesis.chain, organisation, operation.name)
                if not ed25519.verify(operation.key, agreed, operation.proof):
                    raise No(Invalid.code)
                owners = [c.organisation for c in self.clients.values()]
                self.require_share(organisation, owners, self.genesis.limits.clients)
                self.clients[operation.key] = Client(organisation, operation.name, dict(operation.attributes))
            case AlterClient():
                found = self.clients[self.named(self.administrator(key), operation.name)]
                for name in operation.remove:
                    found.attributes.pop(name, None)
                found.attributes.update(operation.set)
            case RevokeClient():
                revoked = self.named(self.administrator(key), operation.name)
                self.clients[revoked].revoked = True
                self.leaving.add(revoked)
            case CreateTopic():
                self.create(key, self.administrator(key), operation, at)
            case AlterTopic():
                topic = self.owned(key, operation.name)
                if operation.partitions is not None:
                    if operation.partitions < topic.partitions:
                        raise No(Invalid.code)
                    self.grow(operation.name, topic, operation.partitions)
                if operation.retention not in (None, topic.retention):
                    assert operation.retention is not None
                    # What had no retention begins to age now; no granule goes on under another retention.
                    for (name, _), ages in self.ages.items():
                        if name == operation.name:
                            ages[:] = [
                                min(age, self.time + 1) if topic.retention else self.time + 1 for age in ages
                            ]
                    topic.retention = operation.retention
                topic.publish = topic.publish if operation.publish is None else operation.publish
                topic.subscribe = topic.subscribe if operation.subscribe is None else operation.subscribe
            case DeleteTopic():
                topic = self.owned(key, operation.name)
                topic.deleted = True
                for partition in range(topic.partitions):
                    self.start[operation.name, partition] = len(self.log[operation.name, partition])
                self.ending.add(operation.name)
            case Subscribe():
                self.subscribe(key, operation, at)
            case Unsubscribe():
                client = self.client(key)
                self.require_this(key, operation.topic, operation.topic_id)
                topic = self.topic(operation.topic)
                held = (operation.topic, parse_constraint(operation.constraint).id, key)
                if held not in self.subscriptions:
                    self.describe(topic, client)
                    raise No(NotSubscribed.code)
                self.end(held)
            case _:
                assert any(model.operate(key, operation) for model in self.models), (
                    f"no history has {operation}"
                )

    def create(self, key: bytes, organisation: str, operation: CreateTopic, at: Position) -> None:
        before = self.topics.get(operation.name)
        if before is not None:
            try:
                self.describe(before, self.clients.get(key), organisation)
            except No:
                raise No(TopicExists.code) from None
        if before is not None and not before.deleted:
            raise No(TopicExists.code)
        if before is not None and before.organisation != organisation:
            raise No(PermissionDenied.code)
        if operation.name in self.ending:
            raise No(LimitExceeded.code)
        if (operation.policy.matching, operation.policy.payload) != ("clear", "plain"):
            raise No(Unsupported.code)
        if before is None:
            owners = [topic.organisation for topic in self.topics.values()]
            self.require_share(organisation, owners, self.genesis.limits.topics)
        topic = self.topics[operation.name] = Topic(
            organisation, 0, operation.publish, operation.subscribe, at, operation.policy.retention
        )
        self.grow(operation.name, topic, operation.partitions)

    def require_share(self, organisation: str, owners: list[str], limit: int) -> None:
        share = ceil(limit / len(self.genesis.organisations))
        if owners.count(organisation) >= share or len(owners) >= limit:
            raise No(LimitExceeded.code)

    def grow(self, name: str, topic: Topic, partitions: int) -> None:
        for partition in range(topic.partitions, partitions):
            self.log.setdefault((name, partition), [])
            self.start.setdefault((name, partition), 0)
            self.ages.setdefault((name, partition), [])
            for (other, first, constraint, incarnation), order in list(self.orders.items()):
                if (other, first) == (name, 0) and not order.closed:
                    self.orders[name, partition, constraint, incarnation] = Order(incarnation)
        topic.partitions = partitions

    def subscribe(self, key: bytes, operation: Subscribe, at: Position) -> None:
        client = self.client(key)
        self.require_this(key, operation.topic, operation.topic_id)
        topic = self.topic(operation.topic)
        self.allow(topic, "subscribe", client)
        constraint = parse_constraint(operation.constraint)
        held = (operation.topic, constraint.id, key)
        if held not in self.subscriptions:
            mine = sum(subscriber == key for _, _, subscriber in self.subscriptions)
            if mine >= self.genesis.limits.subscriptions_per_client:
                raise No(LimitExceeded.code)
            if not any(other[:2] == held[:2] for other in self.subscriptions):
                self.texts[constraint.id] = constraint.text
                for partition in range(topic.partitions):
                    self.orders[operation.topic, partition, constraint.id, at] = Order(at)
        self.subscriptions[held] = self.time + self.genesis.timeouts.lease

    def end(self, held: tuple[str, bytes, bytes]) -> None:
        del self.subscriptions[held]
        if not any(other[:2] == held[:2] for other in self.subscriptions):
            for (topic, _, constraint, _), order in self.orders.items():
                if (topic, constraint) == held[:2]:
                    order.closed = True


def sequence_of(batch: Batch) -> tuple[object, ...]:
    header = batch.header
    topic = (header.topic, header.topic_id)
    return header.shard, header.publisher, header.session, header.kind, *topic, header.partition


def stage_of(batch: Batch) -> tuple[bytes, str, Position, bytes, int]:
    header = batch.header
    return header.publisher, header.topic, header.topic_id, header.session, header.sequence
