"""A broker says what is true of itself when nothing is certified: that it waits for others, or that it is behind them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client

from parley.model.genesis import Timeouts
from parley.net.messages import Status
from parley.node.clock import ClockWatch
from parley.node.status import UNSETTLED, StatusReport
from parley.replica.replica import Replica

TIMEOUTS = Timeouts(view=500, longest_view=1_000, heartbeat=100, ack=3_000, freshness=2_000)
FRESH = 20_000
NOW = 1_000_000


def test_without_a_quorum_a_broker_waits_and_names_those_it_cannot_reach(tmp_path: Path) -> None:
    async def story(net: LocalNetwork) -> None:
        async with asyncio.timeout(SECONDS), client(net, "alpha-1", "alpha", "admin") as admin:
            while (await admin.status()).state != "ready":  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
            net.kill("gamma-1")
            net.kill("delta-1")
            said: list[Status] = []
            while not said or said[-1].state != "waiting":
                said.append(await admin.status())
                await asyncio.sleep(0.05)
            assert {one.state for one in said} <= {"ready", "waiting"}
            assert said[-1].note == "No quorum: cannot reach gamma-1 and delta-1; 3 of 4 brokers are needed."
            net.start("gamma-1")
            while (status := await admin.status()).state != "ready":  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
            assert status.note == ""

    with LocalNetwork(tmp_path / "net", timeouts=TIMEOUTS) as net:
        net.start()
        asyncio.run(story(net))


@dataclass
class Header:
    time: int
    executed_height: int = 1


@dataclass
class Anchor:
    header: Header


@dataclass
class Feed:
    anchor: Anchor


class Behind(Replica):
    """One that has executed all but so many of the blocks that are final."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    committed_height = executed_height = 1
    abstaining = ""

    @property
    def behind(self) -> int:
        return self.blocks


@dataclass
class Driver:
    replica: Replica
    halted: str | None = None


@dataclass
class Peers:
    up: tuple[int, ...]

    def connected(self, index: int) -> bool:
        return index in self.up


@dataclass
class Committee:
    names: tuple[str, ...] = ("a-1", "b-1", "c-1", "d-1")
    size: int = 4
    quorum: int = 3


@dataclass
class Network:
    timeouts: Timeouts = field(default_factory=lambda: Timeouts(freshness=FRESH))


@dataclass
class Config:
    index: int = 0
    genesis: Network = field(default_factory=Network)
    committee: Committee = field(default_factory=Committee)


class Store:
    def get(self, _: bytes) -> None:
        return None


def report(*, age: int, behind: int = 0, up: tuple[int, ...] = (1, 2, 3), ahead: int = 0) -> StatusReport:
    """Of a broker whose newest header is so old, which is so many blocks behind, and whose clock is so far ahead."""
    clock = ClockWatch(4, 0)
    for peer in up:
        clock.answered(peer, NOW - ahead, NOW, 0)
    parts = (
        Config(), Driver(Behind(behind)), Feed(Anchor(Header(NOW - age))), Peers(up), clock, None, Store(), None, None,
        lambda: NOW, None,
    )  # fmt: skip
    return StatusReport(*cast("tuple[object, ...]", parts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (report(age=FRESH), "ready"),
        (report(age=FRESH, up=(1,)), "ready"),
        (report(age=FRESH + 1), "waiting"),
        (report(age=FRESH + 1, up=()), "waiting"),
        (report(age=FRESH + 1, behind=UNSETTLED), "waiting"),
        (report(age=FRESH + 1, behind=UNSETTLED + 1), "lagging"),
        (report(age=FRESH + 5_000, ahead=5_000), "lagging"),  # its clock is wrong, the header is not old
        (report(age=FRESH + 5_001, ahead=5_000), "waiting"),
    ],
)
def test_an_old_header_is_a_broker_s_own_affair_only_if_it_is_behind_or_its_clock_is_wrong(
    said: StatusReport, state: str
) -> None:
    assert said.state() == state


def test_a_network_that_stands_still_with_a_quorum_is_told_from_one_without() -> None:
    assert report(age=30_000, up=(1, 3)).standstill() == (
        "The network stands still: nothing was certified for 30 s; it reaches 2 of 3 others."
    )
    assert report(age=30_000, up=(2,)).standstill() == (
        "No quorum: cannot reach b-1 and d-1; 3 of 4 brokers are needed."
    )
    assert report(age=30_000, behind=100, up=()).standstill() == ""
