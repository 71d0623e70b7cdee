"""Strangers, liars and noise at the door of a running broker: each is told why, and nobody else notices."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import (
    RawClient,
    authenticate,
    client,
    message,
    opening,
    prove,
    reach,
    registration,
)

from parley.application.operations import Operation
from parley.crypto import ed25519
from parley.model.credentials import Identity, issue_credential
from parley.model.refusals import Busy, Malformed, NotAuthenticated, Oversized, WrongChain
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.operations import CreateTopic, Policy
from parley.modules.topics.refusals import UnknownTopic
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net import messages as net
from parley.net.frames import PRE_AUTH_LIMIT, ConnectionLost, FrameStream
from parley.net.tls import Address, client_context, peer_context, tls_name
from parley.net.tls import connect as dial
from parley.node.certificates import create_authority, issue
from parley.node.provision import broker_directory, create_identity

MEGABYTE = 1024 * 1024
ROUNDS = 20  # of noise


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory = tmp_path_factory.mktemp("network") / "net"
    with LocalNetwork(directory, clients=("alice", "mallory")) as network:
        network.start()
        asyncio.run(_furnish(network))
        yield network


async def _furnish(network: LocalNetwork) -> None:
    """Clients that are known and a topic that is there, so that noise gets past the first doors."""
    for number in range(ROUNDS):
        create_identity(network.directory, "alpha", f"noise-{number}", not_after=2**50)
    names = ["alice", "mallory", *(f"noise-{number}" for number in range(ROUNDS))]
    operations: list[Operation] = [registration(network.identity("alpha", name)) for name in names]
    operations.append(CreateTopic("news", 1, Policy(), "", ""))
    async with client(network, "alpha-1", "alpha", "admin") as admin:
        for id_, operation in enumerate(operations):
            admin.send(net.Submit(id_, admin.control(operation)[1]))
        for _ in operations:
            await admin.receive(net.Receipted)


# -- clients -----------------------------------------------------------------------------------------------------------


def test_a_credential_is_refused_unless_its_organisation_vouches_for_the_key_that_signs(
    network: LocalNetwork,
) -> None:
    alice, mallory = network.identity("alpha", "alice"), network.identity("alpha", "mallory")
    stranger = ed25519.SecretKey.generate()
    chain, credential = network.genesis.chain, alice.credential
    forged = issue_credential(chain, "alpha", "eve", stranger.public, not_after=2**50, anchor=stranger)
    expired = create_identity(network.directory, "alpha", "old", not_after=1)
    cases = {
        "not signed by alpha": Identity(forged, stranger.seed()),
        "did not sign this connection": Identity(credential, mallory.seed),
        "has expired": expired,
        "not part of this network": Identity(replace(credential, organisation="omega"), alice.seed),
        "another network": Identity(replace(credential, chain=bytes(32)), alice.seed),
        "not signed by beta": Identity(replace(credential, organisation="beta"), alice.seed),
    }

    async def story() -> None:
        for why, identity in cases.items():
            stream = await reach(network, "alpha-1")
            answer = await authenticate(network, stream, identity)
            assert isinstance(answer, net.Failure)
            assert answer.code == NotAuthenticated.code
            assert why in answer.detail
            assert await ended(stream)

    asyncio.run(story())


def test_a_proof_of_one_connection_is_worth_nothing_on_another(network: LocalNetwork) -> None:
    async def story() -> None:
        identity = network.identity("alpha", "alice")
        first, second = await reach(network, "alpha-1"), await reach(network, "alpha-1")
        challenges = [await opening(stream) for stream in (first, second)]
        proof = prove(network, first, identity, challenges[0])
        first.write(proof)
        assert isinstance(await opening(first), net.Welcome)
        second.write(proof)
        answer = await opening(second)
        assert isinstance(answer, net.Failure)
        assert answer.code == NotAuthenticated.code
        for stream in (first, second):
            await stream.wait_closed()

    asyncio.run(story())


def test_a_frame_above_the_limit_is_refused_before_it_is_read(network: LocalNetwork) -> None:
    async def story() -> None:
        stranger = await reach(network, "alpha-1")
        assert isinstance(await opening(stranger), net.Challenge)
        announce(stranger, PRE_AUTH_LIMIT + 1)
        failure = await opening(stranger)
        assert isinstance(failure, net.Failure)
        assert (failure.code, str(PRE_AUTH_LIMIT) in failure.detail) == (Oversized.code, True)
        assert await ended(stranger)
        async with client(network, "alpha-1", "alpha", "alice") as alice:
            announce(alice.stream, net.MAX_QUESTION + 1)
            refused = await alice.receive(net.Failure)
            assert (refused.id, refused.code) == (0, Oversized.code)
            assert str(net.MAX_QUESTION) in refused.detail
            assert await ended(alice.stream)

    asyncio.run(story())


def test_a_thousand_frames_of_noise_do_not_disturb_a_broker(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "alpha-1", "alpha", "alice") as alice:
            before = network.memory("alpha-1")
            chance = Random(7)
            templates = questions(alice)
            cut_off = 0
            for number in range(ROUNDS):
                identity = network.identity("alpha", f"noise-{number}")
                cut_off += await make_noise(network, identity, [noise(chance, templates) for _ in range(50)])
            assert cut_off > 0
            assert network.memory("alpha-1") - before < 64 * MEGABYTE
            assert (await alice.status()).state in ("ready", "lagging", "waiting")
        assert not [line for line in network.log("alpha-1") if line["event"] == "session_failed"]

    asyncio.run(story())


def test_a_client_that_sends_garbage_is_cut_off_and_kept_out_for_a_while(network: LocalNetwork) -> None:
    async def story() -> None:
        identity = network.identity("alpha", "mallory")
        assert await make_noise(network, identity, [b"\xc1"] * 50)
        stream = await reach(network, "alpha-1")
        answers = [await authenticate(network, stream, identity), await opening(stream)]
        assert isinstance(answers[1], net.Failure)
        assert answers[1].code == Busy.code
        await stream.wait_closed()
        async with client(network, "beta-1", "alpha", "mallory") as elsewhere:
            assert (await elsewhere.status()).broker == "beta-1"

    asyncio.run(story())


def test_a_client_that_asks_for_much_and_reads_nothing_costs_little(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, "beta-1", "alpha", "alice") as alice:
            for _ in range(4):
                await alice.submit(alice.publication("news", message(bytes(MEGABYTE - 1_000))))
            before = network.memory("beta-1")
            async with client(network, "beta-1", "alpha", "mallory") as mallory:
                for id_ in range(500):  # answers of two gigabytes
                    mallory.send(net.Fetch(id_, "news", 0, 0, net.MAX_ANSWER, 0))
                for _ in range(20):
                    await alice.submit(alice.publication("news", message(b"still served")))
                assert network.memory("beta-1") - before < 64 * MEGABYTE
                mallory.stream._writer.transport.abort()

    asyncio.run(story())


@pytest.mark.parametrize("addresses", [6, 12])
def test_addresses_that_hold_handshakes_open_do_not_shut_out_a_client(
    network: LocalNetwork, addresses: int
) -> None:
    async def story() -> None:
        held = []
        for number in range(addresses):
            held += await hold(network, "gamma-1", f"127.0.0.{10 + number}", 400 // addresses)
        stream = await dial_from(network, "gamma-1", "127.0.0.50")
        assert isinstance(
            await authenticate(network, stream, network.identity("alpha", "alice")), net.Welcome
        )
        await stream.wait_closed()
        for one in held:
            one.close()

    asyncio.run(story())


# -- brokers -----------------------------------------------------------------------------------------------------------


def test_a_certificate_of_another_authority_opens_nothing(network: LocalNetwork, tmp_path: Path) -> None:
    now = network.genesis.start_time
    foreign = issue(create_authority("alpha", now=now), "beta-1", "alpha", now=now)
    elsewhere = tmp_path / "tls.crt", tmp_path / "tls.key"
    elsewhere[0].write_bytes(foreign.certificate)
    elsewhere[1].write_bytes(foreign.key)

    async def story() -> None:
        stream = await dial_as(network, "alpha-1", *elsewhere)
        with suppress(ConnectionLost):
            assert await stream.read() is None
        await stream.wait_closed()

    asyncio.run(story())


def test_a_broker_of_another_network_or_version_is_told_so(network: LocalNetwork) -> None:
    chain, now = network.genesis.chain, network.genesis.start_time
    cases: list[tuple[net.Opening, str, str]] = [
        (net.PeerHello(net.VERSION, bytes(32), now), WrongChain.code, "another genesis file"),
        (net.PeerHello(net.VERSION + 1, chain, now), WrongChain.code, "update the older one"),
        (net.Welcome("beta-1", now), Malformed.code, "hello"),
    ]

    async def story() -> None:
        home = broker_directory(network.directory, "beta-1")
        for hello, code, why in cases:
            stream = await dial_as(network, "alpha-1", home / "tls.crt", home / "tls.key")
            stream.write(net.encode(hello))
            answer = await opening(stream)
            assert isinstance(answer, net.Failure)
            assert (answer.code, why in answer.detail) == (code, True)
            assert await ended(stream)

    asyncio.run(story())


def test_a_broker_that_sends_garbage_is_cut_off_and_the_rest_go_on(network: LocalNetwork) -> None:
    async def story() -> None:
        home = broker_directory(network.directory, "gamma-1")
        network.kill("gamma-1")
        stream = await dial_as(network, "alpha-1", home / "tls.crt", home / "tls.key")
        stream.write(
            net.encode(net.PeerHello(net.VERSION, network.genesis.chain, network.genesis.start_time))
        )
        chance = Random(3)
        for _ in range(150):
            stream.write(chance.randbytes(50))
        assert await ended(stream)
        again = await dial_as(network, "alpha-1", home / "tls.crt", home / "tls.key")
        again.write(net.encode(net.PeerHello(net.VERSION, network.genesis.chain, network.genesis.start_time)))
        refused = await opening(again)
        assert isinstance(refused, net.Failure)
        assert refused.code == Busy.code
        await again.wait_closed()
        network.start("gamma-1")
        async with client(network, "alpha-1", "alpha", "alice") as alice:
            receipt = await alice.submit(alice.publication("no-topic", message(b"")))
            assert receipt.code == UnknownTopic.code
        assert any(line["event"] == "peer_cut_off" for line in network.log("alpha-1"))

    asyncio.run(story())


def test_a_flood_from_the_address_of_one_broker_does_not_keep_another_one_away(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path / "net") as network:
        path = network.config("alpha-1")
        elsewhere = {"beta-1": "127.0.0.2:1", "gamma-1": "127.0.0.3:1", "delta-1": "127.0.0.4:1"}
        listed = "\n".join(f'{name} = "{address}"' for name, address in elsewhere.items())
        path.write_text(f"{path.read_text()}\n[peers]\n{listed}\n")
        network.start("alpha-1")

        async def story() -> None:
            await (await reach(network, "alpha-1")).wait_closed()
            held = await hold(network, "alpha-1", "127.0.0.2", 400)
            for source in ("127.0.0.3", "127.0.0.4"):
                name = next(name for name, address in elsewhere.items() if address == f"{source}:1")
                home = broker_directory(network.directory, name)
                stream = await dial_from(network, "alpha-1", source, home)
                stream.write(net.encode(net.PeerHello(net.VERSION, bytes(32), 0)))
                answer = await opening(stream)
                assert isinstance(answer, net.Failure)  # it was heard: of another network, it says
                assert answer.code == WrongChain.code
                assert await ended(stream)
            for one in held:
                one.close()

        asyncio.run(story())
        network.stop("alpha-1")


def test_a_broker_whose_clock_differs_from_the_others_says_so(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path / "net") as network:
        network.start("alpha-1")

        async def story() -> None:
            async with client(network, "alpha-1", "alpha", "admin") as admin:
                status = await admin.status()
                missing = "No quorum: cannot reach beta-1 and gamma-1 and delta-1; 3 of 4 brokers are needed."
                assert (status.state, status.note) == ("starting", missing)
                others = []
                for name in ("beta-1", "gamma-1"):
                    home = broker_directory(network.directory, name)
                    other = await dial_as(network, "alpha-1", home / "tls.crt", home / "tls.key")
                    other.write(
                        net.encode(net.PeerHello(net.VERSION, network.genesis.chain, status.time + 60_000))
                    )
                    others.append(other)
                async with asyncio.timeout(SECONDS):
                    while "behind the clocks of the other brokers" not in (await admin.status()).note:  # noqa: ASYNC110 - it is another process
                        await asyncio.sleep(0.02)
                for other in others:
                    await other.wait_closed()

        asyncio.run(story())
        network.stop("alpha-1")


async def make_noise(network: LocalNetwork, identity: Identity, frames: list[bytes]) -> bool:
    """Send the frames as a client, reading what comes back; whether the broker ended the connection."""
    stream = await reach(network, "alpha-1")
    assert isinstance(await authenticate(network, stream, identity), net.Welcome)
    stream.limit = net.MAX_ANSWER
    for frame in frames:
        stream.write(frame)
    stream.write(net.encode(net.StatusRequest(2**32 - 1)))
    async with asyncio.timeout(SECONDS):
        try:
            while (frame_back := await stream.read()) is not None:
                answer = net.decode_answer(frame_back)
                if isinstance(answer, net.Status) and answer.id == 2**32 - 1:
                    return False
        except ConnectionLost:
            pass
        finally:
            await stream.wait_closed()
    return True


def questions(asker: RawClient) -> list[bytes]:
    """Well-formed questions of every kind."""
    _, body = asker.publication("news", message(b"payload", tag=1))
    position = net.StreamPosition(0, (1, 0), 0)
    return [
        net.encode(question)
        for question in (
            net.Submit(1, body),
            net.Fetch(2, "news", 0, 0, 1_000, 10),
            net.OpenStream(3, "news", bytes(32), (position,), 10),
            net.Credit(3, 10),
            net.CloseStream(3),
            net.Prove(4, (TOPICS.key("news"), CLIENTS.key(bytes(32)), HEADS.key("news", 0), b"ps/\xff\0")),
            net.ListKeys(5, TOPICS.prefix(), TOPICS.key("a")),
            net.StatusRequest(6),
            net.ReadBlocks(7, 1, 1_000, bodies=True),
            net.ReadBodies(8, (bytes(32),)),
            net.ReadEvidence(9, 0),
            net.Advise(10, b"advisory", bytes(64)),
        )
    ]


def noise(chance: Random, templates: list[bytes]) -> bytes:
    if chance.random() < 0.2:
        return chance.randbytes(chance.randint(1, 300))
    return mutated(chance, chance.choice(templates))


def mutated(chance: Random, frame: bytes) -> bytes:
    """Flip, cut or repeat a piece; sometimes nothing."""
    data = bytearray(frame)
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at + 1 :]
            case _:
                data[at:at] = data[at : at + chance.randint(1, 20)]
    return bytes(data)


def announce(stream: FrameStream, size: int) -> None:
    """The header of a frame whose payload never comes."""
    stream._writer.write(size.to_bytes(4, "big"))


async def ended(stream: FrameStream) -> bool:
    """Whether the other side closes the connection."""
    async with asyncio.timeout(SECONDS):
        try:
            while await stream.read() is not None:
                pass
        except ConnectionLost:
            pass
    await stream.wait_closed()
    return True


async def hold(network: LocalNetwork, broker: str, source: str, number: int) -> list[socket.socket]:
    """Open connections from an address that never begin a handshake."""
    address, held = Address.parse(network.broker(broker)[0].address), []
    for _ in range(number):
        one = socket.socket()
        one.setblocking(False)
        one.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(one, (address.host, address.port))
        held.append(one)
    return held


async def dial_from(network: LocalNetwork, broker: str, source: str, home: Path | None = None) -> FrameStream:
    """Connect from this address, as a client or as the broker whose folder this is."""
    member, organisation = network.broker(broker)
    context = (
        client_context(organisation.tls_ca)
        if home is None
        else peer_context(home / "tls.crt", home / "tls.key", organisation.tls_ca)
    )
    address = Address.parse(member.address)
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(
            address.host,
            address.port,
            ssl=context,
            server_hostname=tls_name(member.name, member.organisation),
            local_addr=(source, 0),
        )
    return FrameStream(reader, writer)


async def dial_as(network: LocalNetwork, broker: str, certificate: Path, key: Path) -> FrameStream:
    """Connect as whoever the certificate names."""
    member, organisation = network.broker(broker)
    context = peer_context(certificate, key, organisation.tls_ca)
    name = tls_name(member.name, member.organisation)
    return await dial(Address.parse(member.address), context, name, timeout=SECONDS)
