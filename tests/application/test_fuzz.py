"""Bytes that almost make sense: only `Refused` leaves admission, nothing leaves apply, and refusals leave little."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tests.application import models
from tests.application.world import (
    ADMINS,
    Actor,
    Signed,
    World,
    actor,
    make_genesis,
    pairs,
    registration,
    tagged,
)

from parley.application.expiry import EXPIRY
from parley.application.operations import Operation, encode_operation
from parley.application.quotas import COUNTS, HELD
from parley.application.sequences import BEGUN, CHUNKS, SEALED, SEQUENCES, SESSIONS
from parley.application.strangers import REMEMBERED, STRANGERS
from parley.model.batches import CONTROL, PUBLISH, STAGED, Message, MessageHeader, encode
from parley.model.refusals import OK, Refused
from parley.modules.registry.operations import AlterClient, RevokeClient
from parley.modules.staging.operations import CommitStage, Source
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy

ROUNDS = 1_000
# What P3 asks to be kept of a refused batch: its sequence, and when to forget it; and what counts these.
KEPT = (
    *(table.prefix() for table in (SEQUENCES, CHUNKS, EXPIRY, STRANGERS, REMEMBERED, SESSIONS)),
    *(table.prefix(quota.what) for table in (COUNTS, HELD) for quota in (BEGUN, SEALED)),
    HELD.prefix("sessions"),
)
ORDERS = (1, 0)  # the id of the topic
OPERATIONS: list[Operation] = [
    registration(make_genesis().chain, actor("bob"), pairs(role="nurse", level=3, off=False)),
    AlterClient("alice", pairs(role="clerk"), ("level",)),
    RevokeClient("alice"),
    CreateTopic("results", 2, Policy(retention=9), "role == 'nurse'", "level > 2"),
    AlterTopic("orders", 3, 7, "true", "not off"),
    DeleteTopic("orders"),
    *(file.EXAMPLE for file in models.FILES),
    Subscribe("orders", "a = 1 and b != 'x'", ORDERS),
    Unsubscribe("orders", "a in [1, 2]", ORDERS),
    CommitStage("orders", b"w" * 16, 1, (), topic_id=ORDERS),
    CommitStage("orders", b"w" * 16, 1, (), Source(bytes(32), b"1" * 32), ORDERS),
    CommitStage("orders", b"w" * 16, 2, (bytes(32), b"1" * 32), topic_id=ORDERS),
]


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2, publish="level >= 1")
    assert world.topic_id("orders") == ORDERS
    world.client("alice", level=2)
    world.do(actor("alice"), Subscribe("orders", "a = 1"))
    return world


def mutated(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(6):
            case 0 | 4 | 5 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at:at] = random.randbytes(random.randrange(1, 5))
            case 2:
                del changed[at : at + random.randrange(1, 5)]
            case _:
                changed[at : at + 1] = bytes(
                    [random.choice((0, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xCF, 0xFF))]
                )
    return bytes(changed)


def try_it(world: World, body: bytes, codes: Counter[str]) -> bool:
    """Whether it was admitted; then it was applied, too."""
    try:
        admitted = world.machine.admit(body)
    except Refused:
        return False
    world.wait(1)  # a deleted topic is cleared away
    before = world.entries()
    world.apply(Signed(admitted.digest, body))
    codes.update(receipt.code for receipt in world.outcomes[-1].receipts)
    if world.outcomes[-1].receipts[0].code != OK:
        after = world.entries()
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert all(key.startswith(KEPT) for key in changed)
        # A new sequence of a new session, listed once and counted five times.
        assert len(after) <= len(before) + 7
    return True


def test_mutated_batches_are_refused(world: World) -> None:
    random = Random(1)
    alice = actor("alice")
    valid = [world.publication(alice, "orders", tagged(a=1), tagged(b="x"), sequence=0)]
    valid += [world.staged(alice, "orders", tagged(a=1), tagged(b="x"))]
    valid += [world.control(ADMINS["hospital-a"], operation, sequence=9) for operation in OPERATIONS]
    for _ in range(ROUNDS):
        chosen = random.choice(valid).body
        body = mutated(random, chosen)
        if body != chosen:
            assert not try_it(world, body, Counter())


def test_mutated_operations_are_refused_or_do_what_they_say(world: World) -> None:
    random, codes = Random(2), Counter[str]()
    people = [*ADMINS.values(), actor("alice"), actor("mallory")]
    for _ in range(4 * ROUNDS):
        operation = random.choice(OPERATIONS)
        payload, name = encode_operation(operation), operation.name_of().encode()
        # Mostly behind the operation's name, without which it is only unknown.
        kept = payload.index(name) + len(name) if random.random() < 0.8 else 0
        payload = payload[:kept] + mutated(random, payload[kept:])
        message = Message(bytes(16), encode(MessageHeader()), "", payload)
        send(world, random, random.choice(people), [message], kind=CONTROL, codes=codes)
    assert codes["Ok"] > 10, codes
    assert len(codes) > 8
    assert world.rebuilt_root() == world.root


@pytest.mark.parametrize("kind", [PUBLISH, STAGED])
def test_random_headers_are_refused_or_do_what_they_say(world: World, kind: int) -> None:
    random, codes = Random(3), Counter[str]()
    people = [ADMINS["insurer"], actor("alice"), actor("alice"), actor("alice"), actor("mallory")]
    valid = [encode(MessageHeader(tags=pairs(a=1))), encode(MessageHeader(key=b"k"))]
    for _ in range(ROUNDS):
        header = mutated(random, valid[0]) if random.random() < 0.3 else random.choice(valid)
        message = Message(random.randbytes(16), header, random.choice(("", "level >= 2", "level>=2")), b"")
        send(
            world,
            random,
            random.choice(people),
            [message] * random.randrange(1, 3),
            kind=kind,
            codes=codes,
        )
    assert codes["Ok"] > 10
    assert codes.keys() >= {"Expired", "UnknownTopic", "UnknownPartition", "UnknownClient"}
    assert ("OutOfSequence" in codes) == (kind == PUBLISH)
    assert world.rebuilt_root() == world.root


def send(
    world: World, random: Random, author: Actor, messages: list[Message], *, kind: int, codes: Counter[str]
) -> None:
    """Correctly signed, whatever it says."""
    odd = random.random() < 0.3
    topic, partition = "" if kind == CONTROL else "orders", 0
    if odd and kind != CONTROL:
        topic = random.choice(("orders", "", "\0", "é" * 60, "x" * 128))
        partition = random.choice((0, 1, 2, 2**32 - 1))
    session = random.choice((bytes(16), b"1" * 16))
    sequence = world.sequence(author, session, kind, topic, partition)
    made = world.batch(
        author,
        messages,
        kind=kind,
        topic=topic,
        topic_id=random.choice((None, (0, 0), (3, 1), (2**61, 0))) if odd and kind != CONTROL else None,
        shard=random.choice((0, 0, 0, 1)) if odd else 0,
        partition=partition,
        session=session,
        sequence=random.choice((0, 2**61, 2**62 - 1, sequence, sequence)) if odd else sequence,
        not_after=random.choice((0, 5, world.height + 10, 2**62 - 1, None)) if odd else None,
    )
    try_it(world, made.body, codes)
