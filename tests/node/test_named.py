"""A broker that is killed, stopped, slowed by 300 ms or equivocates is named by the other three within 10 s.

Each of them names it in its log and in its metrics, and `parley status` shows that all three do. How long it took is told
by the brokers: a log line says since when a broker is down, or has the time at which it was written. The alerts that follow
are in `tests/ops/test_alerts.py`, and lies told to clients, which the client names, in `tests/client/test_lying_brokers.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.node.naming import (
    OTHERS,
    VICTIM,
    all_up,
    behind_proxies,
    has_named,
    measured,
    named,
    said,
    shown,
)
from tests.node.network import LocalNetwork
from tests.node.raw_client import client, message
from tests.node.watching import SETTINGS

from parley.cli.status_summary import Member, Shard
from parley.node.admin.client import set_faults

WITHIN = timedelta(seconds=10)  # a requirement
ALL_OTHERS = ", ".join(OTHERS)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path / "net", settings=SETTINGS, allow_faults=True) as network:
        yield network


def time_of(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(line["time"])


def by_name(shard: Shard) -> dict[str, Member]:
    return {one.name: one for one in shard.brokers}


async def is_down(network: LocalNetwork, **why: str) -> None:
    """Until the others say so of the victim, everywhere."""
    for line in await named(network, "peer_down", **why):
        assert timedelta(milliseconds=line["down_ms"]) < WITHIN
    await measured(network, "parley_peer_up", lambda value: value == 0)

    def holds(shard: Shard) -> bool:
        return by_name(shard)[VICTIM].down_to == list(OTHERS)

    shard, text = await shown(network, holds)
    assert f"{VICTIM} is down for {ALL_OTHERS}" in text
    assert [one.name for one in shard.brokers if one.state == "down" or one.down_to] == [VICTIM]
    assert (shard.quorum, shard.tolerable_failures) == (True, 0)


def test_a_killed_broker_is_named_by_the_other_three(network: LocalNetwork) -> None:
    async def story() -> None:
        network.start()
        await all_up(network)
        network.kill(VICTIM)
        await is_down(network, why="cannot be reached")
        network.start(VICTIM)
        await named(network, "peer_up")
        shard, _ = await shown(network, lambda shard: not by_name(shard)[VICTIM].down_to)
        assert by_name(shard)[VICTIM].round_trip_ms is not None

    asyncio.run(story())


def test_a_stopped_broker_is_named_by_the_other_three_and_names_none_of_them_when_it_goes_on(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        network.start()
        await all_up(network)
        accused = accusations(network)
        os.kill(network.pid(VICTIM), signal.SIGSTOP)
        try:
            await is_down(network)
        finally:
            os.kill(network.pid(VICTIM), signal.SIGCONT)
        await named(network, "peer_up")
        async with client(network, VICTIM, "alpha", "admin") as admin:
            await admin.submit(admin.publication("no-topic", message(b"")))
        assert accusations(network) == accused

    asyncio.run(story())


def accusations(network: LocalNetwork) -> int:
    """How often the victim has called another broker down."""
    return len([line for line in network.log(VICTIM) if line["event"] == "peer_down"])


def links_of(broker: str, others: Iterable[str]) -> list[tuple[str, str]]:
    return [link for other in others for link in ((broker, other), (other, broker))]


@pytest.mark.parametrize("each_way", [0.15, 0.3], ids=["300 ms there and back", "300 ms each way"])
def test_a_broker_slowed_by_300_ms_is_named_by_the_other_three_and_names_none_of_them(
    network: LocalNetwork, each_way: float
) -> None:
    async def story() -> None:
        async with behind_proxies(network, links_of(VICTIM, OTHERS)) as proxies:
            network.start()
            await all_up(network)
            for proxy in proxies:
                proxy.delay = each_way
            slowed = datetime.now(UTC)
            for line in await said(network, "peer_slow"):
                assert time_of(line) - slowed < WITHIN
                assert line["round_trip_ms"] >= 2_000 * each_way - 1
            await measured(network, "parley_peer_slow", lambda value: value == 1)
            shard, text = await shown(network, lambda shard: by_name(shard)[VICTIM].slow_to == list(OTHERS))
            assert f"{VICTIM} is slow for {ALL_OTHERS}" in text
            assert [one.name for one in shard.brokers if one.slow_to] == [VICTIM]
            for proxy in proxies:
                proxy.delay = 0.0
            await said(network, "peer_fast")
            assert has_named(network, VICTIM, "peer_slow") == set()

    asyncio.run(story())


def test_a_broker_that_equivocates_is_named_by_the_other_three(network: LocalNetwork) -> None:
    async def story() -> None:
        network.start()
        await all_up(network)
        await asyncio.to_thread(set_faults, network.config(VICTIM).parent, ("equivocate",))
        for line in await said(network, "misbehaviour"):
            assert time_of(line) - switched_on(network) < WITHIN
            assert line["kind"] == "proposals"
        await measured(network, "parley_byzantine_evidence_total", bool, kind="proposals")
        await measured(network, "parley_evidence_records", bool)

        def holds(shard: Shard) -> bool:
            return all(by_name(shard)[name].misbehaviour for name in OTHERS)

        shard, text = await shown(network, holds)
        for name in OTHERS:
            assert {one.broker for one in by_name(shard)[name].misbehaviour} == {VICTIM}
            assert has_named(network, name, "misbehaviour") == {VICTIM}
        assert any(line.startswith(f"{VICTIM} signed two proposals in view ") for line in text)
        assert has_named(network, VICTIM, "misbehaviour") == set()

    asyncio.run(story())


def switched_on(network: LocalNetwork) -> datetime:
    """When the victim began to lie, as it says itself."""
    (line,) = [line for line in network.log(VICTIM) if line["event"] == "faults"]
    return time_of(line)
