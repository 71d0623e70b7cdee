from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.net.network import LOOPBACK, LOOPS, NOW, SECONDS, Files, OpenDoor, alone, echo, listening

from parley.net.frames import FrameStream
from parley.net.listener import ListenError, Visit, listen
from parley.net.tls import Address, Unreachable, client_context, connect, server_context, tls_name
from parley.node.certificates import create_authority, issue

Run = Callable[[Coroutine[None, None, None]], None]
every_loop = pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])

NAME = tls_name("b1", "org-b")


class World:
    """One broker and its clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = create_authority("org-b", now=NOW)
        self.files = Files.write(folder, "b1", issue(self.authority, "b1", "org-b", now=NOW))

    def server(self) -> ssl.SSLContext:
        return server_context(self.files.certificate, self.files.key, [self.authority.certificate])

    async def dial(self, address: Address) -> FrameStream:
        return await connect(address, client_context(self.authority.certificate), NAME, timeout=SECONDS)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@every_loop
def test_who_does_not_pass_the_door_gets_no_handshake(run: Run, world: World) -> None:
    async def main() -> None:
        door = OpenDoor(room=1)
        async with listening(world.server(), echo, door) as listener:
            first = await world.dial(listener.address)
            with pytest.raises(Unreachable):
                await world.dial(listener.address)
            first.write(b"still here")
            assert await first.read() == b"still here"
            await first.wait_closed()
        assert door.failures.empty()

    run(main())


@every_loop
def test_a_place_is_free_again_once_its_connection_is_gone(run: Run, world: World) -> None:
    async def main() -> None:
        door = OpenDoor(room=1)
        async with listening(world.server(), echo, door) as listener:
            for _ in range(3):
                stream = await world.dial(listener.address)
                await stream.wait_closed()
                await door.left.wait()
                door.left.clear()

    run(main())


@every_loop
def test_a_listener_that_closes_ends_its_connections(run: Run, world: World) -> None:
    async def main() -> None:
        door = OpenDoor()
        listener = listen(LOOPBACK, world.server(), door, alone(echo))
        stream = await world.dial(listener.address)
        stream.write(b"hello")
        assert await stream.read() == b"hello"
        halfway, other = await asyncio.open_connection(listener.address.host, listener.address.port)
        await listener.close()
        assert door.inside == 0
        assert await stream.read() is None
        assert await halfway.read() == b""
        await stream.wait_closed()
        other.close()
        await other.wait_closed()
        with pytest.raises(Unreachable):
            await world.dial(listener.address)

    run(main())


@every_loop
def test_a_connection_that_was_just_taken_is_closed_with_the_listener(run: Run, world: World) -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        class Herald(OpenDoor):
            def enter(self, visit: Visit) -> bool:
                arrived.set()
                return super().enter(visit)

        door = Herald()
        listener = listen(LOOPBACK, world.server(), door, alone(echo))
        reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
        await arrived.wait()
        await listener.close()
        assert door.inside == 0
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    run(main())


@every_loop
def test_a_connection_taken_in_the_very_turn_of_closing_is_not_left_behind(run: Run, world: World) -> None:
    async def main() -> None:
        door = OpenDoor()
        listener = listen(LOOPBACK, world.server(), door, alone(echo))
        with socket.create_connection((listener.address.host, listener.address.port)) as client:
            listener._accept()
            assert door.inside == 1
            await listener.close()
            assert door.inside == 0
            assert await asyncio.to_thread(client.recv, 1) == b""

    run(main())


@every_loop
def test_a_failure_while_serving_is_reported_and_ends_only_its_connection(run: Run, world: World) -> None:
    async def main() -> None:
        reported: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def serve(stream: FrameStream) -> None:
            if await stream.read() == b"stumble":
                raise KeyError("a mistake")
            await echo(stream)

        async with listening(world.server(), serve) as listener:
            asyncio.get_running_loop().set_exception_handler(lambda _, fault: reported.put_nowait(fault))
            good, bad = await world.dial(listener.address), await world.dial(listener.address)
            good.write(b"walk")
            bad.write(b"stumble")
            assert await bad.read() is None
            assert isinstance((await reported.get())["exception"], KeyError)
            good.write(b"still here")
            assert await good.read() == b"still here"
            await good.wait_closed()
            await bad.wait_closed()

    run(main())


@every_loop
def test_a_listener_without_free_descriptors_goes_on_when_there_are_some(run: Run, world: World) -> None:
    async def main() -> None:
        async with listening(world.server(), echo) as listener:
            context = client_context(world.authority.certificate)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            client = socket.socket()
            client.setblocking(False)
            free = os.dup(0)  # the lowest that is free
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                await asyncio.get_running_loop().sock_connect(
                    client, (listener.address.host, listener.address.port)
                )
                while listener._pause is None:  # noqa: ASYNC110 - until accepting has failed
                    await asyncio.sleep(0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            reader, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname=NAME)
            stream = FrameStream(reader, writer)
            stream.write(b"patience")
            assert await stream.read() == b"patience"
            await stream.wait_closed()

    run(main())


def test_a_port_that_is_taken_is_named(world: World) -> None:
    async def main() -> None:
        async with listening(world.server(), echo) as listener:
            with pytest.raises(ListenError, match=f"cannot listen on {listener.address}: .*in use"):
                listen(listener.address, world.server(), OpenDoor(), alone(echo))

    asyncio.run(main())
