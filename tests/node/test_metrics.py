"""The numbers of real brokers: they move with what happens, they are all documented, and their labels are bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from tests.node.network import ORGANISATIONS, LocalNetwork
from tests.node.raw_client import client, message, registration
from tests.node.test_assemble import OneBroker, connected, running
from tests.node.test_network import next_delivery, open_stream, subscribe
from tests.node.watching import SETTINGS, Scrape, address_of, get, until

import parley
from parley.application.executed import Executed
from parley.consensus.errors import Reason
from parley.model.receipts import Done
from parley.model.refusals import DUPLICATE, OK, Malformed, classes
from parley.modules.topics.operations import CreateTopic, Policy
from parley.modules.topics.refusals import UnknownTopic
from parley.net import messages as net
from parley.net.tls import Address
from parley.node.clock import monotonic
from parley.node.config import ConfigError, load
from parley.node.holding import JOBS, Holding
from parley.node.telemetry.catalogue import CATALOGUE
from parley.node.telemetry.collector import OTHER, BrokerCollector, topic_label
from parley.node.telemetry.health import Pulse
from parley.node.telemetry.server import is_loopback
from parley.node.telemetry.site import FRESH_MS, Telemetry
from parley.node.telemetry.tally import TURNED_AWAY, Tally

CODES = {OK, DUPLICATE, *classes()}
TOPIC = "secret-plans"
ENTRY, READER, OPEN = "alpha-1", "gamma-1", "delta-1"  # where is published, where is read, who tells topics
PROCESS = {family.name for family in ProcessCollector(registry=CollectorRegistry()).collect()}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("metrics") / "net", settings=SETTINGS) as network:
        path = network.config(OPEN)
        path.write_text(path.read_text() + "topics = true\n")
        network.start()
        asyncio.run(_furnish(network))
        yield network


async def _furnish(network: LocalNetwork) -> None:
    for organisation in ORGANISATIONS:
        async with client(network, f"{organisation}-1", organisation, "admin") as admin:
            receipt = await admin.operate(registration(network.identity(organisation, "alice")))
            assert receipt.outcome == Done()
    async with client(network, ENTRY, "alpha", "admin") as admin:
        assert (await admin.operate(CreateTopic(TOPIC, 1, Policy(), "", ""))).outcome == Done()


async def scrape(network: LocalNetwork, broker: str, path: str = "/metrics") -> Scrape:
    """Of now: what was made for whoever asked before is told no more."""
    await asyncio.sleep(FRESH_MS / 1_000)
    return Scrape(await get(address_of(network, broker), path))


async def moved(network: LocalNetwork, broker: str, name: str, above: float, **labels: str) -> Scrape:
    """The first scrape in which a number is above another one."""
    address = address_of(network, broker)
    return Scrape(await until(lambda page: Scrape(page)(name, **labels) > above, address, "/metrics"))


def test_what_is_published_and_delivered_moves_the_numbers_of_all_brokers(network: LocalNetwork) -> None:
    async def story() -> None:
        before = {name: await scrape(network, name) for name in network.names}
        async with (
            client(network, ENTRY, "alpha", "alice") as publisher,
            client(network, READER, "gamma", "alice") as reader,
        ):
            open_stream(reader, TOPIC, await subscribe(reader, TOPIC, "kind = 'x'"), credit=100)
            sizes = 0
            for _ in range(3):
                batch = publisher.publication(TOPIC, message(b"1", kind="x"), message(b"2", kind="y"))
                sizes += len(batch[1])
                await publisher.submit(batch)
            delivered = 0
            while delivered < 3:
                delivered += sum(len(block.contents) for block in (await next_delivery(reader)).blocks)
            for name in network.names:
                old = before[name]
                published = old("parley_publications_total")
                new = await moved(network, name, "parley_publications_total", published + 5)
                assert new("parley_publications_total") == published + 6
                assert new("parley_publication_bytes_total") == old("parley_publication_bytes_total") + sizes
                assert new("parley_matches_total") == old("parley_matches_total") + 3
                assert new("parley_subscriptions") == 1
                done = old("parley_batches_total", result="Ok")
                assert new("parley_batches_total", result="Ok") == done + 4
            entry, read = await scrape(network, ENTRY), await scrape(network, READER)
        count = "parley_publish_latency_seconds_count"
        assert entry(count) == before[ENTRY](count) + 3
        assert read("parley_deliveries_total") == before[READER]("parley_deliveries_total") + 3
        assert (entry("parley_clients_connected"), read("parley_clients_connected")) == (1, 1)

    asyncio.run(story())


def test_consensus_storage_and_care_are_told(network: LocalNetwork) -> None:
    async def story() -> None:
        for name in network.names:
            old = await scrape(network, name)
            height = old("parley_committed_height", shard="0")
            new = await moved(network, name, "parley_committed_height", height, shard="0")
            assert new("parley_view", shard="0") > old("parley_view", shard="0")
            assert new("parley_executed_height", shard="0") > 0
            assert new("parley_certified_height", shard="0") > 0
            assert new("parley_commit_latency_seconds_count", shard="0") > 0
            assert new("parley_mempool_oldest_seconds", shard="0") == 0
            assert new("parley_certified_age_seconds", shard="0") < 60
            assert new("parley_replica_lag_blocks", shard="0") < 50
            assert new("parley_quorum_size", shard="0") == 3
            assert new("parley_committee_size", shard="0") == 4
            assert new("parley_peers_connected") == 3
            assert new("parley_storage_bytes") > 0
            assert new("parley_storage_free_bytes") > new("parley_storage_bytes")
            assert new("parley_rocksdb_memtable_bytes") > 0
            assert new("parley_certificate_expiry_seconds") > new("process_start_time_seconds")
            assert abs(new("parley_clock_offset_seconds")) < 60
            assert new("parley_authority_expiry_seconds") > new("parley_certificate_expiry_seconds")
            assert new("parley_damage_open") == 0
            assert new("parley_ready") == 1
            assert [dict(labels)["version"] for labels in new.of("parley_build_info")] == [parley.__version__]

    asyncio.run(story())


def test_other_brokers_are_told_by_name(network: LocalNetwork) -> None:
    async def story() -> None:
        for name in network.names:
            found = await moved(network, name, "parley_votes_included_total", 0, shard="0", peer=name)
            others = set(network.names) - {name}
            for series in ("parley_peer_up", "parley_peer_slow"):
                assert {dict(labels)["peer"] for labels in found.of(series)} == others
            assert set(found.of("parley_peer_up").values()) == {1}
            for peer in network.names:
                assert found("parley_votes_included_total", shard="0", peer=peer) > 0
                assert 0 < found("parley_recent_votes_ratio", shard="0", peer=peer) <= 1
                assert found("parley_failed_views_total", shard="0", peer=peer) >= 0
            for peer in others:
                assert found("parley_messages_refused_total", reason="bad_signature", peer=peer) == 0
            (about,) = found.of("parley_info")
            assert dict(about) == {
                "network": "test",
                "broker": name,
                "organisation": name.partition("-")[0],
                "chain": network.genesis.chain.hex(),
                "version": parley.__version__,
            }

    asyncio.run(story())


def test_what_is_refused_is_counted_by_its_code(network: LocalNetwork) -> None:
    async def story() -> None:
        before = await scrape(network, ENTRY)
        async with client(network, ENTRY, "alpha", "alice") as asker:
            asker.stream.write(b"garbage")
            await asker.receive(net.Failure)
            failure = await asker.ask(net.Fetch(1, "nothing", 0, 0, 1_000, 0), net.Failure)
            assert failure.code == UnknownTopic.code
        after = await scrape(network, ENTRY)
        for code in (Malformed.code, UnknownTopic.code):
            old = before("parley_requests_refused_total", reason=code)
            assert after("parley_requests_refused_total", reason=code) == old + 1

    asyncio.run(story())


def test_a_connection_that_never_becomes_one_is_counted(network: LocalNetwork) -> None:
    async def story() -> None:
        name = "parley_connections_refused_total"
        before = (await scrape(network, ENTRY))(name, reason="handshake")
        address = Address.parse(network.addresses[network.names.index(ENTRY)])
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await moved(network, ENTRY, name, before, reason="handshake")
        writer.close()

    asyncio.run(story())


def test_damage_that_is_mended_at_the_start_is_counted(tmp_path: Path) -> None:
    async def story(network: OneBroker) -> None:
        async with running(network):
            await (await connected(network, "admin")).stream.wait_closed()
            found = await scrape(network, "solo-1")
            assert found("parley_damage_total", mended="true") == 1
            assert found("parley_damage_total", mended="false") == 0

    with OneBroker(tmp_path / "net", settings=SETTINGS) as network:
        path = load(network.config("solo-1")).safety
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        asyncio.run(story(network))


def test_topics_are_hashed_unless_the_operator_wants_their_names(network: LocalNetwork) -> None:
    async def story() -> None:
        async with client(network, ENTRY, "alpha", "alice") as publisher:
            await publisher.submit(publisher.publication(TOPIC, message(b"x")))
        hashed = topic_label(network.genesis.chain, TOPIC)
        name = "parley_topic_publications_total"
        for broker in (ENTRY, READER):
            assert (await moved(network, broker, "parley_publications_total", 0))(name, topic=hashed) > 0
            page = await get(address_of(network, broker), "/metrics")
            assert TOPIC.encode() not in page.body
        assert (await moved(network, OPEN, "parley_publications_total", 0))(name, topic=TOPIC) > 0

    asyncio.run(story())


@pytest.mark.parametrize("clear", [False, True])
def test_a_topic_that_is_called_like_all_others_together_makes_no_second_series(*, clear: bool) -> None:
    executed = Executed()
    for topic, count in ((OTHER, 2), ("ward", 3)):
        executed.add_labelled("publications", topic, count)
    executed.others["publications"] = 5
    life = SimpleNamespace(machine=SimpleNamespace(executed=executed, derived=None))
    collector = BrokerCollector(Tally(), Pulse(monotonic), Holding(), bytes(32), clear)
    told = [
        (labels[0], count)
        for name, labels, count in collector._of_ledger(cast("Any", life))
        if name == "parley_topic_publications_total"
    ]
    assert len({label for label, _ in told}) == len(told) == (2 if clear else 3)
    assert dict(told)[OTHER] == (7 if clear else 5)


def test_who_asks_without_pause_gets_what_was_made_a_moment_ago(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = [10]
    monkeypatch.setattr("parley.node.telemetry.site.monotonic", lambda: ticks[0])
    telemetry = Telemetry(load(network.config(ENTRY)))

    async def story() -> None:
        for path in ("/metrics", "/public_metrics"):
            first, *others = await asyncio.gather(*(telemetry.page(path) for _ in range(8)))
            assert all(other is first for other in others)
            ticks[0] += FRESH_MS - 1
            assert await telemetry.page(path) is first
            ticks[0] += 1
            assert await telemetry.page(path) is not first

    asyncio.run(story())


def test_the_public_page_is_a_small_part_of_the_other(network: LocalNetwork) -> None:
    async def story() -> None:
        everything, public = await scrape(network, ENTRY), await scrape(network, ENTRY, "/public_metrics")
        assert set(public.families) == {entry.name for entry in CATALOGUE if entry.public}
        assert set(public.families) < set(everything.families)
        assert {"topic", "reason", "result"}.isdisjoint(
            label
            for family in public.families.values()
            for sample in family.samples
            for label in sample.labels
        )

    asyncio.run(story())


def test_labels_take_only_values_that_are_known_beforehand(network: LocalNetwork) -> None:
    words = {
        "result": CODES,
        "reason": CODES | {reason.name.lower() for reason in Reason} | set(TURNED_AWAY),
        "shard": {"0"},
        "kind": {"proposals", "votes", "timeouts"},
        "peer": set(network.names),
        "network": {"test"},
        "broker": {ENTRY},
        "organisation": {"alpha"},
        "chain": {network.genesis.chain.hex()},
        "mended": {"true", "false"},
        "job": set(JOBS),
    }

    async def story() -> None:
        async with client(network, ENTRY, "alpha", "alice") as asker:
            for number in range(20):  # whatever clients write, it makes no series
                await asker.submit(asker.publication(f"made-up-{number}", message(b"x")))
        for name, family in (await scrape(network, ENTRY)).families.items():
            labels = {entry.name: entry.labels for entry in CATALOGUE}.get(name, ())
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(labels), sample
                for label, value in sample.labels.items():
                    assert value in words.get(label, {value}), sample
            assert len(family.samples) <= 100, name
        topics = (await scrape(network, ENTRY)).of("parley_topic_publications_total")
        assert len(topics) <= 1  # of those that there are

    asyncio.run(story())


def test_every_exported_name_is_documented_with_type_and_labels_and_the_other_way_round(
    network: LocalNetwork,
) -> None:
    documented = dict(documented_metrics())
    catalogue = {entry.name: (entry.kind, set(entry.labels), entry.public) for entry in CATALOGUE}
    assert {name: told for name, told in documented.items() if name.startswith("parley_")} == catalogue
    exported = asyncio.run(scrape(network, ENTRY)).families
    assert set(exported) == set(documented)
    assert {name: family.type for name, family in exported.items()} == {
        name: kind for name, (kind, _, _) in documented.items()
    }


def documented_metrics() -> Iterator[tuple[str, tuple[str, set[str], bool]]]:
    """The rows of the tables in docs/metrics.md: name and labels, type, whether it is public, meaning."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    row = re.compile(
        r"^\| `((?:parley|process)_[a-z_]+)(?:\{([a-z, ]+)\})?` \| (\w+) \| (yes|) ?\| .+ \|$", re.MULTILINE
    )
    for name, labels, kind, public in row.findall(page):
        yield name, (kind, set(filter(None, labels.split(", "))), public == "yes")


