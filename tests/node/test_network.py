"""Four broker processes and clients that trust none of them: what is published is certified, delivered, and survives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.node.network import ORGANISATIONS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration

from parley.application.sequences import SEQUENCES
from parley.model.batches import Message, Withheld
from parley.model.expressions import parse_constraint, parse_rule
from parley.model.receipts import Done
from parley.model.refusals import (
    OK,
    BadSignature,
    Expired,
    Malformed,
    NotFound,
    OutOfSequence,
    PermissionDenied,
    Revoked,
)
from parley.modules.publishing.receipts import Published
from parley.modules.registry.operations import RevokeClient
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.staging.tables import STAGES
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Match, Subscribed
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import CreateTopic, Policy
from parley.modules.topics.refusals import UnknownPartition, UnknownTopic
from parley.modules.topics.tables import HEADS, TOPICS, PartitionRecord
from parley.net import messages as net
from parley.node.provision import create_identity


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("network") / "net", clients=("alice", "bob")) as network:
        network.start()
        asyncio.run(_furnish(network))
        yield network


async def _furnish(network: LocalNetwork) -> None:
    """Every organisation registers its clients; alpha makes the topics."""
    for organisation in ORGANISATIONS:
        async with client(network, f"{organisation}-1", organisation, "admin") as admin:
            for name in ("alice", "bob"):
                identity = network.identity(organisation, name)
                receipt = await admin.operate(registration(identity, rank=5 if name == "alice" else 1))
                assert receipt.outcome == Done()
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        for topic, subscribe in (("news", ""), ("secret", "rank >= 3"), ("busy", "")):
            receipt = await admin.operate(CreateTopic(topic, 2, Policy(), "", subscribe))
            assert receipt.outcome == Done()


def test_a_publication_is_receipted_by_one_broker_and_read_from_another(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "beta", "alice") as publisher:
            receipt = await publisher.submit(publisher.publication("news", message(b"one"), message(b"two")))
            assert isinstance(receipt.outcome, Published)
            first = receipt.outcome.first_offset
        async with client(network, "gamma-1", "delta", "bob") as reader:
            fetched = await reader.fetch("news", first + 1, wait=30_000)
            (block,) = fetched.blocks
            assert reader.trust.certified(fetched.anchor).leaves(block.proof) == (receipt,)
            skipped, shown = block.batches[0].contents
            assert isinstance(skipped, net.Skipped)
            assert isinstance(shown, Message)
            assert shown.payload == b"two"
            head = reader.record(HEADS, fetched.head, HEADS.key("news", 0), fetched.anchor)
            assert head == PartitionRecord(first + 2, 0)

    asyncio.run(story())


def test_a_stream_delivers_in_order_and_proves_that_nothing_is_missing(network: LocalNetwork) -> None:
    async def story() -> None:
        async with (
            client(network, "beta-1", "beta", "alice") as publisher,
            client(network, "gamma-1", "gamma", "bob") as reader,
        ):
            start = await subscribe(reader, "news", "kind = 'x'")
            stream = open_stream(reader, "news", start, credit=100)
            key = ORDER_HEADS.key("news", 0, start.constraint)
            head = await reader.receive(net.Head)
            record = reader.record(ORDER_HEADS, head.entries[0], key, head.anchor)
            assert record is not None
            assert (record.incarnation, record.next_ps) == (start.partitions[0].incarnation, 0)
            for payload in (b"1", b"2", b"3"):
                batch = publisher.publication("news", message(payload, kind="x"), message(b"no", kind="y"))
                await publisher.submit(batch)
            delivered: list[bytes] = []
            while len(delivered) < 3:
                delivery = await next_delivery(reader)
                assert delivery.id == stream
                certified = reader.trust.certified(delivery.anchor)
                for block in delivery.blocks:
                    *receipts, match = certified.leaves(block.proof)
                    assert isinstance(match, Match)
                    assert match.first_ps == len(delivered)
                    assert [leaf for _, leaf in match.items] == [one.leaf() for one in block.contents]
                    assert receipts
                    delivered += [one.payload for one in block.contents if isinstance(one, Message)]
            assert delivered == [b"1", b"2", b"3"]

    asyncio.run(story())


def test_a_stream_waits_for_credit_and_its_head_says_what_is_held_back(network: LocalNetwork) -> None:
    async def story() -> None:
        async with (
            client(network, "alpha-1", "beta", "alice") as publisher,
            client(network, "alpha-1", "alpha", "alice") as reader,
        ):
            start = await subscribe(reader, "busy", "n = 1")
            for _ in range(3):
                await publisher.submit(publisher.publication("busy", message(b"", n=1), message(b"", n=1)))
            stream = open_stream(reader, "busy", start, credit=1)
            first = await next_delivery(reader)
            assert [len(block.contents) for block in first.blocks] == [2]  # a block's messages go together
            head = await reader.receive(net.Head)
            key = ORDER_HEADS.key("busy", 0, start.constraint)
            record = reader.record(ORDER_HEADS, head.entries[0], key, head.anchor)
            assert record is not None
            assert record.next_ps == 6
            reader.send(net.Credit(stream, 100))
            rest = await next_delivery(reader)
            assert sum(len(block.contents) for block in rest.blocks) == 4

    asyncio.run(story())


def test_a_backlog_is_delivered_in_pieces(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "gamma-1", "gamma", "alice") as reader:
            start = await subscribe(reader, "busy", "size = 1")
            for _ in range(4):
                await reader.submit(reader.publication("busy", message(bytes(900_000), size=1)))
            open_stream(reader, "busy", start, credit=1_000)
            sizes: list[int] = []
            while sum(sizes) < 4:
                delivery = await next_delivery(reader)
                sizes.append(sum(len(block.contents) for block in delivery.blocks))
            assert sizes == [2, 2]
            await reader.receive(net.Head)

    asyncio.run(story())


def test_a_message_whose_rule_forbids_it_is_withheld_with_the_readers_certified_record(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "alpha", "alice") as publisher:
            batch = publisher.publication("news", message(b"open"), message(b"shut", rule="rank >= 3"))
            outcome = (await publisher.submit(batch)).outcome
            assert isinstance(outcome, Published)
            allowed = await publisher.fetch("news", outcome.first_offset)
            assert allowed.reader is None
            assert all(isinstance(one, Message) for one in allowed.blocks[0].batches[0].contents)
        async with client(network, "delta-1", "gamma", "bob") as reader:
            fetched = await reader.fetch("news", outcome.first_offset, wait=30_000)
            shown, withheld = fetched.blocks[0].batches[0].contents
            assert isinstance(shown, Message)
            assert isinstance(withheld, Withheld)
            assert fetched.reader is not None
            own = CLIENTS.key(reader.identity.credential.key)
            record = reader.record(CLIENTS, fetched.reader, own, fetched.anchor)
            assert record is not None
            assert not parse_rule(withheld.rule).allows(record.readable())

    asyncio.run(story())


def test_a_long_fetch_is_answered_by_what_arrives_or_empty_when_its_time_is_over(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        async with (
            client(network, "beta-1", "beta", "alice") as publisher,
            client(network, "beta-1", "beta", "bob") as reader,
        ):
            empty = await reader.fetch("news", 0, partition=1, wait=1)
            assert empty.blocks == ()
            reader.send(net.Fetch(7, "news", 1, 0, 1_000, 60_000))
            await publisher.submit(publisher.publication("news", message(b"late"), partition=1))
            fetched = await reader.receive(net.Fetched)
            assert fetched.id == 7
            assert [len(block.batches) for block in fetched.blocks] == [1]

    asyncio.run(story())


def test_a_repeated_batch_gets_the_receipt_it_has_from_any_broker(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "delta", "alice") as publisher:
            batch = publisher.publication("news", message(b"once"))
            receipt = await publisher.submit(batch)
            assert await publisher.submit(batch) == receipt
        async with client(network, "beta-1", "delta", "alice") as again:
            assert await again.submit(batch) == receipt

    asyncio.run(story())


def test_a_batch_that_is_ordered_before_its_turn_is_receipted_and_may_come_again(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "alpha", "bob") as publisher:
            first = publisher.publication("news", message(b"first"))
            second = publisher.publication("news", message(b"second"))
            assert (await publisher.submit(second)).code == OutOfSequence.code
            assert (await publisher.submit(first)).code is OK
            assert (await publisher.submit(second)).code is OK

    asyncio.run(story())


def test_a_batch_after_its_last_height_never_applies_and_uses_no_sequence_up(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "alpha", "bob") as publisher:
            late = await publisher.submit(publisher.publication("news", message(b"late"), not_after=1))
            assert late.code == Expired.code
            assert late.rejected is not None
            assert late.rejected.next_sequence == 0

    asyncio.run(story())


def test_questions_that_may_not_be_asked_fail_with_their_reason(network: LocalNetwork) -> None:
    async def story() -> None:
        async with (
            client(network, "alpha-1", "beta", "bob") as bob,
            client(network, "alpha-1", "beta", "alice") as alice,
        ):
            _, signed_by_alice = alice.publication("news", message(b""))
            _, altered = bob.publication("news", message(b""))
            questions: list[tuple[net.Question, str]] = [
                (net.Fetch(1, "secret", 0, 0, 1_000, 0), PermissionDenied.code),
                (net.Fetch(1, "nothing", 0, 0, 1_000, 0), UnknownTopic.code),
                (net.Fetch(1, "x" * 100_000, 0, 0, 1_000, 0), UnknownTopic.code),
                (net.Fetch(1, "news", 2, 0, 1_000, 0), UnknownPartition.code),
                (net.Submit(1, signed_by_alice), PermissionDenied.code),
                (net.Submit(1, altered[:-1] + bytes([altered[-1] ^ 1])), BadSignature.code),
                (net.Submit(1, b"no batch"), Malformed.code),
                (net.Prove(1, (TOPICS.key("secret"),)), OK),
                (net.Prove(1, (TOPICS.key("no-such-topic"),)), UnknownTopic.code),
                (net.Prove(1, (CLIENTS.key(alice.identity.credential.key),)), PermissionDenied.code),
                (net.Prove(1, (SEQUENCES.key(bytes(32)),)), PermissionDenied.code),
                (
                    net.Prove(
                        1, (STAGES.key("news", bob.topic_id("news"), bob.identity.credential.key, bytes(16)),)
                    ),
                    OK,
                ),
                (
                    net.Prove(
                        1,
                        (STAGES.key("news", bob.topic_id("news"), alice.identity.credential.key, bytes(16)),),
                    ),
                    PermissionDenied.code,
                ),
                (net.Prove(1, (STAGES.prefix() + bob.identity.credential.key,)), PermissionDenied.code),
                (net.ListKeys(1, b"", b""), PermissionDenied.code),
                (net.ListKeys(1, CLIENTS.prefix(), b""), PermissionDenied.code),
                (open_question("news", bytes(32), (1, 0)), NotFound.code),  # of an earlier topic
                # Of orders that it does not subscribe to it learns nothing, but that it does not.
                (open_question("secret", bytes(32), (1, 0)), PermissionDenied.code),
                (open_question("news", bytes(32), (2**40, 0)), OK),
            ]
            for question, code in questions:
                answer = await bob.ask(question, object)
                found = answer.code if isinstance(answer, net.Failure) else OK
                assert found == code, (question, answer)

    asyncio.run(story())


def test_entries_of_the_state_are_proven_present_and_absent(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "gamma-1", "gamma", "alice") as asker:
            keys = (
                TOPICS.key("news"),
                STAGES.key("news", asker.topic_id("news"), asker.identity.credential.key, bytes(16)),
                CLIENTS.key(asker.identity.credential.key),
            )
            proven = await asker.ask(net.Prove(1, keys), net.Proven)
            topic = asker.record(TOPICS, proven.entries[0], keys[0], proven.anchor)
            assert topic is not None
            assert (topic.organisation, topic.partitions) == ("alpha", 2)
            assert asker.record(STAGES, proven.entries[1], keys[1], proven.anchor) is None
            own = asker.record(CLIENTS, proven.entries[2], keys[2], proven.anchor)
            assert own is not None
            assert own.name == "alice"
            listed = await asker.ask(net.ListKeys(2, TOPICS.prefix(), TOPICS.key("busy")), net.Listed)
            assert listed.keys == (TOPICS.key("news"), TOPICS.key("secret"))
        async with client(network, "gamma-1", "gamma", "admin") as admin:
            names = await admin.ask(net.ListKeys(3, NAMES.prefix("gamma"), b""), net.Listed)
            assert names.keys == (NAMES.key("gamma", "alice"), NAMES.key("gamma", "bob"))
            refused = await admin.ask(net.ListKeys(4, NAMES.prefix("alpha"), b""), net.Failure)
            assert refused.code == PermissionDenied.code

    asyncio.run(story())


def test_a_stream_proves_to_a_reader_that_leaves_that_it_does_not_subscribe_any_more(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        async with client(network, "beta-1", "delta", "bob") as reader:
            start = await subscribe(reader, "news", "z = 1")
            stream = open_stream(reader, "news", start, credit=10)
            await reader.receive(net.Head)
            _, body = reader.control(Unsubscribe("news", "z = 1", reader.topic_id("news")))
            reader.send(net.Submit(99, body))
            own = SUBSCRIPTIONS.key("news", parse_constraint("z = 1").id, reader.identity.credential.key)
            while True:
                answer = await reader.receive(object)
                if isinstance(answer, net.Head) and answer.entries[0].key == own:
                    break
            assert answer.id == stream
            assert reader.trust.certified(answer.anchor).value(answer.entries[0], own) is None

    asyncio.run(story())


def test_a_stream_ends_when_its_reader_is_revoked(network: LocalNetwork) -> None:
    async def story() -> None:
        async with (
            client(network, "delta-1", "delta", "admin") as admin,
            client(network, "alpha-1", "alpha", "admin") as other,
        ):
            identity = create_identity(network.directory, "delta", "carol", not_after=2**50)
            receipt = await admin.operate(registration(identity))
            assert receipt.outcome == Done()
            async with client(network, "alpha-1", "delta", "carol") as reader:
                start = await subscribe(reader, "news", "w = 1")
                stream = open_stream(reader, "news", start, credit=10)
                await reader.receive(net.Head)
                await admin.operate(RevokeClient("carol"))
                while not isinstance(answer := await reader.receive(object), net.Failure):
                    pass
                assert (answer.id, answer.code) == (stream, Revoked.code)
                refused = await reader.ask(net.Fetch(5, "news", 0, 0, 1_000, 0), net.Failure)
                assert refused.code == Revoked.code
            assert (await other.status()).state == "ready"

    asyncio.run(story())


def test_a_broker_says_how_it_is(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "delta-1", "delta", "alice") as asker:
            status = await asker.status()
            assert (status.broker, status.organisation, status.index) == ("delta-1", "delta", 3)
            assert (status.state, status.note) == ("ready", "")
            assert status.leader in network.names
            assert [peer.name for peer in status.peers] == network.names[:3]
            assert status.clients == 1
            assert 0 < status.certified <= status.height

    asyncio.run(story())


async def subscribe(reader: RawClient, topic: str, constraint: str) -> Subscribed:
    outcome = (await reader.operate(Subscribe(topic, constraint, reader.topic_id(topic)))).outcome
    assert isinstance(outcome, Subscribed)
    assert outcome.constraint == parse_constraint(constraint).id
    return outcome


def open_stream(reader: RawClient, topic: str, start: Subscribed, *, credit: int) -> int:
    positions = tuple(
        net.StreamPosition(one.partition, one.incarnation, one.next_ps) for one in start.partitions
    )
    question = net.OpenStream(reader.new_id(), topic, start.constraint, positions, credit)
    reader.send(question)
    return question.id


def open_question(topic: str, constraint: bytes, incarnation: tuple[int, int]) -> net.OpenStream:
    return net.OpenStream(1, topic, constraint, (net.StreamPosition(0, incarnation, 0),), 1)


async def next_delivery(reader: RawClient) -> net.Delivery:
    """The next one; heads in between are the network's heartbeat."""
    while not isinstance(answer := await reader.receive(object), net.Delivery):
        assert isinstance(answer, net.Head), answer
    return answer
