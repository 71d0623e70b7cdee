"""What the application and a broker refuse, and with which code: many cases, each a pure function of its seed.

The codes are compared with those in `tests/vectors/codes.json`, which were recorded once. Nothing here depends on the value
of a digest, a chain or a signature, nor on how operations and keys of the state are encoded: only the adapters know that.
The histories of `tests/application/histories.py` are a part of this: another choice there is another history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import ADMINS, START, WRITER, Actor, Signed, World, actor, mount, registration
from tests.node.answering import audited, block_name, fetched, proven

from parley.application import machine, sequences, strangers
from parley.application.block import BlockContext
from parley.application.expiry import EXPIRY
from parley.application.operations import Operation
from parley.application.quotas import COUNTS, HELD
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.consensus.types import Instance, genesis_block
from parley.model.batches import BatchHeader, Message
from parley.model.credentials import Credential
from parley.model.expressions import parse_constraint
from parley.model.genesis import Genesis, Limits, Timeouts
from parley.model.names import Value, sorted_pairs
from parley.model.principals import Principal
from parley.model.receipts import BatchReceipt
from parley.model.refusals import Refused as Refusal
from parley.modules.advertisements import rules as advertisements
from parley.modules.advertisements.operations import Advertise
from parley.modules.advertisements.tables import ADVERTISEMENTS
from parley.modules.publishing import budget
from parley.modules.registry.operations import (
    AlterClient,
    GrantRight,
    RegisterClient,
    RevokeClient,
    RevokeRight,
)
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.retention.tables import AGES
from parley.modules.staging import numbering, staged
from parley.modules.staging import rules as staging
from parley.modules.staging import tables as stages
from parley.modules.staging.operations import CommitStage, Source
from parley.modules.subscriptions import matching
from parley.modules.subscriptions import rules as subscriptions
from parley.modules.subscriptions.matching import HEAD
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Subscribed
from parley.modules.subscriptions.tables import CONSTRAINTS, ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.tables import ENDING, HEADS, TOPICS
from parley.node.access import Caller as Asker
from parley.node.services import proving
from parley.node.streams import Stream

__all__ = [
    "ADMITTED",
    "ALICE",
    "ANNA",
    "BOB",
    "CAROL",
    "DAVE",
    "HEAD",
    "INSURER",
    "LABORATORY",
    "LEAST",
    "MALLORY",
    "OTHER",
    "A",
    "Advertise",
    "AlterClient",
    "AlterTopic",
    "Asker",
    "B",
    "CommitStage",
    "CreateTopic",
    "DeleteTopic",
    "GrantRight",
    "Operation",
    "Policy",
    "Refusal",
    "RegisterClient",
    "RevokeClient",
    "RevokeRight",
    "Said",
    "Source",
    "Story",
    "Stream",
    "Subscribe",
    "Unsubscribe",
    "asker_of",
    "audited",
    "begins_of",
    "block_name",
    "code_of",
    "codes_of",
    "fetched",
    "fields_of",
    "id_of_constraint",
    "key_of_advertisement",
    "key_of_client",
    "key_of_constraint",
    "key_of_head",
    "key_of_name",
    "key_of_stage",
    "key_of_subscription",
    "key_of_topic",
    "keys_of_internals",
    "keys_of_odd_topics",
    "limited",
    "prefix_of_advertisements",
    "prefix_of_clients",
    "prefix_of_constraints",
    "prefix_of_heads",
    "prefix_of_lines",
    "prefix_of_names",
    "prefix_of_subscriptions",
    "prefix_of_topics",
    "prefixes_without_a_topic",
    "proven",
    "tag_of",
    "with_rights",
]


# -- adapters: with the imports above, all that knows where things are and how they are encoded ---------------------------

# Limits that are too high to be met, by a word of this file's own.
_LIMITS: dict[str, tuple[tuple[Any, str], ...]] = {
    "lines": ((sequences, "MAX_SESSIONS"),),
    "strangers": ((strangers, "MAX_STRANGERS"),),
    "orders": ((subscriptions, "MAX_ORDERS"),),
    "unguarded": ((matching, "MAX_UNGUARDED"), (subscriptions, "MAX_UNGUARDED")),
    "waiting": ((matching, "MAX_WAITING"), (subscriptions, "MAX_WAITING")),
    "advertised": ((advertisements, "MAX_ADVERTISED"),),
    "staged": ((staged, "MAX_STAGED"),),
    "staged of client": ((staged, "MAX_STAGED_PER_CLIENT"),),
    "writers": ((staging, "MAX_WRITERS"),),
    "writers of client": ((staging, "MAX_WRITERS_PER_CLIENT"),),
    "writer kept": ((staging, "WRITER_KEPT"),),
    "compared of batch": ((budget, "MAX_COMPARED"),),
    "numbered": ((numbering, "MAX_NUMBERED"),),
    "examined": ((proving, "MAX_EXAMINED"),),
}


def codes_of(leaves: Iterable[object]) -> list[str]:
    """The code of every receipt of a batch."""
    return [leaf.code for leaf in leaves if isinstance(leaf, BatchReceipt)]


def code_of(refusal: Refusal) -> str:
    return refusal.data.code


def begins_of(receipt: object) -> list[tuple[int, tuple[int, int], int]]:
    """Partition, incarnation and next number of every order that a subscription joined."""
    assert isinstance(receipt, BatchReceipt)
    outcome = receipt.given(Subscribed)
    assert outcome is not None
    return [(one.partition, one.incarnation, one.next_ps) for one in outcome.partitions]


def id_of_constraint(text: str) -> bytes:
    return parse_constraint(text).id


def tag_of(operation: Operation) -> object:
    """What stands before the fields."""
    return type(operation).__struct_config__.tag


def fields_of(operation: Operation) -> list[Any]:
    tagged_fields: list[Any] = msgspec.to_builtins(operation, builtin_types=(bytes,))
    return tagged_fields[1:]


def key_of_topic(topic: str) -> bytes:
    return TOPICS.key(topic)


def key_of_head(topic: str, partition: int) -> bytes:
    return HEADS.key(topic, partition)


def key_of_constraint(topic: str, partition: int, constraint: bytes) -> bytes:
    return ORDER_HEADS.key(topic, partition, constraint)


def key_of_subscription(topic: str, constraint: bytes, client: bytes) -> bytes:
    return SUBSCRIPTIONS.key(topic, constraint, client)


def key_of_advertisement(topic: str, client: bytes) -> bytes:
    return ADVERTISEMENTS.key(topic, client)


def key_of_client(client: bytes) -> bytes:
    return CLIENTS.key(client)


def key_of_name(organisation: str, name: str) -> bytes:
    return NAMES.key(organisation, name)


def key_of_stage(world: World, publisher: bytes, topic: str, writer: bytes) -> bytes:
    return stages.STAGES.key(topic, world.topic_id(topic), publisher, writer)


def keys_of_internals(client: bytes, batch: bytes, line: BatchHeader) -> dict[str, bytes]:
    """One entry of each kind that is nobody's to ask for."""
    name = sequences.sequence_id(line)
    return {
        "line": sequences.SEQUENCES.key(name),
        "chunk": sequences.CHUNKS.key(name, 0),
        "count of lines": sequences.SESSIONS.key(client, line.session),
        "count of topics": COUNTS.key("topics", ""),
        "count of writers": COUNTS.key("writers", ""),
        "stranger": strangers.STRANGERS.key(batch),
        "guard": CONSTRAINTS.key("open", 1, id_of_constraint("a = 1")),
        "ending": ENDING.key(A, "gone"),
        "ages": AGES.key("short", 0),
        "use": HELD.key("subscriptions", client),
        "staged": stages.STAGED.key(batch),
        "content": stages.CONTENTS.key(batch, 0),
        "staging": stages.STAGING.key("open", line.topic_id, client, WRITER, 0, batch),
        "committing": stages.COMMITTING.key(client),
        "committed": stages.COMMITTED.key(client, 0),
        "queue": stages.QUEUES.key(client),
        "turn": stages.TURNS.key(A, 1, client),
        "waiting": stages.WAITING.key(A),
        "over": stages.OVER.key(A, "open", line.topic_id, client, WRITER),
        "pending": stages.PENDING.key("open"),
        "expiry": EXPIRY.key(9, sequences.SEQUENCES.key(name)),
    }


