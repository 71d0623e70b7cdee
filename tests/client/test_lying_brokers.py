"""A certified client whose only broker lies, against real brokers: it delivers nothing wrong, notices, and goes elsewhere (T25).

Each test sets a fault of one broker while a subscriber is connected to that broker. The bound on how long a lie may
last is a requirement: `freshness` + 5 s, and `ack` + 5 s for a censored batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_network import connected, play, register
from tests.node.network import LocalNetwork

import parley
from parley.client.client import Client
from parley.client.subscription import Subscription
from parley.consensus.types import Proposal
from parley.ledger import layout
from parley.model.genesis import Timeouts
from parley.node.admin.client import set_faults
from parley.replica import evidence
from parley.store.disk import open_store

SECONDS = 60.0
LIAR = "beta-1"
HONEST = ("alpha-1", "gamma-1", "delta-1")
TIMEOUTS = Timeouts(view=1_000, longest_view=4_000, heartbeat=200, ack=1_500, freshness=3_000)
NOTICED = TIMEOUTS.freshness / 1_000 + 5  # seconds
CERTIFIED = TIMEOUTS.ack / 1_000 + 5

_names = count()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory = tmp_path_factory.mktemp("lies") / "net"
    with LocalNetwork(
        directory,
        clients=("alice", "bob"),
        timeouts=TIMEOUTS,
        allow_faults=True,
        leaders="round-robin",  # so that the liar leads every fourth view, whatever its record
    ) as net:
        net.start()
        asyncio.run(_furnish(net))
        yield net


async def _furnish(net: LocalNetwork) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                async with connected(net, "alpha", "admin", brokers=HONEST) as admin:
                    for name in ("alice", "bob"):
                        await register(admin, net.identity("alpha", name), {"role": "nurse"})
                    return
            except parley.Unreachable:
                assert all(map(net.is_running, net.names)), "a broker did not start"
                await asyncio.sleep(0.1)


class Listener:
    """A subscriber that is connected to the liar, and everything that it was handed."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self.client = client
        self.subscription = subscription
        self.heard: list[str] = []
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self.subscription:
            assert not message.empty, "everybody may see everything here"
            self.heard.append(message.text())
            self._wake.set()

    async def until(self, *texts: str) -> None:
        """Until it has heard exactly these, in this order."""
        while len(self.heard) < len(texts):
            self._wake.clear()
            await self._wake.wait()
        assert self.heard == list(texts)

    async def leaves(self, broker: str) -> None:
        """Until the order comes from others."""
        while not (now := self.subscription.brokers) or broker in now:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


@asynccontextmanager
async def lying(net: LocalNetwork, *faults: str) -> AsyncIterator[None]:
    """The liar lies from here to the end of the block."""
    await _switch(net, faults)
    try:
        yield
    finally:
        await _switch(net, ())


async def _switch(net: LocalNetwork, faults: tuple[str, ...]) -> None:
    await asyncio.to_thread(set_faults, net.config(LIAR).parent, faults)


@asynccontextmanager
async def stage(net: LocalNetwork) -> AsyncIterator[tuple[Client, Listener, str]]:
    """A publisher with honest brokers, and a subscriber whose order comes from the broker that will lie."""
    topic = f"lies/{next(_names)}"
    async with (
        connected(net, "alpha", "admin", brokers=HONEST) as admin,
        connected(net, "alpha", "alice", brokers=HONEST) as alice,
    ):
        await admin.create_topic(topic)
        async with listening(net, alice, topic) as listener:
            assert listener.subscription.brokers == (LIAR,)
            assert listener.client.misbehaviour == ()
            yield alice, listener, topic


@asynccontextmanager
async def listening(net: LocalNetwork, alice: Client, topic: str) -> AsyncIterator[Listener]:
    """Once the liar serves it: on a machine that is busy with other things, it may look slow at first."""
    await publish(alice, topic, "0")
    while True:
        async with (
            connected(net, "alpha", "bob", brokers=(LIAR, *HONEST)) as bob,
            bob.subscribe(topic, start="earliest") as subscription,
        ):
            listener = Listener(bob, subscription)
            try:
                await listener.until("0")
                while not subscription.brokers:  # noqa: ASYNC110 - history comes first, and nobody tells
                    await asyncio.sleep(0.01)
                if subscription.brokers == (LIAR,):
                    yield listener
                    return
            finally:
                await listener.close()


async def publish(client: Client, topic: str, *texts: str) -> None:
    for text in texts:
        await client.publish(topic, text)


_noticed: list[str] = []


def caught(client: Client) -> set[str]:
    _noticed.extend(map(str, client.misbehaviour))
    return {lie.broker for lie in client.misbehaviour}


