"""Four real brokers get new certificates, and a client a new credential, while messages go on and nobody is stopped."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Ended, shell
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client, reach

import parley
from parley.cli.renew_credential import encoded
from parley.client.client import Client
from parley.model.credentials import Identity, issue_credential
from parley.model.refusals import NotAuthenticated
from parley.net import messages as net
from parley.node.admin.client import AdminError, reload
from parley.node.certificates import issue
from parley.node.contact import SILENCE_MS
from parley.node.keys import read_key
from parley.node.provision import broker_directory, identity_path, read_authority
from parley.node.secrets import write_secret

DAY = 86_400_000
TOPIC, LAST = "renewals", "the last one"
PACE_SECONDS = 0.05  # between two messages: more of them would only keep the machine from what is tested


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path / "net", clients=("alice", "bob"), by_command=True) as made:
        yield made


def now() -> int:
    return time.time_ns() // 1_000_000


def certify(network: LocalNetwork, name: str, *, left: int) -> None:
    """Give a broker a certificate of a year that ends in so many ms."""
    organisation = network.broker(name)[0].organisation
    authority = read_authority(network.directory, organisation)
    made = issue(authority, name, organisation, now=now() - 365 * DAY + left)
    folder = broker_directory(network.directory, name)
    write_secret(folder / "tls.key", made.key, replace=True)
    (folder / "tls.crt").write_bytes(made.certificate)


def certify_client(network: LocalNetwork, who: str, *, left: int) -> None:
    """Give a client a credential for its key that ends in so many ms."""
    old = network.identity("alpha", who)
    anchor = read_key(network.directory / "organisations" / "alpha" / "anchor.key")
    issued = issue_credential(
        network.genesis.chain, "alpha", who, old.credential.key, not_after=now() + left, anchor=anchor
    )
    path = identity_path(network.directory, "alpha", who)
    write_secret(path, encoded(Identity(issued, old.seed)), replace=True)


def connected(network: LocalNetwork, name: str) -> Client:
    identity = identity_path(network.directory, "alpha", name)
    return parley.connect(directory=network.directory, identity=identity, timeout=SECONDS)


async def command(network: LocalNetwork, *words: str, code: int = 0) -> Ended:
    words = (*words, "--dir", str(network.directory))
    return await asyncio.to_thread(shell, *words, home=network.directory, code=code)


async def shown(network: LocalNetwork, name: str) -> bytes:
    """The certificate that a new connection sees."""
    stream = await reach(network, name)
    certificate = stream.peer_certificate
    await stream.wait_closed()
    assert certificate is not None
    return certificate


async def logged(network: LocalNetwork, name: str, event: str, count: int = 1) -> list[dict[str, Any]]:
    """The lines of this event, once there are as many."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = [line for line in network.log(name) if line["event"] == event]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


def links_broken(network: LocalNetwork, name: str) -> int:
    """How often a connection to another broker ended; not because of silence, as on a machine that has much to do."""
    return sum(
        line.get("why") == "cannot be reached"
        or (line["event"] == "peer_up" and int(str(line["down_ms"])) < SILENCE_MS)
        for line in network.log(name)
    )


async def furnish(network: LocalNetwork) -> None:
    """Wait for the network; alice and bob are known, and there is a topic."""
    for name in network.names:
        await (await reach(network, name)).wait_closed()
    async with connected(network, "admin") as admin:
        for who in ("alice", "bob"):
            identity = network.identity("alpha", who)
            await admin.register_client(who, identity.credential.key, proof=identity.proof())
        await admin.create_topic(TOPIC)


