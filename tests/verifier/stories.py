"""What happens in the networks of the vectors, and the valid files about it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tests.application.world import ADMIN, Signed, actor, registration
from tests.verifier.networks import Network

from parley.application.expiry import EXPIRY
from parley.applications import DATA_SHARD
from parley.client.proofs import Proof
from parley.crypto.hashing import digest
from parley.ledger.proofs import Anchor
from parley.model.batches import Message, MessageHeader, encode
from parley.model.expressions import parse_constraint, parse_rule
from parley.model.names import Value, sorted_pairs
from parley.model.receipts import receipt_of
from parley.modules.registry.operations import RevokeClient
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import CreateTopic, DeleteTopic, Policy
from parley.modules.topics.tables import HEADS, TOPICS

ALICE = actor("alice")
NURSES = parse_rule('org in ["hospital-a", "hospital-b"] and role == "nurse"').text
FOREIGN = parse_rule('station == "Straße 3 – 日本 🩺"').text
ROUNDS_OF_A_FAILED_VIEW = 300


TWINNED = 4  # nibbles


def nibbles(topic: str) -> str:
    """The place of a topic's entry in the state."""
    return digest("state/key", TOPICS.key(topic)).hex()


def shared(one: str, other: str) -> int:
    """How many nibbles two places have in common at their beginning."""
    return next(at for at in range(len(one)) if one[at] != other[at])


class Valid(NamedTuple):
    """A file, and what a reader of the vectors is told of it."""

    name: str
    about: str
    proof: Proof


def said(payload: bytes, rule: str = "", **tags: Value) -> Message:
    return spoken(payload, MessageHeader(tags=sorted_pairs(tags)), rule)


def spoken(payload: bytes, header: MessageHeader, rule: str = "") -> Message:
    """With a salt that follows from the payload."""
    return Message(digest("vectors/salt", payload)[:16], encode(header), rule, payload)


