"""No source, and no number of sources, keeps others from a broker's door; the address of each broker has places of its own."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.net.network import LOOPBACK, LOOPS, NOW, SECONDS, Files

from parley.net.frames import FrameStream
from parley.net.limits import Ranking
from parley.net.listener import Listener, Visit, listen
from parley.net.tls import Address, client_context, server_context, tls_name
from parley.node.certificates import create_authority, issue
from parley.node.door import ENDING, HANDSHAKES, HANDSHAKES_PER_BROKER, Door
from parley.node.telemetry.tally import DISPLACED, FULL, HANDSHAKE, Tally

Run = Callable[[Coroutine[None, None, None]], None]
every_loop = pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])

NAME = tls_name("b1", "org-b")
BROKER, OTHER_BROKER, CLIENT = "127.0.0.2", "127.0.0.3", "127.0.0.1"


class Guests:
    """Connections in memory: who is at the door, and who was sent away."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.visits: list[Visit] = []
        self.ended: Counter[str] = Counter()

    def come(self, source: str, number: int = 1) -> int:
        """How many were let in."""
        return sum(self._come(source) for _ in range(number))

    def _come(self, source: str) -> bool:
        guests = self

        class Guest(Visit):
            def end(self) -> None:
                super().end()
                guests.ended[self.source] += 1
                guests.door.leave(self)

        with socket.socket() as connection:
            visit = Guest(source, connection)
        self.visits.append(visit)
        return self.door.enter(visit)


def door(**brokers: int) -> Door:
    sources = {source.replace("_", "."): number for source, number in brokers.items()}
    return Door(structlog.get_logger(), lambda: 0, brokers=sources)


@pytest.fixture(autouse=True)
def _quiet() -> Iterable[None]:
    with capture_logs():
        yield


def test_a_newcomer_takes_the_place_of_the_oldest_of_who_has_most() -> None:
    guests = Guests(door())
    guests.come("10.0.0.1", HANDSHAKES - 10)
    guests.come("10.1.0.1", 10)
    assert guests.come("10.2.0.1") == 1
    assert guests.ended == {"10.0.0.1": 1}
    assert not guests.door._crowd.remove(guests.visits[0])


def test_many_addresses_of_one_network_count_as_one() -> None:
    guests = Guests(door())
    for number in range(200):
        guests.come(f"10.0.0.{number}")
    guests.come("10.1.0.1", HANDSHAKES - 200)
    guests.come("10.2.0.1")
    assert [source.rpartition(".")[0] for source in guests.ended] == ["10.0.0"]


def test_who_has_as_many_as_anybody_else_makes_room_itself() -> None:
    guests = Guests(door())
    guests.come("10.0.0.1", HANDSHAKES // 2)
    guests.come("10.1.0.1", HANDSHAKES // 2)
    guests.come("10.1.0.1", 5)
    assert guests.ended == {"10.1.0.1": 5}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=400, max_size=600))