def test_names_follow_the_conventions() -> None:
    for entry in CATALOGUE:
        assert re.fullmatch(r"parley_[a-z]+(_[a-z]+)*", entry.name)
        assert entry.name.endswith("_total") == (entry.kind == "counter"), entry.name
        assert entry.kind != "histogram" or entry.name.endswith("_seconds"), entry.name
        assert not re.search(r"_(ms|milliseconds|kb|mb|kib|mib|percent)$", entry.name)
        assert entry.help.endswith(".")
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    assert PROCESS  # this system tells of processes


# -- the configuration -------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return LocalNetwork(tmp_path / "net", organisations=("solo",)).config("solo-1")


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("", None),
        ("9464", "127.0.0.1:9464"),
        (":9464", "127.0.0.1:9464"),
        ("0", "127.0.0.1:0"),
        ("127.0.0.2:9464", "127.0.0.2:9464"),
        ("[::1]:9464", "[::1]:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("metrics.example:9464", "metrics.example:9464"),
    ],
)
def test_numbers_leave_the_machine_only_by_an_address_that_was_written(
    path: Path, written: str, address: str | None
) -> None:
    assert load(path).metrics_listen is None
    path.write_text(f'{path.read_text()}\n[metrics]\nlisten = "{written}"\n')
    found = load(path).metrics_listen
    assert (None if found is None else str(found)) == address
    if found is not None:
        expected = found.host in ("127.0.0.1", "127.0.0.2", "::1")
        assert is_loopback(found) == expected


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('listen = "nowhere"', r"metrics\.listen: 'nowhere' is not an address"),
        ('listen = "99999"', r"metrics\.listen: '127\.0\.0\.1:99999' is not an address"),
        ("listen = 9464", r"metrics\.listen: expected a text"),
        ('topics = "yes"', r"metrics\.topics: expected true or false, got 'yes'"),
        ("topic = true", r"metrics: there is no 'topic'; did you mean 'topics'\?"),
    ],
)
def test_wrong_settings_are_named(path: Path, settings: str, problem: str) -> None:
    path.write_text(f"{path.read_text()}\n[metrics]\n{settings}\n")
    with pytest.raises(ConfigError, match=problem):
        load(path)
