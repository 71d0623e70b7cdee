"""Measurements of real brokers count what is on the ledger, and take everything away when they end."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest

from parley.bench.errors import Unavailable
from parley.bench.fanout import subscriber_jobs
from parley.bench.figures import Readings
from parley.bench.measure import TOPIC, measure, publisher_jobs
from parley.bench.network import Network
from parley.node.config import ConfigError

SECONDS = 120.0  # longer than anything takes


async def measured(directory: Path, subscribers: int) -> tuple[Readings, int, list[int]]:
    """One window on one broker; what was read, the messages on the ledger, and the processes."""
    async with asyncio.timeout(SECONDS), Network(directory, 1).running() as network:
        await network.create_topics([TOPIC])
        progress, reading = subscriber_jobs(network, await network.register("reader", subscribers), 2)
        jobs = publisher_jobs(
            network, await network.register("load", 1), size=64, batch=10, in_flight=4, progress=progress
        )
        readings = await measure(network, [*jobs, *reading], 1.0, warm_up=0.1)
        async with network.administrator() as client:
            topic = await client.topic(TOPIC)
        return readings, topic.heads[0].end, list(network.pids.values())


def test_what_is_counted_is_on_the_ledger_and_was_delivered_to_everybody(tmp_path: Path) -> None:
    subscribers = 3
    readings, messages, pids = asyncio.run(measured(tmp_path / "network", subscribers))
    publisher, *readers = readings.reports
    assert 0 < publisher.publications <= messages
    assert publisher.publications % 10 == 0
    assert len(publisher.latencies_us) == publisher.publications // 10
    assert len(readers) == 2
    assert all(reader.deliveries > 0 for reader in readers)
    delivered = sum(reader.deliveries for reader in readers)
    assert delivered <= subscribers * messages
    # At either end of the window nobody is ahead by more than what may be in flight, nor by more between two samples.
    assert abs(delivered - subscribers * publisher.publications) <= subscribers * 4 * (4 + 1) * 10
    assert {report.failed for report in readings.reports} == {0}
    assert readings.view_changes == 0  # one broker always agrees with itself
    assert list(readings.broker_cpu) == ["org-1-1"]
    assert set(readings.worker_cpu) == {"client-1", "subscribers-1", "subscribers-2"}
    assert all(us > 0 for us in readings.broker_cpu.values())
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_broker_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    network = Network(tmp_path / "network", 1)
    (network.brokers[0].folder / "consensus.key").write_text("nonsense")

    async def enter() -> None:
        async with network.running():
            pass

    with pytest.raises(Unavailable, match=r"org-1-1 ended by itself with code 2:\n.*consensus_key"):
        asyncio.run(enter())
    assert network.pids == {}


def test_settings_are_added_to_those_of_every_broker(tmp_path: Path) -> None:
    network = Network(
        tmp_path / "network", 2, {"limits": {"questions_in_flight": 77}, "log": {"level": "debug"}}
    )
    for broker in network.brokers:
        found = tomllib.loads(broker.config.read_text())
        assert found["limits"]["questions_in_flight"] == 77
        assert found["limits"]["requests_per_second"] == 1_000_000
        assert found["log"] == {"file": "log.jsonl", "level": "debug"}
        assert found["broker"] == broker.name


def test_settings_that_no_broker_takes_are_refused_before_one_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'limits'"):
        Network(tmp_path / "network", 1, {"limit": {"questions_in_flight": 77}})
