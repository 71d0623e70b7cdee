"""A broker that is cut off, or sends garbage, is named by those that miss it. The killed, stopped and slow: `test_named.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.node.naming import OTHERS, VICTIM, all_up, behind_proxies, has_said, is_last, lines, named, until
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client, message
from tests.node.test_hostile import dial_as, ended

from parley.localnet.proxy import Flow
from parley.net import messages as net
from parley.node.peers import STRIKES
from parley.node.provision import broker_directory


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path / "net") as network:
        yield network


async def peers(network: LocalNetwork, broker: str) -> dict[str, net.PeerStatus]:
    async with client(network, broker, "alpha", "admin") as admin:
        return {one.name: one for one in (await admin.status()).peers}


def test_a_link_that_swallows_everything_is_noticed_and_made_again(network: LocalNetwork) -> None:
    async def story() -> None:
        async with behind_proxies(network, [(name, VICTIM) for name in OTHERS]) as proxies:
            network.start()
            await all_up(network)
            for proxy in proxies:
                proxy.cut(Flow.SWALLOWED)
            await named(network, "peer_down", why="does not answer")
            for proxy in proxies:
                proxy.heal()
            await named(network, "peer_up")

    asyncio.run(story())


async def send_garbage(network: LocalNetwork) -> None:
    """To one broker, in the victim's name, until that ends the connection."""
    home = broker_directory(network.directory, VICTIM)
    stream = await dial_as(network, "alpha-1", home / "tls.crt", home / "tls.key")
    stream.write(net.encode(net.PeerHello(net.VERSION, network.genesis.chain, network.genesis.start_time)))
    for _ in range(STRIKES):
        stream.write(b"garbage")
    assert await ended(stream)


def test_a_broker_that_sends_garbage_is_down_for_who_cut_it_off_and_nobody_blames_a_clock(
    network: LocalNetwork,
) -> None:
    async def story() -> None:
        network.start()
        await all_up(network)
        async with asyncio.timeout(SECONDS):
            while not has_said(
                network, "alpha-1", "peer_cut_off"
            ):  # its honest self may come back in between
                await send_garbage(network)
        assert not (await peers(network, "alpha-1"))[VICTIM].connected
        await until(partial(is_last, network, "alpha-1", "peer_down", why="sends garbage"))
        assert (await peers(network, "beta-1"))[VICTIM].connected
        for name in OTHERS:
            async with client(network, name, "alpha", "admin") as admin:
                await admin.submit(admin.publication("no-topic", message(b"")))
                assert (await admin.status()).note == ""
        assert len(lines(network, "alpha-1", "peer_cut_off")) == 1
        for name in network.names:
            assert not [line for line in network.log(name) if line["event"] == "clock_off"]

    asyncio.run(story())