def prefix_of_topics() -> bytes:
    return TOPICS.prefix()


def prefix_of_heads(topic: str) -> bytes:
    return HEADS.prefix(topic)


def prefix_of_constraints(topic: str) -> bytes:
    return ORDER_HEADS.prefix(topic)


def prefix_of_advertisements(topic: str) -> bytes:
    return ADVERTISEMENTS.prefix(topic)


def prefix_of_subscriptions(topic: str) -> bytes:
    return SUBSCRIPTIONS.prefix(topic)


def prefix_of_names(organisation: str) -> bytes:
    return NAMES.prefix(organisation)


def prefix_of_clients() -> bytes:
    return CLIENTS.prefix()


def prefixes_without_a_topic() -> dict[str, bytes]:
    """Lists that begin with a topic's name must name it whole."""
    return {
        "heads": HEADS.prefix(),
        "constraints": ORDER_HEADS.prefix(),
        "advertisements": ADVERTISEMENTS.prefix(),
        "half a name": HEADS.prefix() + b"op",
    }


def keys_of_odd_topics() -> dict[str, bytes]:
    """Entries of what cannot be a topic's name."""
    return {
        "head": HEADS.key("open", 0).replace(b"open", b"\xff\xfe"),
        "constraint": ORDER_HEADS.key("open", 0, bytes(32)).replace(b"open", b"\xc3"),
        "advertisement": ADVERTISEMENTS.key("open", bytes(32)).replace(b"open", b"\x80open"),
    }