class Story:
    """A topic, its publications in one block and in later ones, a stage, and operations that are refused."""

    def __init__(self, brokers: int) -> None:
        self.network = network = Network(brokers)
        make = network.maker
        for operation in (
            registration(make.chain, ALICE, sorted_pairs({"role": "nurse"})),
            CreateTopic("wards/er", 2, Policy(), "", ""),
        ):
            network.order(make.control(ADMIN, operation))
        self.subscribed = make.control(ALICE, Subscribe("wards/er", parse_constraint('ward == "er"').text))
        network.order(self.subscribed)
        self.publish()
        self.stage()
        self.refused = make.control(ALICE, DeleteTopic("wards/er"))
        self.strange = make.control(actor("stranger"), RevokeClient("alice"))
        network.order(self.refused, self.strange)
        self.name_a_twin()
        self.late = self.fail_a_view() if brokers > 1 else None

    def publish(self) -> None:
        """One block with several batches, which a single broker orders in several."""
        publication = self.network.maker.publication
        odd = MessageHeader(
            b"\x00\xff", sorted_pairs({"ward": "er", "urgent": True, "bed": -70_000}), (("trace", b"\x01"),)
        )
        self.plain = publication(ALICE, "wards/er", said(b"hello"))
        self.odd = publication(ALICE, "wards/er", spoken(b"\xff\x00\x1b[2J\xe2\x80\xae", odd))
        self.ruled = publication(
            ALICE,
            "wards/er",
            said(b"for nurses", NURSES, ward="er"),
            said("für alle".encode(), ward="er"),
            said(b"", NURSES),
            partition=1,
        )
        spoken_of = MessageHeader(
            tags=sorted_pairs({"station": "Straße 3 – 日本 🩺"}), headers=(("für", "é".encode()),)
        )
        self.foreign = publication(ALICE, "wards/er", spoken("Grüße 日本 🩺".encode(), spoken_of, FOREIGN))
        self.many = publication(ALICE, "wards/er", *[said(b"%d" % at, n=at) for at in range(40)])
        self.network.order(self.plain, self.odd, self.ruled, self.foreign, self.many)

    def name_a_twin(self) -> None:
        """Two topics whose places in the state share four nibbles, so that branches above them have one child."""
        make, place = self.network.maker, nibbles("wards/er")
        names = (f"wards/{number}" for number in itertools.count())
        self.twin = next(name for name in names if nibbles(name)[:TWINNED] == place[:TWINNED])
        names = (f"wards/{number}" for number in itertools.count())
        self.no_twin = next(name for name in names if shared(nibbles(name), place) == TWINNED - 1)
        self.network.order(make.control(ADMIN, CreateTopic(self.twin, 1, Policy(), "", "")))

    def stage(self) -> None:
        make = self.network.maker
        self.staged = [
            make.staged(ALICE, "wards/er", *[said(b"staged %d" % at) for at in range(17)]),
            make.staged(ALICE, "wards/er", said(b"staged, for nurses", NURSES, ward="er")),
        ]
        self.network.order(*self.staged)
        self.commit = make.commit(ALICE, "wards/er", 0, *self.staged)
        self.network.order(self.commit)

    def fail_a_view(self) -> Signed:
        """As many brokers as may be away are away, and then something is published."""
        network, cluster = self.network, self.network.cluster
        size = len(network.names)
        cluster.absent = set(range(size - (size - 1) // 3, size))
        late = network.maker.publication(ALICE, "wards/er", said(b"late"))
        network.order(late)
        cluster.run(ROUNDS_OF_A_FAILED_VIEW)
        return late

    def receipts(self) -> list[bytes]:
        """All receipts of batches in the ledger, as its leaves."""
        network = self.network
        heights = range(1, network.anchors()[-1].header.executed_height + 1)
        leaves = [leaf for height in heights for leaf in network.leaves(height)]
        return [leaf for leaf in leaves if receipt_of(DATA_SHARD.decode_leaf(leaf)) is not None]

    # -- files -------------------------------------------------------------------------------------------------------

    def valid(self) -> Iterator[Valid]:
        network = self.network
        show, last = network.publication, network.anchors()[-1]
        yield Valid("message", "the only message of a batch, in a block of its own", show(self.plain, 0))
        yield Valid("batch", "the same batch as a whole: the file holds no message", show(self.plain))
        yield Valid(
            "odd", "a key, tags, headers, and a payload that is no text", show(self.odd, 0, anchor=last)
        )
        yield Valid("ruled", "a message with an access rule, in partition 1", show(self.ruled, 0))
        yield Valid("open", "a message without a rule, of the same batch", show(self.ruled, 1))
        yield Valid("empty", "an empty payload under a rule", show(self.ruled, 2))
        yield Valid(
            "foreign", "text beyond ASCII in the payload, tags, headers and rule", show(self.foreign, 0)
        )
        for at, about in ((0, "first"), (15, "last of the first group"), (16, "first of the second group")):
            yield Valid(
                f"many-{at}", f"a message of a batch of 40: {about}", show(self.many, at, anchor=last)
            )
        yield Valid("many-39", "the last message of a batch of 40, in a short group", show(self.many, 39))
        yield Valid("staged", "a message of a staged batch", show(self.staged[0], 16))
        yield Valid("staged-batch", "a staged batch as a whole", show(self.staged[1], anchor=last))
        if self.late is not None:
            failed = self.after_a_failed_view()
            yield Valid(
                "failed-view", "certified by a header that holds a TC", show(self.late, 0, anchor=failed)
            )
        every = network.certify(last.header)
        yield Valid("all-signers", "certified by all brokers", show(self.plain, 0, anchor=every))
        yield from self.operations()
        yield from self.entries()

    def operations(self) -> Iterator[Valid]:
        prove = self.network.operation
        yield Valid("subscribe", "an operation that took effect", prove(self.subscribed))
        yield Valid("commit", "the operation that committed a stage", prove(self.commit))
        yield Valid("refused", "an operation that was refused", prove(self.refused))
        yield Valid("stranger", "an operation of a key that is not registered", prove(self.strange))

    def entries(self) -> Iterator[Valid]:
        prove = self.network.entry
        yield Valid("topic", "an entry with a text as its key", prove(TOPICS, "wards/er"))
        yield Valid("head", "an entry with a text and a number as its key", prove(HEADS, "wards/er", 1))
        yield Valid("client", "an entry with a public key as its key", prove(CLIENTS, ALICE.key))
        listed = self.network.first(EXPIRY)
        yield Valid(
            "expiry", "an entry with a number of 8 bytes and the rest as its key", prove(EXPIRY, *listed)
        )
        twin, lone = prove(TOPICS, self.twin), prove(TOPICS, self.no_twin)
        yield Valid("one-child", "an entry below branches that have one child", twin)
        yield Valid("absent-one-child", "no such entry: the branch has one child, which is another", lone)
        absent = [prove(TOPICS, f"none-{at}") for at in range(64)]
        other = next(one for one in absent if one.entry.proof.other is not None)
        nothing = next(one for one in absent if one.entry.proof.other is None)
        yield Valid("absent", "no such entry: where it would be, another one stands", other)
        yield Valid("absent-branch", "no such entry: where it would be, nothing stands", nothing)

    def after_a_failed_view(self) -> Anchor:
        """The newest certified header with a TC, which covers what was published late."""
        assert self.late is not None
        height = self.network.receipts(self.late)[-1][0]
        anchors = self.network.anchors()
        return next(
            one
            for one in reversed(anchors)
            if one.header.tc is not None and one.header.executed_height >= height
        )
