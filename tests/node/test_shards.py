"""Brokers that are members of two shards: two committees, stores and ledgers in one process, which do not mix."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client, reach
from tests.node.watching import SETTINGS, Page, Scrape, address_of, get, until

from parley.applications import application_of
from parley.client import connect
from parley.client.client import Client
from parley.client.errors import ContextError, WrongLedger
from parley.consensus.types import Vote
from parley.ledger.audit import Verdict, verify_store
from parley.ledger.proofs import ProofError, Trust
from parley.model.receipts import Done
from parley.modules.publishing.proof import check_publication
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net
from parley.net.frames import FrameStream
from parley.net.messages import VERSION, Envelope, PeerHello, encode
from parley.net.tls import Address, peer_context, tls_name
from parley.net.tls import connect as dial
from parley.node.backup import make_backup
from parley.node.backup_file import verify_backup
from parley.node.config import load
from parley.replica import wire
from parley.store.disk import open_store

# Beta and gamma are members of both shards, at other places in the second one. It needs both of them.
MEMBERS = (("alpha-1", "beta-1", "gamma-1", "delta-1"), ("beta-1", "gamma-1"))
BOTH = (0, 1)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory = tmp_path_factory.mktemp("shards") / "net"
    with LocalNetwork(directory, shards=MEMBERS, settings=SETTINGS) as network:
        network.start()
        asyncio.run(_furnish(network))
        yield network


@asynccontextmanager
async def speaking(network: LocalNetwork, name: str, shard: int | None) -> AsyncIterator[Client]:
    identity = network.identity("alpha", name)
    async with connect(genesis=network.genesis, identity=identity, shard=shard, timeout=SECONDS) as one:
        yield one


async def _furnish(network: LocalNetwork) -> None:
    """The same client and a topic of the same name in both shards, with as many messages as the shard's number and one."""
    await up(network, *network.names)
    mine = network.identity("alpha", "alice")
    for shard in BOTH:
        async with speaking(network, "admin", shard) as admin:
            await admin.register_client("alice", mine.credential.key, proof=mine.proof())
            await admin.create_topic("news")
        async with speaking(network, "alice", shard) as alice:
            for number in range(shard + 1):
                await alice.publish("news", f"{number} of shard {shard}")


async def up(network: LocalNetwork, *names: str) -> None:
    """Until these brokers, which have been started, can be reached."""
    for name in names:
        await (await reach(network, name)).wait_closed()


async def read(network: LocalNetwork, shard: int) -> list[str]:
    async with speaking(network, "alice", shard) as alice:
        return [one.text() async for one in alice.fetch("news")]


def test_one_process_commits_in_two_shards_and_their_ledgers_do_not_mix(network: LocalNetwork) -> None:
    assert asyncio.run(read(network, 0)) == ["0 of shard 0"]
    assert asyncio.run(read(network, 1)) == ["0 of shard 1", "1 of shard 1"]


def test_a_proof_names_its_shard_and_holds_by_the_committee_of_that_shard_alone(
    network: LocalNetwork,
) -> None:
    decode_leaf = application_of(network.genesis).decode_leaf

    async def story(shard: int) -> None:
        async with speaking(network, "alice", shard) as alice:
            proof = (await alice.publish("news", "proven")).proof()
        header = proof.anchor.header
        assert (header.shard, header.epoch) == (shard, 0)
        check_publication(proof, Trust(network.genesis, decode_leaf))
        check_publication(proof, Trust(network.genesis, decode_leaf, shard))
        with pytest.raises(ProofError, match=f"belongs to shard {shard} in epoch 0"):
            check_publication(proof, Trust(network.genesis, decode_leaf, 1 - shard))

    for shard in BOTH:
        asyncio.run(story(shard))


