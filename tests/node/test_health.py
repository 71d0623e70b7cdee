"""Alive and ready are two things: a broker without a quorum lives and says why it cannot serve, and comes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.node.network import LocalNetwork
from tests.node.raw_client import client, registration
from tests.node.test_assemble import OneBroker, connected, running
from tests.node.watching import SETTINGS, Scrape, address_of, get, until

from parley.model.genesis import Timeouts
from parley.model.receipts import Done
from parley.node.shown import Showing
from parley.node.status import StatusReport
from parley.node.telemetry import site
from parley.node.telemetry.health import BEAT_MS, BEATS, STANDS_MS, Life, Pulse, ShardLife, ailment, obstacles


def test_a_broker_is_ready_with_a_quorum_and_says_what_it_lacks_without(tmp_path: Path) -> None:
    async def story(network: LocalNetwork) -> None:
        async with client(network, "alpha-1", "alpha", "admin") as admin:
            assert (await admin.operate(registration(network.identity("alpha", "alice")))).outcome == Done()
        alpha = address_of(network, "alpha-1")
        ready = await until(lambda page: page.status == 200, alpha, "/readyz")
        assert ready.body == b"ok\n"

        network.stop("gamma-1")
        network.stop("delta-1")
        page = await until(lambda page: page.status == 503, alpha, "/readyz")
        assert page.lines == [
            "It is connected to 1 other brokers, and a quorum needs 2. Not connected: gamma-1, delta-1."
        ]
        assert (await get(alpha, "/healthz")).body == b"ok\n"
        assert Scrape(await get(alpha, "/metrics"))("parley_ready") == 0

        network.start("gamma-1")
        await until(lambda page: page.status == 200, alpha, "/readyz")
        assert Scrape(await get(alpha, "/public_metrics"))("parley_ready") == 1

    with LocalNetwork(tmp_path / "net", settings=SETTINGS) as network:
        network.start()
        asyncio.run(story(network))


def test_one_broker_is_served_while_it_runs(tmp_path: Path) -> None:
    async def story(network: OneBroker) -> None:
        async with running(network):
            admin = await connected(network, "admin")
            await admin.operate(registration(network.identity("solo", "alice")))
            await admin.stream.wait_closed()
            address = address_of(network, "solo-1")
            await until(lambda page: page.status == 200, address, "/readyz")
            assert (await get(address, "/")).status == 404
        with pytest.raises(ConnectionRefusedError):
            await get(address, "/healthz")

    with OneBroker(tmp_path / "net", settings=SETTINGS) as network:
        asyncio.run(story(network))
        assert not [line for line in network.log("solo-1") if line["event"] == "metrics_open"]


def test_whoever_opens_the_pages_to_others_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(network: OneBroker) -> None:
        async with running(network):
            await (await connected(network, "admin")).stream.wait_closed()

    monkeypatch.setattr(site, "is_loopback", lambda _: False)
    with OneBroker(tmp_path / "net", settings=SETTINGS) as network:
        asyncio.run(story(network))
        (warning,) = [line for line in network.log("solo-1") if line["event"] == "metrics_open"]
        assert (warning["level"], warning["address"]) == ("warning", str(address_of(network, "solo-1")))
        assert "asks nobody who they are" in str(warning["why"])


def test_without_the_setting_nothing_is_told_anywhere(tmp_path: Path) -> None:
    async def story(network: OneBroker) -> None:
        async with running(network):
            await (await connected(network, "admin")).stream.wait_closed()

    with OneBroker(tmp_path / "net") as network:
        asyncio.run(story(network))
        assert not [line for line in network.log("solo-1") if str(line["event"]).startswith("metrics")]


# -- reasons -----------------------------------------------------------------------------------------------------------


@dataclass
class FakeReplica:
    committed_height: int = 100
    executed_height: int = 100


@dataclass
class FakeDriver:
    halted: str | None = None
    replica: FakeReplica = field(default_factory=FakeReplica)
    failed: bool = False
    disk_wait_ms: int = 0

    @property
    def failure(self) -> FakeDriver:
        return self

    def done(self) -> bool:
        return self.failed


@dataclass
class FakeRoom:
    note: str = ""


@dataclass
class FakePeers:
    up: tuple[int, ...] = (1, 2, 3)

    def connected(self, index: int) -> bool:
        return index in self.up


@dataclass
class FakeCommittee:
    names: tuple[str, ...] = ("a-1", "b-1", "c-1", "d-1")
    size: int = 4
    quorum: int = 3


@dataclass
class FakeGenesis:
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass
class FakeConfig:
    index: int = 0
    shard: int = 0
    genesis: FakeGenesis = field(default_factory=FakeGenesis)
    committee: FakeCommittee = field(default_factory=FakeCommittee)


@dataclass
class FakeStatus:
    """What a status report says, without a broker."""

    word: str = "ready"
    driver: FakeDriver = field(default_factory=FakeDriver)
    peers: FakePeers = field(default_factory=FakePeers)
    room: FakeRoom = field(default_factory=FakeRoom)
    config: FakeConfig = field(default_factory=FakeConfig)

    unreachable = StatusReport.unreachable

    def state(self) -> str:
        return self.word

    def abstaining(self) -> str:
        return "Its safety record was lost."


def life_of(*statuses: FakeStatus, ends: int = 2_000_000) -> Life:
    """Of a broker with these shards, at second 1000, whose certificate ends then."""
    nothing = cast("Any", None)
    shards = tuple(ShardLife(cast("StatusReport", status), nothing, nothing) for status in statuses)
    showing = SimpleNamespace(current=SimpleNamespace(ends=ends))
    return Life(shards, nothing, (), nothing, cast("Showing", showing), lambda: 1_000_000)


@pytest.mark.parametrize(
    ("status", "ends", "reasons"),
    [
        (FakeStatus(), 2_000_000, []),
        (FakeStatus("halted", FakeDriver("A quorum\ncertified other results.")), 2_000_000, ["A quorum certified"]),
        (FakeStatus("recovering"), 2_000_000, ["It is recovering. Its safety record was lost."]),
        (FakeStatus("rebuilding"), 2_000_000, ["It fetches a certified snapshot"]),
        (FakeStatus("starting"), 2_000_000, ["Nothing has been certified"]),
        (FakeStatus("lagging"), 2_000_000, ["its newest certified header is too old"]),
        (FakeStatus("waiting"), 2_000_000, ["The network stands still"]),
        (
            FakeStatus("lagging", FakeDriver(replica=FakeReplica(executed_height=50))),
            2_000_000,
            ["50 blocks wait for execution"],
        ),
        (FakeStatus(peers=FakePeers((1, 2))), 2_000_000, []),
        (
            FakeStatus(peers=FakePeers((2,))),
            2_000_000,
            ["connected to 1 other brokers, and a quorum needs 2. Not connected: b-1, d-1."],
        ),
        (FakeStatus(room=FakeRoom("This broker's disk is nearly full.")), 2_000_000, ["disk is nearly full"]),
        (FakeStatus(), 1_000_000, ["Its certificate has ended"]),
        (
            FakeStatus("starting", peers=FakePeers(()), room=FakeRoom("Nearly full.")),
            0,
            ["Nothing has been", "connected to 0 other", "Nearly full.", "certificate has ended"],
        ),
    ],
)  # fmt: skip
def test_each_reason_has_one_line(status: FakeStatus, ends: int, reasons: list[str]) -> None:
    found = obstacles(life_of(status, ends=ends))
    assert len(found) == len(reasons)
    for line, expected in zip(found, reasons, strict=True):
        assert expected in line
        assert "\n" not in line


def test_between_two_lives_a_broker_lives_and_is_not_ready() -> None:
    assert obstacles(None) == ["It is starting."]
    assert ailment(Pulse(lambda: 0), None) == ""


def test_a_loop_that_stands_still_is_told_while_it_does_and_remembered_for_a_minute() -> None:
    time = 0
    pulse = Pulse(lambda: time)
    for time in range(BEAT_MS, 10 * BEAT_MS, BEAT_MS):  # noqa: B007 - the pulse reads it
        pulse.beat()
    assert (pulse.late, pulse.worst) == (0, 0)
    time += BEAT_MS + STANDS_MS
    assert ailment(pulse, None) == ""
    time += 1_500
    assert ailment(pulse, None) == "The event loop has stood still for 6.5 s."
    pulse.beat()
    assert ailment(pulse, None) == ""
    assert pulse.worst == STANDS_MS + 1_500
    for _ in range(BEATS):
        time += BEAT_MS
        pulse.beat()
    assert pulse.worst == 0


def test_a_broker_whose_disk_does_not_answer_is_not_alive() -> None:
    pulse = Pulse(lambda: 0)
    assert ailment(pulse, life_of(FakeStatus(driver=FakeDriver(disk_wait_ms=STANDS_MS)))) == ""
    why = ailment(pulse, life_of(FakeStatus(driver=FakeDriver(disk_wait_ms=STANDS_MS + 1))))
    assert "disk has not answered for 5.0 s" in why


def test_a_broker_that_has_failed_is_not_alive() -> None:
    pulse = Pulse(lambda: 0)
    assert ailment(pulse, life_of(FakeStatus())) == ""
    assert "has failed" in ailment(pulse, life_of(FakeStatus(driver=FakeDriver(failed=True))))