def prefix_of_lines() -> bytes:
    return sequences.SEQUENCES.prefix()


def asker_of(who: Actor, genesis: Genesis, name: str = "") -> Asker:
    """As a broker judges the credential of a connection."""
    credential = Credential(genesis.chain, who.organisation, name or who.name, who.key, 2**61, bytes(64))
    return Asker.of(credential, genesis)


# -- what is common to all cases ------------------------------------------------------------

A, B, INSURER, LABORATORY = ADMINS
AUDITED = (INSURER,)  # the organisations whose clients may be given rights
OTHER = b"o" * 16
LEAST = 4_096  # bytes that a staged batch counts for
ADMITTED = "Admitted"

ALICE, ANNA, BOB, CAROL, DAVE = (
    actor("alice"),
    actor("anna"),
    actor("bob", B),
    actor("carol", INSURER),
    actor("dave", LABORATORY),
)
MALLORY = actor("mallory")

Said = tuple[str, str]  # what was asked, for people; the code
W = TypeVar("W", bound=World)


@contextmanager
def limited(limits: dict[str, int]) -> Iterator[None]:
    """With some limits so low that a few batches meet them."""
    with pytest.MonkeyPatch.context() as patch:
        for word, value in limits.items():
            if word == "work of block":
                patch.setattr(DATA_SHARD, "budget", Budget(batches=value))
                continue
            for module, name in _LIMITS[word]:
                patch.setattr(module, name, value)
        if "lines" in limits:
            patch.setattr(machine, "ProducerSequence", _OneSessionEach)
        yield


class _OneSessionEach(sequences.ProducerSequence):
    """When the codes were recorded, a key's limit counted its sequences; now it counts sessions.

    So each sequence is counted as a session of its own here, and the limit is met where it was.
    """

    def __init__(self, block: BlockContext, by: Principal, header: BatchHeader) -> None:
        super().__init__(block, by, header)
        self._session = self._id[:16]


def with_rights(world: W) -> W:
    """A world at its beginning, where the genesis file lets some organisations give rights."""
    organisations = tuple(
        replace(one, rights=("auditor",)) if one.name in AUDITED else one
        for one in world.genesis.organisations
    )
    world.genesis = replace(world.genesis, organisations=organisations)
    world.chain = world.genesis.chain
    world.machine, world.keeper = mount(world.genesis)
    world._first = genesis_block(
        Instance(world.chain, 0, 0, 4, world.genesis.application), world.root, START
    ).header
    return world


class Story:
    """A world, and the codes of everything that was ordered in it."""

    def __init__(self, limits: Limits | None = None, timeouts: Timeouts | None = None) -> None:
        self.world = with_rights(World(limits, timeouts))
        self.said: list[Said] = []

    def order(self, *batches: Signed, time: int | None = None, what: str = "") -> None:
        leaves = self.world.apply(*batches, time=time)
        self.said += [(f"block {self.world.height}: {what}", code) for code in codes_of(leaves)]

    def do(self, author: Actor, *operations: Operation) -> None:
        """Each in a block of its own."""
        for operation in operations:
            what = f"{author.organisation}/{author.name} {type(operation).__name__}"
            self.order(self.world.control(author, operation), what=what)

    def together(self, author: Actor, *operations: Operation) -> None:
        self.order(*(self.world.control(author, operation) for operation in operations))

    def publish(self, author: Actor, topic: str, *messages: Message, partition: int = 0) -> None:
        self.order(self.world.publication(author, topic, *messages, partition=partition), what="publish")

    def register(self, who: Actor, **attributes: Value) -> Actor:
        self.do(ADMINS[who.organisation], registration(self.world.chain, who, sorted_pairs(attributes)))
        return who

    def topic(
        self, name: str, organisation: str = A, *, partitions: int = 1, publish: str = "", subscribe: str = ""
    ) -> None:
        self.do(ADMINS[organisation], CreateTopic(name, partitions, Policy(), publish, subscribe))
