"""The client against real brokers, each a process of its own: every operation, every refusal, races, crashes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.node.network import ORGANISATIONS, LocalNetwork

import parley
from parley.client.client import Client
from parley.client.connection import CREDIT
from parley.client.contexts import Context, resolve
from parley.client.errors import Redacted
from parley.client.quorum import Request
from parley.crypto.ed25519 import SecretKey
from parley.model.batches import (
    FORMAT,
    PUBLISH,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    sign_batch,
)
from parley.model.credentials import Identity, issue_credential
from parley.model.genesis import Limits
from parley.model.names import Value
from parley.modules.publishing.proof import check_publication, decode_publication
from parley.modules.subscriptions.operations import Unsubscribe
from parley.modules.topics.operations import Policy
from parley.net.messages import Receipted, Submit

SECONDS = 60.0
TOPICS = 16  # that one organisation may have
CLIENTS = ("alice", "bob", "carol")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory = tmp_path_factory.mktemp("client") / "net"
    with LocalNetwork(
        directory,
        clients=CLIENTS,
        limits=Limits(topics=TOPICS * len(ORGANISATIONS), subscriptions_per_client=4),
    ) as net:
        net.start()
        asyncio.run(_furnish(net))
        yield net


async def _furnish(net: LocalNetwork) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                async with connected(net, "alpha", "admin") as admin:
                    for name, role in (("alice", "nurse"), ("bob", "clerk")):
                        await register(admin, net.identity("alpha", name), {"role": role})
                    return
            except parley.Unreachable:
                assert all(map(net.is_running, net.names)), "a broker did not start"
                await asyncio.sleep(0.1)


async def register(admin: Client, identity: Identity, attributes: dict[str, Value] | None = None) -> int:
    credential = identity.credential
    return await admin.register_client(credential.name, credential.key, attributes, proof=identity.proof())


def made_up(net: LocalNetwork, name: str, key: SecretKey | None = None) -> Identity:
    """Of a client that nobody has issued a credential for."""
    key = key or SecretKey.generate()
    credential = issue_credential(
        net.genesis.chain, "alpha", name, key.public, not_after=2**61, anchor=SecretKey.generate()
    )
    return Identity(credential, key.seed())


def connected(net: LocalNetwork, organisation: str, name: str, **options: Any) -> Client:  # noqa: ANN401
    path = net.directory / "identities" / f"{organisation}-{name}.json"
    return parley.connect(directory=net.directory, identity=path, timeout=SECONDS, **options)


def play(story: Callable[[], Coroutine[None, None, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await story()

    asyncio.run(limited())


@asynccontextmanager
async def topic(net: LocalNetwork, name: str, **options: Any) -> AsyncIterator[tuple[Client, Client, str]]:  # noqa: ANN401
    """A topic for one test, its administrator, and alice."""
    async with connected(net, "alpha", "admin") as admin, connected(net, "alpha", "alice") as alice:
        await admin.create_topic(name, **options)
        yield admin, alice, name


async def texts(messages: AsyncIterator[parley.Message], number: int) -> list[str]:
    return [(await anext(messages)).text() for _ in range(number)]


# -- operations ------------------------------------------------------------------------------------------------------------


def test_a_message_is_published_delivered_read_and_proved(network: LocalNetwork, tmp_path: Path) -> None:
    async def story() -> None:
        async with topic(network, "life", partitions=2) as (_, alice, name):
            async with alice.subscribe(name, 'ward == "er"') as subscription:
                receipt = await alice.publish(
                    name,
                    "hello",
                    key="patient-7",
                    tags={"ward": "er", "bed": 7, "urgent": True},
                    headers={"v": b"1"},
                    rule='role == "nurse"',
                )
                message = await anext(subscription)
                assert (message.topic, message.partition, message.offset) == (
                    name,
                    receipt.partition,
                    receipt.offset,
                )
                assert (message.key, message.value, message.ps) == (b"patient-7", b"hello", 0)
                assert message.tags == {"ward": "er", "bed": 7, "urgent": True}
                assert message.headers == {"v": b"1"}
                assert (message.height, message.time) == (receipt.height, receipt.time)
                assert message.publisher == receipt.publisher == "alpha/alice"
            again = await alice.read(name, receipt.offset, partition=receipt.partition)
            assert again.value == b"hello"
            assert again.proof().height == receipt.height
            receipt.save(tmp_path / "proof.json")
            check_publication(decode_publication((tmp_path / "proof.json").read_bytes()), network.trust)
            json = await alice.publish_json(name, {"ward": "er"}, partition=0)
            assert (await alice.read(name, json.offset)).json() == {"ward": "er"}
            assert alice.misbehaviour == ()

    play(story)


def test_a_reader_that_a_rule_excludes_gets_empties(network: LocalNetwork) -> None:
    async def story() -> None:
        async with topic(network, "empties") as (_, alice, name), connected(network, "alpha", "bob") as bob:
            async with bob.subscribe(name, withheld="yield") as subscription:
                await alice.publish(name, "for nurses", rule='role == "nurse"')
                await alice.publish(name, "for all")
                hidden, shown = await anext(subscription), await anext(subscription)
            assert (hidden.empty, hidden.rule) == (True, 'role == "nurse"')
            with pytest.raises(Redacted):
                hidden.text()
            assert (shown.empty, shown.text()) == (False, "for all")
            assert [m.empty async for m in bob.fetch(name, withheld="yield")] == [True, False]
            assert [m.text() async for m in bob.fetch(name)] == ["for all"]
            assert (await bob.read(name, 0)).proof().message is None
            assert bob.misbehaviour == ()

    play(story)


def test_topics_are_administered(network: LocalNetwork) -> None:
    async def story() -> None:
        async with topic(network, "managed", publish="role='nurse'") as (admin, alice, name):
            assert (await alice.topic(name)).publish == 'role == "nurse"'
            await admin.alter_topic(name, partitions=3, retention=1_000, publish="")
            info = await alice.topic(name)
            assert (info.partitions, info.retention, info.publish) == (3, 1_000, "true")
            assert [head.end for head in info.heads] == [0, 0, 0]
            assert name in [one.name for one in await alice.topics()]
            await admin.delete_topic(name)
            assert name not in [one.name for one in await alice.topics()]

    play(story)


def test_clients_are_administered(network: LocalNetwork) -> None:
    async def story() -> None:
        dora = made_up(network, "dora")
        key = dora.credential.key
        async with connected(network, "alpha", "admin") as admin:
            await register(admin, dora, {"role": "guest", "level": 3})
            assert (await admin.client_record("dora")).attributes == {"role": "guest", "level": 3}
            await admin.alter_client("dora", set={"role": "nurse"}, remove=["level"])
            record = await admin.client_record("dora")
            assert (record.key, record.attributes, record.organisation) == (key, {"role": "nurse"}, "alpha")
            assert [one.name for one in await admin.clients()] == ["alice", "bob", "dora"]
            await admin.revoke_client("dora")
            with pytest.raises(parley.UnknownClient):
                await admin.client_record("dora")

    play(story)


def test_every_broker_tells_how_it_is(network: LocalNetwork) -> None:
    async def story() -> None:
        async with connected(network, "alpha", "alice") as alice:
            found = await alice.status()
            assert [one.name for one in found] == network.names
            assert all(one.status is not None and one.status.state == "ready" for one in found)

    play(story)


@pytest.mark.parametrize("level", ["quorum", "trusted"])
def test_the_other_levels_see_the_same(network: LocalNetwork, level: Any) -> None:  # noqa: ANN401
    async def story() -> None:
        async with (
            topic(network, f"level/{level}") as (_, alice, name),
            connected(network, "alpha", "bob", verify=level) as bob,
        ):
            async with bob.subscribe(name) as subscription:
                first = await bob.publish(name, "one")
                await alice.publish(name, "two")
                pushed = [await anext(subscription), await anext(subscription)]
            fetched = [message async for message in bob.fetch(name)]
            assert [(m.offset, m.text(), m.ps) for m in pushed] == [(0, "one", 0), (1, "two", 1)]
            assert [(m.offset, m.text(), m.ps) for m in fetched] == [(0, "one", None), (1, "two", None)]
            assert {m.verified for m in [*pushed, *fetched]} == {first.verified} == {level}
            check_publication(first.proof(), network.trust)

    play(story)


# -- refusals ----------------------------------------------------------------------------------------------------------------


async def _raises(kind: type[parley.ParleyError], work: Awaitable[object]) -> parley.ParleyError:
    with pytest.raises(kind) as caught:
        await work
    return caught.value


def test_refusals_of_administration(network: LocalNetwork) -> None:
    async def story() -> None:
        key = network.identity("alpha", "alice").key()
        async with topic(network, "refusals", partitions=2) as (admin, alice, name):
            await _raises(parley.TopicExists, admin.create_topic(name))
            await _raises(parley.PermissionDenied, alice.create_topic("mine"))
            await _raises(
                parley.Unsupported, admin.create_topic("sealed", policy=Policy(payload="threshold"))
            )
            await _raises(parley.Invalid, admin.alter_topic(name, partitions=1))
            await _raises(parley.UnknownTopic, admin.alter_topic("nowhere", partitions=1))
            await _raises(parley.InvalidRule, admin.alter_topic(name, publish="role =="))
            await _raises(parley.Malformed, admin.create_topic("a b"))
            await _raises(parley.ClientExists, register(admin, made_up(network, "alice")))
            await _raises(parley.ClientExists, register(admin, made_up(network, "other", key)))
            await _raises(parley.Invalid, register(admin, made_up(network, "eve"), {"org": "x"}))
            await _raises(parley.UnknownClient, admin.alter_client("nobody", set={"a": 1}))
            await _raises(parley.PermissionDenied, alice.clients())
            async with connected(network, "beta", "admin") as stranger:
                await _raises(parley.UnknownTopic, stranger.delete_topic(name))  # it may not know of it
                await _raises(parley.UnknownTopic, stranger.publish(name, "x", partition=0))
                await _raises(parley.UnknownClient, admin.publish(name, "x", partition=0))

    play(story)


def test_refusals_of_publishing_and_reading(network: LocalNetwork) -> None:
    async def story() -> None:
        options = {"publish": "role == 'doctor'", "subscribe": "role == 'nurse'"}
        async with topic(network, "guarded", **options) as (admin, alice, name):
            denied = await _raises(parley.PermissionDenied, alice.publish(name, "x"))
            assert isinstance(denied, parley.PermissionDenied)
            assert denied.rule == 'role == "doctor"'
            await _raises(parley.UnknownTopic, alice.publish("nowhere", "x"))
            await _raises(parley.UnknownPartition, alice.publish("guarded", "x", partition=5))
            await _raises(parley.NotFound, alice.read(name, 0))
            await _raises(parley.UnknownPartition, alice.read(name, 0, partition=5))
            await _raises(
                parley.NotSubscribed, alice._operate(Unsubscribe(name, "true", await alice.topic_id(name)))
            )
            async with connected(network, "alpha", "bob") as bob:
                for work in (bob.read(name, 0), bob.publish(name, "x"), bob.subscribe(name).__aenter__()):
                    await _raises(parley.UnknownTopic, work)
            async with connected(network, "alpha", "carol") as carol:  # has a credential, is not registered
                for work in (carol.read(name, 0), carol.publish(name, "x", partition=0)):
                    await _raises(parley.UnknownClient, work)
            await admin.alter_topic(name, publish="")
            await alice.publish(name, "x")
            await admin.delete_topic(name)
            await admin.create_topic(name)
            await _raises(parley.Pruned, alice.read(name, 0))
            # What was signed for the old topic is not published in the new one, and not sent again by itself.
            await _raises(parley.TopicReplaced, alice.publish(name, "x", partition=0))
            await alice.publish(name, "x", partition=0)
            line = alice._sequence(await alice._topics.record(name), 0)
            line._next = 0
            await _raises(parley.SequenceReused, alice.publish(name, "x", partition=0))
            assert alice.misbehaviour == ()

    play(story)


def test_a_revoked_client_is_told_so(network: LocalNetwork) -> None:
    async def story() -> None:
        identity = network.identity("alpha", "carol")
        async with topic(network, "revocations") as (admin, _, name):
            await register(admin, identity)
            async with connected(network, "alpha", "carol") as carol, carol.subscribe(name) as subscription:
                await carol.publish(name, "x")
                assert await texts(subscription, 1) == ["x"]
                await admin.revoke_client("carol")
                await _raises(parley.Revoked, anext(subscription))
                await _raises(parley.Revoked, carol.publish(name, "y", partition=0))
                await _raises(parley.Revoked, carol.read(name, 0))

    play(story)


def test_limits_of_the_network(network: LocalNetwork) -> None:
    async def story() -> None:
        async with topic(network, "limits") as (_, alice, name):
            subscriptions = [alice.subscribe(name, f"n == {number}") for number in range(5)]
            for one in subscriptions[:4]:
                await one.__aenter__()
            await _raises(parley.LimitExceeded, subscriptions[4].__aenter__())
            for one in subscriptions[:4]:
                await one.__aexit__(None, None, None)
            async with connected(network, "gamma", "admin") as other:
                for number in range(TOPICS):
                    await other.create_topic(f"limits/{number}")
                await _raises(parley.LimitExceeded, other.create_topic("limits/more"))

    play(story)


def test_refusals_before_order(network: LocalNetwork) -> None:
    async def story() -> None:
        key = network.identity("alpha", "alice").key()
        message = Message(bytes(16), encode(MessageHeader()), "", b"x")
        header = BatchHeader(
            FORMAT,
            network.genesis.chain,
            0,
            PUBLISH,
            "x",
            (0, 0),
            0,
            key.public,
            bytes(16),
            0,
            1,
            not_after=1_000,
        )
        _, body = sign_batch(header, (message,), key)
        _, foreign = sign_batch(replace(header, chain=bytes(32)), (message,), key)
        _, elsewhere = sign_batch(replace(header, shard=1), (message,), key)
        async with connected(network, "alpha", "alice") as alice:
            for kind, sent in (
                (parley.BadSignature, body[:-64] + bytes(64)),
                (parley.WrongChain, foreign),
                (parley.WrongLedger, elsewhere),
                (parley.Malformed, b"garbage"),
            ):
                request: Request[Receipted, object] = Request(
                    "sending", Submit(0, sent), Receipted, lambda *_: b""
                )
                await _raises(kind, alice._quorum.ask(request))

    play(story)


def test_a_credential_that_nobody_vouches_for_admits_nobody(network: LocalNetwork) -> None:
    async def story() -> None:
        found = resolve(directory=network.directory)
        context = Context(found.genesis, made_up(network, "alice"), found.brokers)
        await _raises(parley.NotAuthenticated, Client(context, timeout=SECONDS).__aenter__())

    play(story)


# -- many at once ------------------------------------------------------------------------------------------------------------


def test_racing_publishers_and_two_subscribers_who_see_one_order(network: LocalNetwork) -> None:
    each = 300

    async def publish(client: Client, name: str) -> None:
        async with client.publisher(name, batch_size=20, linger=0.001) as publisher:
            for number in range(each):
                await publisher.send(f"{client.name} {number}", tags={"even": number % 2 == 0})

    async def story() -> None:
        async with (
            topic(network, "race") as (_, alice, name),
            connected(network, "alpha", "bob", brokers=["gamma-1", "delta-1"]) as bob,
            alice.subscribe(name, "even") as first,
            bob.subscribe(name, "even == true") as second,
        ):
            await asyncio.gather(publish(alice, name), publish(bob, name))
            ours = [await anext(first) for _ in range(each)]
            theirs = [await anext(second) for _ in range(each)]
            assert ours == theirs
            assert [message.ps for message in ours] == list(range(each))
            for who in ("alice", "bob"):
                mine = [message.text() for message in ours if message.text().startswith(who)]
                assert mine == [f"{who} {number}" for number in range(0, each, 2)]
            assert (alice.misbehaviour, bob.misbehaviour) == ((), ())

    play(story)


def test_many_publications_in_small_batches_are_certified_together(network: LocalNetwork) -> None:
    async def story() -> None:
        async with (
            topic(network, "heap", partitions=1) as (_, alice, name),
            alice.subscribe(name) as subscription,
            alice.publisher(name, batch_size=1, in_flight=64) as publisher,
        ):
            values = [str(number).encode() for number in range(100)]
            receipts = await publisher.publish_many(values)
            assert [(one.offset, len(one)) for one in receipts] == [(at, 1) for at in range(100)]
            assert len({one.height for one in receipts}) < len(receipts)
            assert receipts[50][0].proof().offset == 50
            got: list[bytes] = []
            async for messages in subscription.batches():
                got += [message.value for message in messages]
                if len(got) == len(values):
                    break
            assert got == values
            assert alice.misbehaviour == ()

    play(story)


def test_a_slow_reader_holds_the_brokers_up_and_misses_nothing(network: LocalNetwork) -> None:
    number = 3 * CREDIT

    async def story() -> None:
        async with topic(network, "slow") as (_, alice, name), alice.subscribe(name) as subscription:
            await alice.publish(name, "first")
            await anext(subscription)
            async with alice.publisher(name, batch_size=50) as publisher:
                for at in range(number):
                    await publisher.send(str(at))
            assert await texts(subscription, number) == [str(at) for at in range(number)]
            assert alice.misbehaviour == ()

    play(story)


def test_the_blocking_front_works_where_a_loop_already_runs(network: LocalNetwork) -> None:
    path = network.directory / "identities" / "alpha-admin.json"

    async def story() -> None:
        with parley.connect_blocking(directory=network.directory, identity=path, timeout=SECONDS) as admin:
            admin.create_topic("notebook", partitions=1)
            assert admin.topic("notebook").partitions == 1
        with parley.connect_blocking(directory=network.directory, timeout=SECONDS) as client:
            with client.subscribe("notebook", "n == 1") as subscription:
                receipt = client.publish("notebook", "one", tags={"n": 1})
                assert next(subscription).offset == receipt.offset == 0
                with client.publisher("notebook") as publisher:
                    pending = [publisher.send(str(number), tags={"n": number}) for number in range(5)]
                    publisher.flush()
                    assert [one.receipt().offset for one in pending] == [1, 2, 3, 4, 5]
                    many = publisher.publish_many(["six", "seven"], tags={"n": 1})
                    assert [one.offset for batch in many for one in batch] == [6, 7]
                assert next(iter(subscription)).text() == "1"
                texts: list[str] = []
                while len(texts) < 2:
                    texts += [message.text() for message in next(subscription.batches())]
                assert texts == ["six", "seven"]
            assert [message.offset for message in client.fetch("notebook")] == list(range(8))
            assert client.read("notebook", 0).text() == "one"
            with pytest.raises(parley.UnknownTopic):
                client.publish("nowhere", "x")
            assert (client.name, client.organisation) == ("alice", "alpha")
            assert client.height > receipt.height
            assert client.misbehaviour == ()
        client.close()
        with pytest.raises(parley.ClientClosed, match="inside `with`"):
            client.topics()

    play(story)


def test_a_blocking_client_that_cannot_connect_leaves_no_thread_behind(network: LocalNetwork) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    before = threading.active_count()
    with pytest.raises(parley.Unreachable):
        parley.connect_blocking(
            directory=network.directory, brokers=dict.fromkeys(network.names, nowhere)
        ).__enter__()
    assert threading.active_count() == before


# -- crashes -------------------------------------------------------------------------------------------------------------------


def test_the_death_of_the_connected_broker_loses_and_doubles_nothing(network: LocalNetwork) -> None:
    number = 200

    async def publish(client: Client, name: str, dead: asyncio.Event) -> None:
        async with client.publisher(name, batch_size=10) as publisher:
            for at in range(number):
                pending = await publisher.send(str(at))
                if at == number // 2:
                    await pending
                    network.kill("alpha-1")
                    dead.set()

    async def story() -> None:
        dead = asyncio.Event()
        async with topic(network, "crash") as (_, alice, name), alice.subscribe(name) as subscription:
            publishing = asyncio.create_task(publish(alice, name, dead))
            received = await texts(subscription, number)
            await publishing
            assert dead.is_set()
            assert received == [str(at) for at in range(number)]
            logged = [message.text() async for message in alice.fetch(name)]
            assert logged == received
            assert alice.misbehaviour == ()
            told = {one.name: one for one in await alice.status()}
            assert told["alpha-1"].status is None
            assert "cannot be reached" in told["alpha-1"].problem
            network.start("alpha-1")

    play(story)


def test_a_subscriber_that_was_killed_resumes_at_its_number_from_another_broker(
    network: LocalNetwork,
) -> None:
    """Its lease lives, and the order with it; a thousand messages later it goes on as if nothing had been."""
    number = 1_000

    async def story() -> None:
        async with topic(network, "resume", partitions=2) as (_, alice, name):
            first = connected(network, "alpha", "bob", brokers=["alpha-1", "beta-1"])
            await first.__aenter__()
            subscription = first.subscribe(name, "n == 1")
            await subscription.__aenter__()
            for partition in (0, 1):
                await alice.publish(name, "before", tags={"n": 1}, partition=partition)
            before = [await anext(subscription), await anext(subscription)]
            position = parley.Position.from_json(subscription.position().to_json())
            await first.close()  # its connections are gone, and nobody was told
            async with alice.publisher(name, batch_size=50) as publisher:
                for at in range(number):
                    await publisher.send(str(at), tags={"n": at % 2}, partition=at % 4 // 2)
            async with (
                connected(network, "alpha", "bob", brokers=["gamma-1", "delta-1"]) as second,
                second.subscribe(name, "n = 1", position) as resumed,
            ):
                after = [await anext(resumed) for _ in range(number // 2)]
                assert second.misbehaviour == ()
            for partition in (0, 1):
                found = [one for one in before + after if one.partition == partition]
                assert [one.ps for one in found] == list(range(1 + number // 4))
                assert [one.text() for one in found[1:]] == [
                    str(at) for at in range(number) if at % 2 and at % 4 // 2 == partition
                ]
            with parley.connect_blocking(
                directory=network.directory,
                identity=network.directory / "identities" / "alpha-bob.json",
                timeout=SECONDS,
            ) as third:
                third_start = resumed.position()
                receipt = await alice.publish(name, "last", tags={"n": 1}, partition=0)
                with third.subscribe(name, "n == 1", third_start) as blocking:  # after the order was left
                    last = next(blocking)
                    assert (last.text(), last.offset, last.ps) == ("last", receipt.offset, None)
                    assert blocking.position().partitions[0].offset == receipt.offset + 1
                    assert blocking.waiting == 0

    play(story)


def test_without_a_quorum_a_publisher_is_told_and_its_message_is_not_lost(network: LocalNetwork) -> None:
    async def story() -> None:
        async with topic(network, "stall") as (_, alice, name), alice.subscribe(name) as subscription:
            for broker in ("gamma-1", "delta-1"):
                network.kill(broker)
            stalls: list[parley.ParleyError] = []
            async with parley.connect(
                directory=network.directory, timeout=2, on_stalled=stalls.append
            ) as hasty:
                await _raises(parley.Stalled, hasty.publish(name, "late", partition=0))
                for broker in ("gamma-1", "delta-1"):
                    network.start(broker)
                assert await texts(subscription, 1) == ["late"]

    play(story)
