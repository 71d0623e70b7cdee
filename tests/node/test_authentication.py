"""Nobody holds a connection open without saying who they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.node.network import SECONDS

from parley.model.refusals import NotAuthenticated, Refused
from parley.net import messages as net
from parley.net.frames import FrameError, FrameStream
from parley.node.access import Caller
from parley.node.authentication import Authenticator
from parley.node.provision import provision_network

NOW = 1_700_000_000_000


@pytest.fixture
def authenticator(tmp_path: Path) -> Authenticator:
    genesis = provision_network(tmp_path / "net", organisations=("solo",), network="n", start_time=NOW)
    return Authenticator(genesis, "solo-1", (0,), bytes(32), seconds=0.05)


Met = Caller | Refused | FrameError


async def meet(authenticator: Authenticator, *frames: net.Opening, leave: bool = False) -> Met:
    """What the broker makes of somebody who sends these frames, and then leaves or stays."""
    met: asyncio.Future[Met] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = FrameStream(reader, writer)
        try:
            met.set_result((await authenticator.welcome(stream, NOW))[0])
        except (Refused, FrameError) as refused:
            met.set_result(refused)
        await stream.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stream = FrameStream(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    for frame in frames:
        stream.write(net.encode(frame))
    if leave:
        stream.close()
    async with asyncio.timeout(SECONDS):
        found = await met
    await stream.wait_closed()
    server.close()
    await server.wait_closed()
    return found


def test_who_says_nothing_is_refused_in_time(authenticator: Authenticator) -> None:
    found = asyncio.run(meet(authenticator))
    assert isinstance(found, Refused)
    assert (found.code, "within 0.05 s" in found.detail) == (NotAuthenticated.code, True)


def test_who_leaves_at_once_is_nobody(authenticator: Authenticator) -> None:
    found = asyncio.run(meet(authenticator, leave=True))
    assert not isinstance(found, Caller)


def test_a_broker_without_a_certificate_is_told_to_show_one(authenticator: Authenticator) -> None:
    hello = net.PeerHello(net.VERSION, authenticator.genesis.chain, NOW)
    found = asyncio.run(meet(authenticator, hello))
    assert isinstance(found, Refused)
    assert (found.code, "certificate" in found.detail) == (NotAuthenticated.code, True)