def test_who_has_less_than_its_share_is_never_sent_away(steps: list[tuple[int, int]]) -> None:
    guests, sources = Guests(door()), {f"10.{network}.0.{host}" for network, host in steps}
    networks = {source.rpartition(".")[0] for source in sources}
    came: Counter[str] = Counter()
    with capture_logs():
        for network, host in steps:
            guests.come(f"10.{network}.0.{host}")
            came[f"10.{network}.0"] += 1
    sent_away = {source.rpartition(".")[0] for source in guests.ended}
    assert not sent_away & {network for network in networks if came[network] <= HANDSHAKES // len(networks)}


def test_the_address_of_each_broker_has_places_that_no_other_can_take() -> None:
    guests = Guests(door(**{"10_0_0_1": 1, "10_0_0_2": 2}))
    guests.come("10.9.0.1", 2 * HANDSHAKES)
    guests.come("10.0.0.1", 10 * HANDSHAKES)
    before = guests.ended.copy()
    assert guests.come("10.0.0.2", 2 * HANDSHAKES_PER_BROKER) == 2 * HANDSHAKES_PER_BROKER
    assert guests.ended == before
    guests.come("10.9.0.1", 2 * HANDSHAKES)
    guests.come("10.0.0.1", 2 * HANDSHAKES)
    assert guests.ended["10.0.0.2"] == 0


def test_beyond_its_own_places_the_address_of_a_broker_shares_those_of_all() -> None:
    at_the_door = door(**{BROKER.replace(".", "_"): 1})
    guests = Guests(at_the_door)
    assert guests.come(BROKER, HANDSHAKES_PER_BROKER) == HANDSHAKES_PER_BROKER
    assert at_the_door._crowd.count == 0
    assert guests.come(BROKER, 5) == 5
    assert at_the_door._crowd.count == 5


def test_who_is_known_needs_no_place_of_a_newcomer() -> None:
    guests = Guests(door())
    guests.come("10.0.0.1", HANDSHAKES)
    with guests.door.known(guests.visits[0]):
        guests.come("10.1.0.1")
        assert not guests.ended
    guests.come("10.1.0.1")
    assert guests.ended


def test_connections_that_were_ended_and_are_still_open_are_bounded() -> None:
    tally = Tally()
    closed = Door(structlog.get_logger(), lambda: 0, tally=tally)
    with socket.socket() as connection:
        visits = [Visit("10.0.0.1", connection) for _ in range(HANDSHAKES + ENDING + 1)]
    assert [closed.enter(visit) for visit in visits] == [True] * (HANDSHAKES + ENDING) + [False]
    assert tally.turned_away == {DISPLACED: ENDING, FULL: 1}
    closed.failed(visits[0], "the other side closed it")
    assert tally.turned_away[HANDSHAKE] == 0  # it was counted as displaced
    for visit in visits[:-1]:
        closed.leave(visit)
    assert (closed._crowd.count, len(closed._ending)) == (0, 0)
    assert not closed._crowd._visits
    assert not closed._crowd._sources
    assert len(closed._crowd._networks) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_a_ranking_counts_as_a_plain_list_would(steps: list[tuple[str, bool]]) -> None:
    ranking, members = Ranking(), Counter[str]()
    for key, comes in steps:
        if comes:
            ranking.add(key)
            members[key] += 1
        elif members[key]:
            ranking.remove(key)
            members[key] -= 1
        assert ranking.most == max(members.values(), default=0)
        assert {one: ranking[one] for one in "abcd"} == {one: members[one] for one in "abcd"}
        assert len(ranking) == sum(count > 0 for count in members.values())
        if ranking.most:
            assert members[ranking.largest] == ranking.most


# -- with real connections -----------------------------------------------------------------------------------------------


class Stage:
    def __init__(self, folder: Path) -> None:
        self._authority = create_authority("org-b", now=NOW)
        files = Files.write(folder, "b1", issue(self._authority, "b1", "org-b", now=NOW))
        self._server = server_context(files.certificate, files.key, [self._authority.certificate])
        self.door = door(**{"127_0_0_2": 1, "127_0_0_3": 1})

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Listener]:
        listener = listen(LOOPBACK, self._server, self.door, self._serve, handshake_seconds=SECONDS)
        try:
            yield listener
        finally:
            await listener.close()

    async def _serve(self, stream: FrameStream, visit: Visit) -> None:
        with self.door.known(visit):
            while (frame := await stream.read()) is not None:
                stream.write(frame)

    async def is_served(self, address: Address, source: str) -> bool:
        """Whether a handshake and a word from this source are answered."""
        reader, writer = await asyncio.open_connection(
            address.host,
            address.port,
            ssl=client_context(self._authority.certificate),
            server_hostname=NAME,
            local_addr=(source, 0),
        )
        stream = FrameStream(reader, writer)
        stream.write(b"here I am")
        try:
            return await stream.read() == b"here I am"
        finally:
            await stream.wait_closed()


async def hold(address: Address, source: str, number: int) -> list[socket.socket]:
    """Open connections that never begin a handshake."""
    loop, held = asyncio.get_running_loop(), []
    for _ in range(number):
        one = socket.socket()
        one.setblocking(False)
        one.bind((source, 0))
        await loop.sock_connect(one, (address.host, address.port))
        held.append(one)
    return held


@every_loop
@pytest.mark.parametrize("addresses", [1, 6, 12])
def test_addresses_that_hold_handshakes_open_do_not_keep_a_client_away(
    run: Run, tmp_path: Path, addresses: int
) -> None:
    async def story() -> None:
        stage, held = Stage(tmp_path), []
        async with stage.open() as listener:
            for number in range(addresses):
                held += await hold(listener.address, f"127.0.0.{10 + number}", 2 * HANDSHAKES // addresses)
            assert await stage.is_served(listener.address, CLIENT)
            for one in held:
                one.close()

    run(asyncio.wait_for(story(), SECONDS))


@every_loop
def test_a_flood_from_the_address_of_one_broker_does_not_keep_another_away(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        async with stage.open() as listener:
            held = await hold(listener.address, BROKER, 2 * HANDSHAKES)
            for _ in range(3):
                assert await stage.is_served(listener.address, OTHER_BROKER)
            assert await stage.is_served(listener.address, BROKER)
            for one in held:
                one.close()

    run(asyncio.wait_for(story(), SECONDS))