def test_a_client_has_to_name_its_shard_and_reaches_members_only(network: LocalNetwork) -> None:
    async def story() -> None:
        for shard in (None, 2, -1):
            with pytest.raises(ContextError, match="shards 0, 1"):
                async with speaking(network, "alice", shard):
                    pass
        identity = network.identity("alpha", "alice")
        with pytest.raises(ContextError, match="None of the brokers in use"):
            connect(genesis=network.genesis, identity=identity, brokers=["alpha-1"], shard=1)

    asyncio.run(story())


def test_a_broker_lets_no_client_into_a_shard_of_which_it_is_no_member(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        identity = network.identity("alpha", "alice")
        alice = connect(genesis=network.genesis, identity=identity, brokers=["alpha-1"], shard=0, timeout=0.1)
        brokers = alice._quorum.brokers
        monkeypatch.setattr(brokers, "_dialler", replace(brokers._dialler, shard=1))
        with pytest.raises(WrongLedger, match="alpha-1 is no member of shard 1"):
            async with alice:
                pass

    asyncio.run(story())


def test_status_and_metrics_name_shard_and_epoch(network: LocalNetwork) -> None:
    async def story() -> None:
        for shard, members in enumerate(MEMBERS):
            async with speaking(network, "alice", shard) as alice:
                found = {one.name: one.status for one in await alice.status()}
            assert tuple(found) == members
            for index, name in enumerate(members):
                said = found[name]
                assert said is not None
                assert (said.shard, said.epoch, said.index) == (shard, 0, index)
        numbers = Scrape(await get(address_of(network, "gamma-1"), "/metrics"))
        for shard, members in enumerate(MEMBERS):
            assert numbers("parley_epoch", shard=str(shard)) == 0
            assert numbers("parley_committee_size", shard=str(shard)) == len(members)
            assert numbers("parley_certified_height", shard=str(shard)) > 0

    asyncio.run(story())


def test_both_shards_go_on_after_a_restart_and_both_stores_are_sound(network: LocalNetwork) -> None:
    asyncio.run(read(network, 1))
    network.kill("beta-1")
    network.stop("gamma-1")
    verdicts = {
        (name, shard): audited(network, name, shard) for name in ("beta-1", "gamma-1") for shard in BOTH
    }
    assert {place: verdict.first_fault for place, verdict in verdicts.items()} == dict.fromkeys(verdicts)
    assert all(verdict.heights > 0 for verdict in verdicts.values())
    assert verify(network, "gamma-1", 1, as_shard=0).first_fault is not None
    network.start("beta-1", "gamma-1")
    asyncio.run(up(network, "beta-1", "gamma-1"))

    async def story(shard: int) -> None:
        before = await read(network, shard)
        async with speaking(network, "alice", shard) as alice:
            await alice.publish("news", "after the restart")
        assert await read(network, shard) == [*before, "after the restart"]

    for shard in BOTH:
        asyncio.run(story(shard))


def test_each_shard_of_a_running_broker_is_backed_up_by_itself(network: LocalNetwork, tmp_path: Path) -> None:
    config = load(network.config("gamma-1"))
    for shard in BOTH:
        make_backup(config.of_shard(shard), tmp_path / f"{shard}.tar")
        assert verify_backup(tmp_path / f"{shard}.tar").height > 0


def audited(network: LocalNetwork, name: str, shard: int) -> Verdict:
    return verify(network, name, shard, as_shard=shard)


def verify(network: LocalNetwork, name: str, shard: int, *, as_shard: int) -> Verdict:
    genesis = network.genesis
    mounted = application_of(genesis).mount(genesis, as_shard)
    with open_store(load(network.config(name)).of_shard(shard).data, create=False) as store:
        return verify_store(store, genesis, mounted, shard=as_shard)


def test_a_batch_for_one_shard_is_refused_in_the_other_and_uses_up_nothing_there_or_here(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        async with (
            client(network, "gamma-1", "alpha", "admin", 0) as first,
            client(network, "gamma-1", "alpha", "admin", 1) as second,
        ):
            batch = first.control(CreateTopic("replayed", 1, Policy(), "", ""))
            refusal = await second.ask(net.Submit(second.new_id(), batch[1]), net.Failure)
            assert refusal.code == WrongLedger.code
            assert "made for shard 0, this is shard 1" in refusal.detail
            # The same session goes on in the second shard as if it had never come.
            second._session = first._session
            assert (await second.operate(CreateTopic("made", 1, Policy(), "", ""))).outcome == Done()
            assert (await first.submit(batch)).outcome == Done()

    asyncio.run(story())


# -- envelopes ---------------------------------------------------------------------------------------------------------


async def posing_as(network: LocalNetwork, sender: str, receiver: str) -> FrameStream:
    """A connection on which one broker speaks to another: with its certificate, after its greeting."""
    config = load(network.config(sender))
    member, organisation = network.broker(receiver)
    context = peer_context(config.certificate, config.certificate_key, organisation.tls_ca)
    name = tls_name(member.name, member.organisation)
    stream = await dial(Address.parse(member.address), context, name, timeout=SECONDS)
    stream.write(encode(PeerHello(VERSION, network.genesis.chain, time.time_ns() // 1_000_000)))
    return stream


def refused(page: Page, sender: str, reason: str) -> float:
    """How many messages of a broker were refused, as the one that refused them says."""
    return Scrape(page)("parley_messages_refused_total", reason=reason, peer=sender)


def test_a_message_in_the_envelope_of_another_shard_is_refused_and_counted(network: LocalNetwork) -> None:
    """A vote that is good in shard 0 is none in shard 1, whatever index its signer has there.

    Those in whose place the test speaks are stopped, because a broker keeps only the newest connection of another one.
    """
    for name in ("beta-1", "delta-1"):
        network.stop(name)
    beta = load(network.config("beta-1"))
    committee = beta.of_shard(0).committee

    def vote(page: Page, shard: int) -> bytes:
        """Of beta in shard 0, under its index in a shard, for a view that both shards are about to enter."""
        view = 8 + int(max(Scrape(page)("parley_view", shard=str(one)) for one in BOTH))
        signature = beta.consensus_key.sign(committee.instance.vote_message(view, bytes(32)))
        return wire.encode(Vote(0, view, bytes(32), beta.of_shard(shard).index, signature))

    async def story() -> None:
        gamma = address_of(network, "gamma-1")
        for sender, (shard, epoch), reason in (
            ("beta-1", (1, 0), "bad_signature"),
            ("beta-1", (7, 0), "wrong_chain"),
            ("beta-1", (1, 1), "wrong_epoch"),
            ("delta-1", (1, 0), "unknown_signer"),
        ):
            before = refused(await get(gamma, "/metrics"), sender, reason)
            stream = await posing_as(network, sender, "gamma-1")

            def is_refused(page: Page) -> bool:
                """Unless it is, there is another vote: the last one may have come too late for its view."""
                if refused(page, sender, reason) > before:  # noqa: B023 - used before the next round
                    return True
                stream.write(encode(Envelope(shard, epoch, vote(page, 1))))  # noqa: B023
                return False

            await until(is_refused, gamma, "/metrics")
            await stream.wait_closed()
        # Its own shard takes the same signature: what made the difference is the envelope.
        page = await get(gamma, "/metrics")
        before = refused(page, "beta-1", "bad_signature")
        stream = await posing_as(network, "beta-1", "gamma-1")
        stream.write(encode(Envelope(0, 0, vote(page, 0))))
        stream.write(encode(Envelope(1, 0, b"\xc1")))
        page = await until(lambda page: refused(page, "beta-1", "malformed") > 0, gamma, "/metrics")
        assert refused(page, "beta-1", "bad_signature") == before
        await stream.wait_closed()

    asyncio.run(story())
    network.start("beta-1", "delta-1")
    asyncio.run(up(network, "beta-1", "delta-1"))
