"""What the application and a broker refuse, and with which code: many cases, each a pure function of its seed.

The codes are compared with those in `tests/vectors/codes.json`, which were recorded once. Nothing here depends on the value
of a digest, a chain or a signature, nor on how operations and keys of the state are encoded: only the adapters know that.
The histories of `tests/pubsub/histories.py` are a part of this: another choice there is another history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from tests.pubsub.world import ADMINS, START, WRITER, Actor, Signed, World, actor, registration

from parley.consensus.types import Instance, genesis_block
from parley.model.batches import BatchHeader, Message
from parley.model.credentials import Credential
from parley.model.errors import Refusal
from parley.model.expressions import parse_constraint
from parley.model.genesis import Genesis, Limits, Timeouts
from parley.model.names import Value, sorted_pairs
from parley.model.operations import (
    Advertise,
    AlterClient,
    AlterTopic,
    CommitStage,
    CreateTopic,
    DeleteTopic,
    GrantRight,
    Operation,
    Policy,
    RegisterClient,
    RevokeClient,
    RevokeRight,
    Subscribe,
    Unsubscribe,
)
from parley.model.receipts import BatchReceipt, Subscribed
from parley.model.records import (
    advertisement_key,
    advertisement_prefix,
    client_key,
    constraint_key,
    name_key,
    organisation_prefix,
    partition_key,
    stage_key,
    subscription_key,
    subscription_prefix,
    topic_key,
)
from parley.node import answers as answering
from parley.node.access import Asker
from parley.node.answers import block_name, fetched, listed, proven
from parley.node.blocks import audited
from parley.node.streams import Stream
from parley.pubsub import (
    advertisements,
    budget,
    lines,
    matching,
    numbering,
    staged,
    staging,
    strangers,
    subscriptions,
)
from parley.pubsub import records as internal
from parley.pubsub.application import PubSub

__all__ = [
    "ADMITTED",
    "ALICE",
    "ANNA",
    "BOB",
    "CAROL",
    "DAVE",
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
    "listed",
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
    "lines": ((lines, "MAX_LINES"),),
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
    "counted of commit": ((staging, "MAX_COUNTED"),),
    "counted of block": ((budget, "MAX_COUNTED_PER_BLOCK"),),
    "compared of batch": ((budget, "MAX_COMPARED_PER_BATCH"),),
    "compared of block": ((budget, "MAX_COMPARED_PER_BLOCK"),),
    "committed of block": ((budget, "MAX_COMMITTED_PER_BLOCK"),),
    "numbered": ((numbering, "MAX_NUMBERED"),),
    "examined": ((answering, "MAX_EXAMINED"),),
}


def application_of(genesis: Genesis) -> PubSub:
    return PubSub(genesis)


def codes_of(leaves: Iterable[object]) -> list[str]:
    """The code of every receipt of a batch."""
    return [leaf.code.value for leaf in leaves if isinstance(leaf, BatchReceipt)]


def code_of(refusal: Refusal) -> str:
    return refusal.code.value


def begins_of(receipt: object) -> list[tuple[int, tuple[int, int], int]]:
    """Partition, incarnation and next number of every order that a subscription joined."""
    assert isinstance(receipt, BatchReceipt)
    outcome = receipt.outcome
    assert isinstance(outcome, Subscribed)
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
    return topic_key(topic)


def key_of_head(topic: str, partition: int) -> bytes:
    return partition_key(topic, partition)


def key_of_constraint(topic: str, partition: int, constraint: bytes) -> bytes:
    return constraint_key(topic, partition, constraint)


def key_of_subscription(topic: str, constraint: bytes, client: bytes) -> bytes:
    return subscription_key(topic, constraint, client)


def key_of_advertisement(topic: str, client: bytes) -> bytes:
    return advertisement_key(topic, client)


def key_of_client(client: bytes) -> bytes:
    return client_key(client)


def key_of_name(organisation: str, name: str) -> bytes:
    return name_key(organisation, name)


def key_of_stage(publisher: bytes, topic: str, writer: bytes) -> bytes:
    return stage_key(publisher, topic, writer)


def keys_of_internals(client: bytes, batch: bytes, line: BatchHeader) -> dict[str, bytes]:
    """One entry of each kind that is nobody's to ask for."""
    name = lines.line_id(line)
    return {
        "line": internal.line_key(name),
        "chunk": internal.chunk_key(name, 0),
        "count of lines": internal.lines_key(client),
        "count of topics": internal.TOPICS,
        "count of writers": internal.WRITERS,
        "weight": internal.weight_key("open"),
        "stranger": internal.stranger_key(batch),
        "guard": internal.guard_key("open", id_of_constraint("a = 1")),
        "ending": internal.ending_key("gone"),
        "ages": internal.ages_key("short", 0),
        "use": internal.use_key(client),
        "staged": internal.staged_key(batch),
        "content": internal.content_key(batch, 0),
        "staging": internal.staging_key("open", client, WRITER, 0, batch),
        "committed": internal.committed_key((1, 0), 0),
        "over": internal.over_key("open", client, WRITER),
        "pending": internal.pending_key("open"),
        "expiry": internal.expiry_key(9, internal.line_key(name)),
    }


def prefix_of_topics() -> bytes:
    return topic_key("")


def prefix_of_heads(topic: str) -> bytes:
    return partition_key(topic, 0)[:-4]


def prefix_of_constraints(topic: str) -> bytes:
    return constraint_key(topic, 0, b"")[:-4]


def prefix_of_advertisements(topic: str) -> bytes:
    return advertisement_prefix(topic)


def prefix_of_subscriptions(topic: str) -> bytes:
    return subscription_prefix(topic)


def prefix_of_names(organisation: str) -> bytes:
    return organisation_prefix(organisation)


def prefix_of_clients() -> bytes:
    return client_key(b"")


def prefixes_without_a_topic() -> dict[str, bytes]:
    """Lists that begin with a topic's name must name it whole."""
    return {
        "heads": partition_key("", 0)[:-5],
        "constraints": constraint_key("", 0, b"")[:-5],
        "advertisements": advertisement_prefix("")[:-1],
        "half a name": partition_key("op", 0)[:-5],
    }


def keys_of_odd_topics() -> dict[str, bytes]:
    """Entries of what cannot be a topic's name."""
    return {
        "head": partition_key("open", 0).replace(b"open", b"\xff\xfe"),
        "constraint": constraint_key("open", 0, bytes(32)).replace(b"open", b"\xc3"),
        "advertisement": advertisement_key("open", bytes(32)).replace(b"open", b"\x80open"),
    }


def prefix_of_lines() -> bytes:
    return internal.LINES


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
            for module, name in _LIMITS[word]:
                patch.setattr(module, name, value)
        yield


def with_rights(world: W) -> W:
    """A world at its beginning, where the genesis file lets some organisations give rights."""
    organisations = tuple(
        replace(one, rights=("auditor",)) if one.name in AUDITED else one
        for one in world.genesis.organisations
    )
    world.genesis = replace(world.genesis, organisations=organisations)
    world.chain = world.genesis.chain
    world.application = application_of(world.genesis)
    world._first = genesis_block(Instance(world.chain, 0, 0, 4), world.root, START).header
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