class Traffic:
    """A publisher that never stops and a reader who reads along; any error in either ends the test."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.read: list[str] = []
        self._more = asyncio.Event()

    async def past(self, count: int) -> None:
        """Until so many more were acknowledged."""
        wanted = len(self.published) + count
        while len(self.published) < wanted:
            self._more.clear()
            await self._more.wait()

    async def publish(self, alice: Client, enough: asyncio.Event) -> None:
        while not enough.is_set():
            await self._publish(alice, str(len(self.published)))
            await asyncio.sleep(PACE_SECONDS)
        await self._publish(alice, LAST)

    async def _publish(self, alice: Client, text: str) -> None:
        await alice.publish(TOPIC, text)
        self.published.append(text)
        self._more.set()

    async def follow(self, messages: AsyncIterator[parley.Message]) -> None:
        while LAST not in self.read:
            self.read.append((await anext(messages)).text())


@asynccontextmanager
async def traffic(network: LocalNetwork) -> AsyncIterator[Traffic]:
    """Messages that flow while something else is done; in the end all that was acknowledged was read, in order."""
    seen, enough = Traffic(), asyncio.Event()
    async with (
        connected(network, "alice") as alice,
        connected(network, "bob") as bob,
        bob.subscribe(TOPIC) as messages,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(seen.publish(alice, enough))
        group.create_task(seen.follow(messages))
        await seen.past(3)
        yield seen
        await seen.past(3)
        enough.set()
    assert seen.read == seen.published


async def refused_reload(folder: Path) -> str:
    with pytest.raises(AdminError) as refused:
        await asyncio.to_thread(reload, folder)
    return str(refused.value)


def play(story: Any) -> None:  # noqa: ANN401 - a coroutine
    asyncio.run(asyncio.wait_for(story, 4 * SECONDS))


def test_all_brokers_are_renewed_in_turn_while_messages_flow(network: LocalNetwork) -> None:
    certify(network, "alpha-1", left=20 * DAY + DAY // 2)
    network.start()

    async def story() -> None:
        await furnish(network)
        (warning,) = await logged(network, "alpha-1", "certificate_expires")
        assert "ends in 20 days" in warning["why"]
        assert "parley node renew alpha-1" in warning["why"]
        told = (await command(network, "status", "--json")).json()
        brokers = told["layers"]["data"]["shards"]["0"]["brokers"]
        assert [one["certificate_days"] for one in brokers] == [20, 364, 364, 364]
        assert all(one["authority_days"] == 3_649 for one in brokers)
        assert "ends in 20 days" in (await command(network, "status")).out

        pids = {name: network.pid(name) for name in network.names}
        before_all = {}
        for name in network.names:
            await logged(network, name, "peer_up", len(network.names) - 1)
            before_all[name] = links_broken(network, name)
        async with traffic(network) as flowing:
            for turn, name in enumerate(network.names):
                before = await shown(network, name)
                new_key = ["--new-key"] if turn % 2 else []
                done = (await command(network, "node", "renew", name, *new_key, "--json")).json()
                assert done["pid"] == pids[name]
                assert done["ends"] > now() + 364 * DAY
                assert await shown(network, name) != before
                # Who comes now signs the hash of the new certificate, and is let in with it.
                async with client(network, name, "alpha", "alice") as alice:
                    assert (await alice.status()).note == ""
                await flowing.past(3)
        assert {name: network.pid(name) for name in network.names} == pids
        for name in network.names:
            assert network.is_running(name)
            folder = broker_directory(network.directory, name)
            assert not [path for path in folder.iterdir() if ".old." in path.name or ".next." in path.name]
            events = [line["event"] for line in network.log(name)]
            assert events.count("certificate_renewed") == 1
            assert "certificate_refused" not in events
            assert links_broken(network, name) == before_all[name]
            assert "faults_refused" not in events

    play(story())


def test_a_broken_certificate_is_refused_and_the_old_one_stays_in_use(network: LocalNetwork) -> None:
    network.start()

    async def story() -> None:
        await furnish(network)
        before = await shown(network, "beta-1")
        folder = broker_directory(network.directory, "beta-1")
        good = (folder / "tls.crt").read_bytes()
        async with traffic(network) as flowing:
            # Another broker's, which is a fine certificate otherwise, without its key; then one that has ended.
            (folder / "tls.crt").write_bytes(
                (broker_directory(network.directory, "alpha-1") / "tls.crt").read_bytes()
            )
            why = await refused_reload(folder)
            assert "The certificate that is in use stays" in why
            assert "names no broker of this network" in why
            (refused,) = await logged(network, "beta-1", "certificate_refused")
            assert "names no broker of this network" in refused["why"]
            certify(network, "beta-1", left=-DAY)
            said = await command(network, "node", "reload", "beta-1", code=1)
            assert "The certificate that is in use stays" in said.err
            assert "has expired" in said.err
            refused = (await logged(network, "beta-1", "certificate_refused", 2))[1]
            assert "has expired" in refused["why"]
            assert await shown(network, "beta-1") == before
            async with client(network, "beta-1", "alpha", "alice") as alice:
                assert (await alice.status()).broker == "beta-1"
            # The command looks first: what is of no use is not put where the broker finds it.
            at_rest = (folder / "tls.crt").read_bytes()
            wrong = network.directory / "wrong.crt"
            wrong.write_bytes(good)  # for a key that is gone
            said = await command(network, "node", "install", str(wrong), "beta-1", code=2)
            assert "for another key" in said.err
            assert (folder / "tls.crt").read_bytes() == at_rest
            await command(network, "node", "renew", "beta-1")
            assert await shown(network, "beta-1") != before
            done = await command(network, "node", "reload", "beta-1", "--json")
            assert (done.json()["changed"], done.json()["pid"]) == (False, network.pid("beta-1"))
            await flowing.past(3)

    play(story())


def test_a_broker_whose_certificate_has_ended_says_what_to_do_and_renewing_mends_it(
    network: LocalNetwork,
) -> None:
    certify(network, "gamma-1", left=-DAY)
    words = [sys.executable, "-m", "parley.node", str(network.config("gamma-1"))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 2
    assert "its certificate has expired" in ended.stderr
    assert "Run `parley node renew gamma-1`" in ended.stderr

    async def story() -> None:
        done = await command(network, "node", "renew", "gamma-1")
        assert "It does not run here; it is shown from its next start on" in done.out
        assert (broker_directory(network.directory, "gamma-1") / "tls.old.crt").exists()
        network.start()
        await furnish(network)
        async with client(network, "gamma-1", "alpha", "alice") as alice:
            assert (await alice.status()).note == ""

    play(story())


def test_a_certificate_that_ends_while_the_broker_runs_is_renewed_without_a_stop(
    network: LocalNetwork,
) -> None:
    network.start()

    async def story() -> None:
        await furnish(network)
        async with traffic(network) as flowing:
            certify(network, "alpha-1", left=3_000)
            folder = broker_directory(network.directory, "alpha-1")
            assert (await asyncio.to_thread(reload, folder)).certificate_changed
            await logged(network, "alpha-1", "certificate_renewed")
            async with asyncio.timeout(SECONDS):
                while "has expired" not in await _problem(network, "alpha-1"):  # noqa: ASYNC110 - time itself is awaited
                    await asyncio.sleep(0.1)
            await flowing.past(3)
            await command(network, "node", "renew", "alpha-1")
            async with client(network, "alpha-1", "alpha", "alice") as alice:
                assert (await alice.status()).note == ""
        assert network.is_running("alpha-1")

    play(story())


async def _problem(network: LocalNetwork, name: str) -> str:
    """Why a new client cannot reach a broker; empty if it can."""
    async with parley.connect(
        directory=network.directory,
        identity=identity_path(network.directory, "alpha", "alice"),
        timeout=SECONDS,
    ) as alice:
        return next(one.problem for one in await alice.status() if one.name == name)


# -- clients -----------------------------------------------------------------------------------------------------------------


def test_a_credential_is_renewed_while_its_client_publishes_and_reads(network: LocalNetwork) -> None:
    network.start()

    async def story() -> None:
        await furnish(network)
        for who in ("alice", "bob"):
            certify_client(network, who, left=10_000)
        ends = network.identity("alpha", "bob").credential.not_after
        async with traffic(network) as flowing:
            # What `parley client renew` does to the file, as quickly as it must be done here.
            for who in ("alice", "bob"):
                certify_client(network, who, left=10 * DAY)
            while now() <= ends + 1_000:
                await flowing.past(1)
            await flowing.past(3)

    play(story())


def test_a_credential_that_has_ended_is_told_and_renewed_by_a_command(network: LocalNetwork) -> None:
    network.start()

    async def story() -> None:
        await furnish(network)
        certify_client(network, "admin", left=-DAY)
        said = await command(network, "topic", "list", "--as", "alpha/admin", code=2)
        assert "it has expired; an administrator of alpha can renew it: parley client renew admin" in said.err
        # The administrator's own needs nobody's help: the anchor is here.
        await command(network, "client", "renew", "admin")
        renewed = await command(network, "topic", "list", "--as", "alpha/admin")
        assert renewed.err == ""
        await command(network, "client", "renew", "admin", "--days", "10")
        warned = await command(network, "topic", "list", "--as", "alpha/admin")
        assert "the credential of alpha/admin ends in 9 days" in warned.err
        assert "parley client renew admin" in warned.err

    play(story())


def test_a_broker_ends_the_connection_of_a_credential_that_has_ended(network: LocalNetwork) -> None:
    network.start()

    async def story() -> None:
        await furnish(network)
        certify_client(network, "alice", left=2_000)
        async with client(network, "beta-1", "alpha", "alice") as alice:
            ends = alice.identity.credential.not_after
            while now() <= ends:  # noqa: ASYNC110 - time itself is awaited
                await asyncio.sleep(0.05)
            answer = await alice.ask(net.StatusRequest(1), net.Failure)
            assert answer.code == NotAuthenticated.code

    play(story())