async def until_doubted(client: Client) -> None:
    """Until the liar, and no other broker, is named for what is no proof of a lie: once others have done better."""
    async with asyncio.timeout(NOTICED):
        while not client.doubts:  # noqa: ASYNC110 - it is in the log
            await asyncio.sleep(0.01)
    _noticed.extend(map(str, client.doubts))
    assert {doubt.broker for doubt in client.doubts} == {LIAR}


@pytest.fixture(autouse=True)
def _named_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a client notices of a broker, the log of its program says as well, with the broker's name."""
    _noticed.clear()
    yield
    said = {record.getMessage() for record in caplog.get_records("call") if record.name == "parley.client"}
    assert said >= set(_noticed)
    assert all(one.startswith(f"Broker {LIAR} ") for one in _noticed)


def test_a_broker_that_withholds_is_left_and_nothing_is_missed(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "withhold"):
            async with asyncio.timeout(NOTICED):
                await publish(alice, topic, "1")
                await listener.until("0", "1")
            await publish(alice, topic, "2", "3")
            await listener.until("0", "1", "2", "3")
            assert LIAR not in listener.subscription.brokers
            assert caught(listener.client) == {LIAR}

    play(story)


def test_a_broker_that_drops_messages_is_left_and_nothing_is_missed(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "drop"):
            async with asyncio.timeout(NOTICED):
                await publish(alice, topic, "1", "2")
                await listener.until("0", "1", "2")
            await publish(alice, topic, "3", "4", "5")
            await listener.until("0", "1", "2", "3", "4", "5")
            assert LIAR not in listener.subscription.brokers
            assert caught(listener.client) == {LIAR}

    play(story)


def test_a_broker_that_forges_payloads_is_left_and_no_forgery_is_delivered(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "forge"):
            async with asyncio.timeout(NOTICED):
                await publish(alice, topic, "1")
                await listener.until("0", "1")
            await publish(alice, topic, "2")
            await listener.until("0", "1", "2")
            assert LIAR not in listener.subscription.brokers
            assert caught(listener.client) == {LIAR}
            assert "not the one that was published" in listener.client.misbehaviour[0].problem

    play(story)


def test_a_broker_that_hides_what_one_may_see_is_left(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "lie"):
            async with asyncio.timeout(NOTICED):
                await alice.publish(topic, "1", rule='role == "nurse"')
                await listener.until("0", "1")
            await publish(alice, topic, "2")
            await listener.until("0", "1", "2")
            assert LIAR not in listener.subscription.brokers
            assert caught(listener.client) == {LIAR}
            assert "allows this reader to see it" in listener.client.misbehaviour[0].problem

    play(story)


@pytest.mark.parametrize("fault", ["withhold", "drop", "forge", "lie"])
def test_a_broker_that_lies_in_reads_is_caught_and_the_truth_is_read(
    network: LocalNetwork, fault: str
) -> None:
    async def story() -> None:
        async with stage(network) as (alice, _, topic):
            await publish(alice, topic, "1", "2", "3")
            async with (
                connected(network, "alpha", "bob", brokers=(LIAR, *HONEST)) as reader,
                lying(network, fault),
            ):
                async with asyncio.timeout(NOTICED):
                    read = [message.text() async for message in reader.fetch(topic, start=0)]
                assert read == ["0", "1", "2", "3"]
                assert caught(reader) == {LIAR}

    play(story)


def test_a_broker_that_lies_about_the_state_is_caught(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, _, topic):
            async with connected(network, "alpha", "bob", brokers=(LIAR, *HONEST)) as reader:
                async with lying(network, "lie"), asyncio.timeout(NOTICED):
                    info = await reader.topic(topic)
                assert [(head.start, head.end) for head in info.heads] == [(0, 1)]
                assert caught(reader) == {LIAR}
                assert "not in the certified state" in reader.misbehaviour[0].problem
            assert alice.misbehaviour == ()

    play(story)


