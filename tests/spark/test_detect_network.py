"""A real network under watch: a client that misbehaves, a broker that stops and one that equivocates; and one that is well."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import pytest
from tests.cli.commands import parley, start
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, know_topic, message
from tests.spark.sinks import create_topic

from parley.cli.network import INTERRUPTED
from parley.client import connect_blocking
from parley.client.ledger import CertifiedHead
from parley.crypto.qc import voters
from parley.model.batches import FORMAT, PUBLISH, BatchHeader, sign_batch
from parley.model.receipts import BatchReceipt, Leaf
from parley.model.refusals import DUPLICATE, OK, SequenceReused
from parley.modules.staging.operations import CommitStage
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.refusals import UnknownTopic
from parley.node.admin.client import set_faults
from parley.node.provision import identity_path
from parley.spark.auditing import Ledger
from parley.spark.detect import Job, Watch, watched
from parley.spark.detect_rules import Alert, Kind, Thresholds
from parley.spark.detect_table import read_alerts
from parley.spark.options import table_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRY, LIAR, STOPPED = "alpha-1", "gamma-1", "delta-1"
LIMITS = Thresholds(
    refusals=8, probed=4, replays=5, reused=1, window=60_000, silent_blocks=10, silent_time=500
)
TOPIC = "watched"


@pytest.fixture(scope="module")
def topic(network: LocalNetwork) -> str:
    name = create_topic(network, TOPIC, partitions=1)
    with connect_blocking(
        directory=network.directory, identity=identity_path(network.directory, "alpha", "admin")
    ) as admin:
        know_topic(network.genesis.chain, name, admin.topic_id(name))
    return name


@pytest.fixture
def hurried(few: SparkSession) -> SparkSession:
    """Without micro-batches that have no rows: what ends is tested elsewhere."""
    few.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    return few


@pytest.fixture
def ledger(network: LocalNetwork, topic: str) -> Ledger:
    return Ledger(table_options({**_options(network), "table": "votes"}).network)


def _options(network: LocalNetwork) -> dict[str, str]:
    path = identity_path(network.directory, "alpha", "admin")
    return {"directory": str(network.directory), "identity": str(path)}


def watch_from(network: LocalNetwork, ledger: Ledger, limits: Thresholds, directory: Path) -> Watch:
    """What happens from now on."""
    options = {**_options(network), "startingHeight": str(ledger.head().height + 1)}
    return Watch(network.genesis, options, directory / "alerts", directory / "alerts" / "_checkpoint", limits)


async def publish(alice: RawClient, count: int = 1) -> None:
    for number in range(count):
        receipt = await alice.submit(alice.publication(TOPIC, message(b"%d" % number)))
        assert receipt.code == OK


@pytest.mark.long
def test_a_network_that_is_well_raises_no_alert(
    hurried: SparkSession, network: LocalNetwork, ledger: Ledger, tmp_path: Path
) -> None:
    watch = watch_from(network, ledger, Thresholds(), tmp_path)

    async def story() -> None:
        async with client(network, ENTRY, "alpha", "alice") as alice:
            await publish(alice, 20)
            batch = alice.publication(TOPIC, message(b"twice"))
            assert await alice.submit(batch) == await alice.submit(batch)
            await alice.subscribe(TOPIC)
            # What everybody may do wrong once.
            assert (await alice.submit(alice.publication("nowhere", message(b"")))).code == UnknownTopic.code
            assert (await alice.operate(Subscribe("elsewhere", ""))).code == UnknownTopic.code

    asyncio.run(story())
    told: list[Alert] = []
    query = Job(watch, told.extend).start(watched(hurried, watch), once=True)
    query.awaitTermination()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) > 20
    assert told == []
    assert read_alerts(watch.table) == []


def test_misbehaviour_is_told_of_those_who_did_it(
    hurried: SparkSession, network: LocalNetwork, ledger: Ledger, tmp_path: Path
) -> None:
    watch = watch_from(network, ledger, LIMITS, tmp_path)

    async def story() -> None:
        async with client(network, ENTRY, "alpha", "alice") as alice:
            await misbehave(alice)
            with lying(network):
                async with asyncio.timeout(SECONDS):
                    while not await asyncio.to_thread(ledger.evidence):
                        await publish(alice)
            await fall_silent(network, ledger, alice)

    asyncio.run(story())
    told: list[Alert] = []
    expected = {
        *((kind, "alpha/alice", "alpha", "began") for kind in (Kind.REFUSALS, Kind.PROBING, Kind.REPLAYS)),
        (Kind.REUSED, "alpha/alice", "alpha", "began"),
        (Kind.SILENT, STOPPED, "delta", "began"),
        (Kind.SILENT, STOPPED, "delta", "ended"),
        (Kind.EQUIVOCATION, LIAR, "gamma", "began"),
    }
    found: set[tuple[str, ...]] = set()
    for _ in range(3):  # the broker that Spark asks for the end of the ledger may be a little behind
        Job(watch, told.extend).run(hurried, ledger, once=True)
        found = {(alert.kind, alert.subject, alert.organisation, alert.phase) for alert in told}
        if found >= expected:
            break
    assert found >= expected
    clients = {alert.subject for alert in told if alert.kind not in {Kind.SILENT, Kind.EQUIVOCATION}}
    assert clients == {"alpha/alice"}
    assert {alert.subject for alert in told if alert.kind is Kind.EQUIVOCATION} == {LIAR}
    assert sorted(alert.alert for alert in read_alerts(watch.table)) == sorted(alert.alert for alert in told)
    # What the alerts say can be looked up.
    reused = next(alert for alert in told if alert.kind is Kind.REUSED)
    codes = [leaf.code for leaf in block_of(ledger, reused.evidence[-1]) if isinstance(leaf, BatchReceipt)]
    assert SequenceReused.code in codes


async def misbehave(alice: RawClient) -> None:
    for number in range(8):
        receipt = await alice.submit(alice.publication(f"secret{number % 4}", message(b"%d" % number)))
        assert receipt.code == UnknownTopic.code
    writer = os.urandom(16)
    for number in range(7):
        receipt = await alice.operate(CommitStage(TOPIC, writer, 1, (), topic_id=alice.topic_id(TOPIC)))
        assert receipt.code == (DUPLICATE if number else OK)
    await publish(alice)
    receipt = await alice.submit(again(alice))
    assert receipt.code == SequenceReused.code


def again(alice: RawClient) -> tuple[bytes, bytes]:
    """Another batch with the first sequence of her session."""
    header = BatchHeader(
        FORMAT,
        alice.trust.genesis.chain,
        0,
        PUBLISH,
        TOPIC,
        alice.topic_id(TOPIC),
        0,
        alice.identity.credential.key,
        alice._session,
        0,
        1,
        50_000,
    )
    return sign_batch(header, (message(b"another"),), alice.identity.key())


@contextmanager
def lying(network: LocalNetwork) -> Iterator[None]:
    def switch(*faults: str) -> None:
        set_faults(network.config(LIAR).parent, faults)

    switch("equivocate")
    try:
        yield
    finally:
        switch()


async def fall_silent(network: LocalNetwork, ledger: Ledger, alice: RawClient) -> None:
    """For more blocks and longer than the thresholds, and then come back."""
    network.stop(STOPPED)
    before = await asyncio.to_thread(ledger.head)
    async with asyncio.timeout(SECONDS):
        while not is_past(before, await asyncio.to_thread(ledger.head)):
            await publish(alice)
        network.start(STOPPED)
        while not await asyncio.to_thread(has_voted, network, ledger):
            await publish(alice)


def is_past(before: CertifiedHead, now: CertifiedHead) -> bool:
    blocks, time = now.height - before.height, now.time - before.time
    return blocks > LIMITS.silent_blocks + 10 and time > LIMITS.silent_time + 500


def has_voted(network: LocalNetwork, ledger: Ledger) -> bool:
    block = ledger.block(ledger.head().height)
    assert block is not None
    voted = voters(block.header.justify.votes.bitmap, len(network.names))
    return voted is not None and network.names.index(STOPPED) in voted


def block_of(ledger: Ledger, height: int) -> tuple[Leaf, ...]:
    block = ledger.block(height)
    assert block is not None
    return block.leaves


@pytest.mark.long
def test_the_command_tells_alerts_as_they_come_and_ends_with_ctrl_c(
    network: LocalNetwork, ledger: Ledger, tmp_path: Path
) -> None:
    words = (
        "audit",
        "watch",
        "--dir",
        network.directory,
        "--as",
        "alpha/admin",
        "--table",
        tmp_path / "alerts",
    )

    async def story() -> None:
        async with client(network, ENTRY, "alpha", "alice") as alice:
            await misbehave(alice)

    process = start(*words, "--json", home=tmp_path)
    overdue = Timer(5 * SECONDS, process.kill)
    overdue.start()
    try:
        asyncio.run(story())
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline())]
        while first[-1]["kind"] != Kind.REUSED:  # proofs that brokers hold come before Spark has started
            first.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        rest, noise = process.communicate(timeout=2 * SECONDS)
    finally:
        overdue.cancel()
        process.kill()
    assert process.returncode == INTERRUPTED
    assert b"spark" not in noise.lower(), noise
    told = {one["alert"] for one in [*first, *map(json.loads, rest.splitlines())]}
    assert told == {alert.alert for alert in read_alerts(tmp_path / "alerts")}
    shown = parley(*words, "--check", "--json", home=tmp_path, code=1)
    assert {one["alert"] for one in json.loads(shown.out)["alerts"]} == told
