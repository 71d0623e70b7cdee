"""The log says when a broker becomes ready or is no longer, and when the network stands still: once, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
from tests.node.network import SECONDS, TIMEOUTS, LocalNetwork
from tests.node.raw_client import client, registration
from tests.node.test_health import FakeConfig, FakePeers, FakeStatus, life_of

from parley.model.genesis import Timeouts
from parley.model.receipts import Done
from parley.node.logs import Log
from parley.node.telemetry.watch import QUIET_MS, SETTLED_MS, START_MS, Watch
from parley.replica.replica import Replica

LOOK_MS = 1_000


class Lines(list[dict[str, object]]):
    """A log that remembers what it was told."""

    def _tell(self, event: str, **values: object) -> None:
        self.append({"event": event, **values})

    info = warning = error = _tell

    @property
    def events(self) -> list[object]:
        return [line["event"] for line in self]


class StandIn(Replica):
    """A replica that stands for itself alone."""

    def __init__(self) -> None:
        self.committed = self.executed_height = 100

    committed_height = cast("Any", property(lambda self: self.committed))
    view = cast("Any", property(lambda _: 7))
    waiting = cast("Any", property(lambda _: (2, 200)))
    behind = cast("Any", property(lambda _: 0))


@dataclass
class TimedDriver:
    replica: StandIn = field(default_factory=StandIn)
    halted: str | None = None
    still_ms: int = 0


class Story:
    """A watch, the broker it looks at, and what it has said."""

    def __init__(self) -> None:
        self.now = 0
        self.log = Lines()
        self.driver = TimedDriver()
        self.status = FakeStatus(driver=cast("Any", self.driver), config=FakeConfig())
        self._watch = Watch(cast("Log", self.log), lambda: self.now)

    def go_on(self, ms: int, state: str = "ready") -> list[object]:
        """The events that are logged meanwhile."""
        known = len(self.log)
        self.status.word = state
        for _ in range(ms // LOOK_MS):
            self.now += LOOK_MS
            self._watch.look(life_of(self.status))
        return self.log.events[known:]


def test_a_broker_that_starts_is_ready_without_a_word_about_the_time_before() -> None:
    story = Story()
    assert story.go_on(START_MS - LOOK_MS, "starting") == []
    assert story.go_on(60_000) == ["ready"]


def test_a_broker_that_does_not_get_ready_says_why_once() -> None:
    story = Story()
    assert story.go_on(60_000, "starting") == ["not_ready"]
    assert story.log[0]["why"] == "Nothing has been certified since it started."
    assert story.go_on(QUIET_MS, "starting") == ["not_ready"]  # and then once in a long time


def test_a_broker_that_comes_and_goes_is_one_incident() -> None:
    story = Story()
    story.go_on(LOOK_MS)
    said = story.go_on(LOOK_MS, "lagging")
    for _ in range(10):
        said += story.go_on(SETTLED_MS - LOOK_MS)
        said += story.go_on(LOOK_MS, "lagging")
    assert said == ["not_ready"]
    assert story.go_on(2 * SETTLED_MS) == ["ready"]


def test_an_incident_does_not_hide_the_next_one_nor_another_reason() -> None:
    story = Story()
    story.go_on(LOOK_MS)
    for _ in range(3):
        assert story.go_on(LOOK_MS, "lagging") == ["not_ready"]
        story.status.peers = FakePeers((1,))
        assert story.go_on(LOOK_MS, "lagging") == ["not_ready"]
        assert "Not connected: c-1, d-1." in str(story.log[-1]["why"])
        story.status.peers = FakePeers()
        assert story.go_on(2 * SETTLED_MS) == ["ready"]


def test_a_standstill_names_who_is_missing_and_its_end_says_how_long_it_took() -> None:
    story = Story()
    story.go_on(LOOK_MS)
    story.driver.still_ms = Timeouts().freshness
    assert story.go_on(LOOK_MS) == []
    story.driver.still_ms += 1_000
    story.status.peers = FakePeers((1, 2))
    assert story.go_on(5 * LOOK_MS) == ["stalled"]
    assert story.log[-1] == {
        "event": "stalled",
        "shard": 0,
        "for_ms": 6_000,
        "view": 7,
        "peers_up": 2,
        "down": "d-1",
        "waiting": 2,
        "behind": 0,
    }
    story.status.peers = FakePeers()
    assert story.go_on(LOOK_MS) == ["stalled"]  # with another reason
    assert story.log[-1]["down"] == "none"
    story.driver.still_ms = 0
    assert story.go_on(5 * LOOK_MS) == ["resumed"]
    story.driver.still_ms = 6_000
    assert story.go_on(LOOK_MS) == ["stalled"]


def test_a_broker_that_has_halted_says_nothing_about_the_network() -> None:
    story = Story()
    story.driver.still_ms, story.driver.halted = 60_000, "It has diverged."
    assert "stalled" not in story.go_on(60_000, "halted")


def test_without_a_quorum_a_broker_says_that_all_stands_still_and_who_is_away(tmp_path: Path) -> None:
    timeouts = msgspec.structs.replace(TIMEOUTS, freshness=3_000)

    async def logged(network: LocalNetwork, fits: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        async with asyncio.timeout(SECONDS):
            while True:
                if found := [line for line in network.log("alpha-1") if fits(line)]:
                    return found[-1]
                await asyncio.sleep(0.1)

    async def story(network: LocalNetwork) -> None:
        async with client(network, "alpha-1", "alpha", "admin") as admin:
            assert (await admin.operate(registration(network.identity("alpha", "alice")))).outcome == Done()
        await logged(network, lambda line: line["event"] == "ready")
        network.kill("gamma-1")
        network.kill("delta-1")
        away = await logged(
            network, lambda line: line["event"] == "stalled" and line["down"] == "gamma-1, delta-1"
        )
        assert away["peers_up"] == 1
        await logged(network, lambda line: line["event"] == "not_ready" and "gamma-1" in str(line["why"]))
        network.start("gamma-1")
        await logged(network, lambda line: line["event"] == "resumed")
        await logged(network, lambda line: line["event"] == "ready" and line["time"] > away["time"])  # type: ignore[operator]
        leaders = {line["leader"] for line in network.log("alpha-1") if line["event"] == "view_change"}
        assert leaders <= set(network.names)

    with LocalNetwork(tmp_path / "net", timeouts=timeouts) as network:
        network.start()
        asyncio.run(story(network))
