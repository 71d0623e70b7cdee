"""The other brokers as a broker's replica learns of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from parley.net.messages import Envelope
from parley.node.clock import ClockWatch
from parley.node.config import load
from parley.node.peers import Peers
from parley.node.provision import broker_directory, provision_network
from parley.node.shown import load_shown

NOW = int(time.time() * 1_000)


def test_at_the_start_no_broker_can_be_reached_until_it_is(tmp_path: Path) -> None:
    """A broker that was gone before another one started would else be waited for as if it were there."""
    provision_network(tmp_path / "net", organisations=("alpha", "beta", "gamma"), network="n", start_time=NOW)
    config = load(broker_directory(tmp_path / "net", "beta-1") / "broker.toml")
    learned: list[tuple[int, bool]] = []

    class Inbox:
        async def receive(self, _broker: int, _envelopes: Sequence[Envelope]) -> None: ...

        def changed(self, broker: int, *, up: bool) -> None:
            learned.append((broker, up))

    async def story() -> None:
        peers = Peers(config, load_shown(config, NOW), ClockWatch(3, 1), structlog.get_logger(), lambda: NOW)
        tasks = peers.start({0: Inbox()})
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    with structlog.testing.capture_logs():
        asyncio.run(story())
    assert learned == [(0, False), (2, False)]