def test_a_broker_that_forges_receipts_is_caught(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (_, listener, topic), lying(network, "forge"):
            async with asyncio.timeout(CERTIFIED):
                receipt = await listener.client.publish(topic, "1", partition=0)
            assert receipt.offset == 1
            assert caught(listener.client) == {LIAR}

    play(story)


def test_a_broker_that_shows_stale_state_is_left_and_nothing_is_missed(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "stale"):
            async with asyncio.timeout(NOTICED):
                await publish(alice, topic, "1", "2")
                await listener.until("0", "1", "2")
            assert LIAR not in listener.subscription.brokers
            await until_doubted(listener.client)
            # What it says of another matter is just as old: it is not believed there either.
            async with asyncio.timeout(NOTICED):
                assert [m.text() async for m in listener.client.fetch(topic, start=1)] == ["1", "2"]

    play(story)


def test_a_broker_that_answers_too_late_is_left_and_nothing_is_missed(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "delay"):
            async with asyncio.timeout(NOTICED):
                await publish(alice, topic, "1")
                await listener.leaves(LIAR)
            await publish(alice, topic, "2", "3")
            async with asyncio.timeout(NOTICED):
                await listener.until("0", "1", "2", "3")
            assert caught(listener.client) == set()  # to be slow is no lie
            await until_doubted(listener.client)

    play(story)


def test_a_censored_batch_is_certified_through_other_brokers(network: LocalNetwork) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "censor:alpha/bob"):
            async with asyncio.timeout(CERTIFIED):
                receipt = await listener.client.publish(topic, "1", partition=0)
            assert (receipt.offset, receipt.publisher) == (1, "alpha/bob")
            await until_doubted(listener.client)
            assert "it has shown no receipt" in listener.client.doubts[0].problem
            await publish(alice, topic, "2")  # others are not censored
            await listener.until("0", "1", "2")
            told = {one.name: one.status for one in await listener.client.status()}
            notes = {name: "" if status is None else status.note for name, status in told.items()}
            assert [name for name, note in notes.items() if "censor:alpha/bob" in note] == [LIAR]

    play(story)


def test_the_other_brokers_hold_both_proposals_of_one_that_equivocates(
    network: LocalNetwork, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stage(network) as (alice, listener, topic), lying(network, "equivocate"):
            expected = ["0"]
            async with asyncio.timeout(SECONDS):
                while not await _proven(alice):
                    expected.append(str(len(expected)))
                    await publish(alice, topic, expected[-1])
            await listener.until(*expected)
            assert listener.client.misbehaviour == ()

    play(story)
    shown = _status(network, tmp_path)
    for broker in HONEST:
        assert network.stop(broker) == 0
    for broker in HONEST:
        with open_store(network.config(broker).parent / "data", create=False) as store:
            records = [evidence.decode(value) for _, value in store.scan(layout.EVIDENCE)]
        proven = [evidence.verify(record, network.trust.verifier) for record in records]
        assert proven
        assert {(one.member, one.kind) for one in proven} == {(network.names.index(LIAR), "proposals")}
        for record in records:
            assert isinstance(record.first, Proposal)
            assert isinstance(record.second, Proposal)
            assert record.first.header.id() != record.second.header.id()
        told = {(one["broker"], one["kind"], one["view"]) for one in shown[broker]}
        assert {(LIAR, one.kind, one.view) for one in proven} >= told > set()
    network.start(*HONEST)
    play(partial(_answering, network))


@pytest.mark.parametrize(
    ("fault", "words"),
    [("forge", "lies or is broken: "), ("lie", "lies or is broken: "), ("delay", "is suspected: ")],
)
def test_the_command_line_names_the_broker_and_what_it_did(
    network: LocalNetwork, tmp_path: Path, fault: str, words: str
) -> None:
    from tests.cli.commands import shell  # noqa: PLC0415

    topic = f"named/{fault}"

    async def furnish() -> None:
        async with connected(network, "beta", "admin", brokers=HONEST) as admin:
            with suppress(parley.ClientExists):
                await register(admin, network.identity("beta", "alice"), {})
        async with connected(network, "alpha", "admin", brokers=HONEST) as admin:
            await admin.create_topic(topic)
        async with connected(network, "alpha", "alice", brokers=HONEST) as alice:
            await publish(alice, topic, "0")

    play(furnish)
    asyncio.run(_switch(network, (fault,)))
    try:
        words_of = ("fetch", topic, "--dir", network.directory, "--as", "beta/alice")
        ended = shell(*words_of, home=tmp_path, code=0)
    finally:
        asyncio.run(_switch(network, ()))
    assert ended.out == "0\n"
    assert f"parley: Broker {LIAR} {words}" in ended.err


async def _answering(net: LocalNetwork) -> None:
    """Until the honest brokers are there again."""
    for broker in HONEST:
        while True:
            try:
                async with connected(net, "alpha", "admin", brokers=[broker]):
                    break
            except parley.Unreachable:
                await asyncio.sleep(0.1)


async def _proven(client: Client) -> bool:
    found = [one.status for one in await client.status() if one.name in HONEST]
    return all(status is not None and status.misbehaviour for status in found)


def _status(net: LocalNetwork, home: Path) -> dict[str, list[dict[str, Any]]]:
    """Per broker, as scripts see it."""
    from tests.cli.commands import parley as command  # noqa: PLC0415

    shown = command("status", "--dir", net.directory, "--json", home=home).json()
    brokers = shown["layers"]["data"]["shards"]["0"]["brokers"]
    return {one["name"]: one["misbehaviour"] for one in brokers}
