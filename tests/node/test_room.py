"""A broker whose disk fills up: first it takes no publications, then it stops in order; with more room it is back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration
from tests.node.test_assemble import OneBroker, connected, running
from tests.node.test_crashes import patiently, run_node

from parley.model.receipts import Done
from parley.model.refusals import Busy
from parley.modules.publishing.receipts import Published
from parley.modules.topics.operations import CreateTopic, DeleteTopic, Policy
from parley.net import messages as net
from parley.node import room as rooms
from parley.node.config import ConfigError, load
from parley.node.room import FULL_BYTES, LOW_BYTES, MIB, Room


def filled(path: Path, size: int) -> Path:
    (path / "below").mkdir()
    (path / "one").write_bytes(bytes(size // 2))
    (path / "below" / "two").write_bytes(bytes(size - size // 2))
    return path


@pytest.mark.parametrize(
    ("used", "free", "refused", "full"),
    [
        (899, LOW_BYTES, False, False),
        (900, LOW_BYTES, True, False),
        (999, LOW_BYTES, True, False),
        (1_000, LOW_BYTES, True, True),
        (0, LOW_BYTES - 1, True, False),
        (0, FULL_BYTES, True, False),
        (0, FULL_BYTES - 1, True, True),
    ],
)
def test_room_is_short_from_nine_tenths_or_little_free_space_on(
    used: int, free: int, refused: bool, full: bool, tmp_path: Path
) -> None:
    room = Room(filled(tmp_path, used), 1_000, lambda _: free)
    assert (bool(room.refusal), bool(room.full), bool(room.note)) == (refused, full, refused)


def test_without_a_limit_only_free_space_counts(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "bytes_in", lambda _: pytest.fail("nobody asked for them, and they may be many"))
        room = Room(filled(tmp_path, 10_000), 0, lambda _: LOW_BYTES)
    assert (room.refusal, room.full, room.note) == (None, "", "")


def test_a_file_with_two_names_takes_its_room_once(tmp_path: Path) -> None:
    """While a store is copied, a folder in it has links to its files."""
    (tmp_path / "copying").mkdir()
    (tmp_path / "one").write_bytes(bytes(1_000))
    (tmp_path / "copying" / "one").hardlink_to(tmp_path / "one")
    (tmp_path / "copying" / "two").write_bytes(bytes(10))
    assert rooms.bytes_in(tmp_path) == 1_010


def test_what_is_freed_is_seen_and_what_cannot_be_measured_is_as_it_was(tmp_path: Path) -> None:
    room = Room(filled(tmp_path, 1_000), 1_000, lambda _: LOW_BYTES)
    assert room.full
    (tmp_path / "one").unlink()
    room.look()
    assert not room.refusal
    (tmp_path / "below" / "two").unlink()
    (tmp_path / "below").rmdir()
    tmp_path.rmdir()
    room.look()
    assert not room.full


def test_a_limit_is_a_number_of_bytes(tmp_path: Path) -> None:
    network = OneBroker(tmp_path / "net", "[storage]\nmax_bytes = -1\n")
    with pytest.raises(ConfigError, match=r"storage\.max_bytes: expected an integer between 0"):
        load(network.config("solo-1"))


def test_a_nearly_full_broker_takes_operations_and_no_publications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = OneBroker(tmp_path / "net")

    async def story() -> None:
        async with running(network):
            admin = await connected(network, "admin")
            assert (await admin.operate(registration(network.identity("solo", "alice")))).outcome == Done()
            assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()
            alice = await connected(network, "alice")
            first, second = (alice.publication("t", message(text)) for text in (b"one", b"two"))
            assert (await alice.submit(first)).outcome == Published(0)
            monkeypatch.setattr(rooms, "LOW_BYTES", 2**62)
            refused = await alice.ask(net.Submit(50, second[1]), net.Failure)
            assert refused.code == Busy.code
            assert "disk is nearly full" in refused.detail
            assert "other brokers take batches" in refused.detail
            assert "nearly full" in (await alice.status()).note
            # What has a receipt is told again, and what makes room is done.
            assert (await alice.submit(first)).outcome == Published(0)
            assert (await admin.operate(DeleteTopic("t"))).outcome == Done()
            for one in (admin, alice):
                await one.stream.wait_closed()

    asyncio.run(story())


def test_a_full_broker_stops_and_comes_back_with_more_room_while_the_others_go_on(tmp_path: Path) -> None:
    size = 100_000

    async def publish(publisher: RawClient, number: int) -> int:
        """Submit batches until the small broker has ended; how many were published."""
        done = number
        async with asyncio.timeout(SECONDS):
            while network.is_running("delta-1"):
                batch = publisher.publication("log", message(os.urandom(size)))
                assert (await publisher.submit(batch)).outcome == Published(done)
                done += 1
        return done

    async def story() -> None:
        async with client(network, "alpha-1", "alpha", "admin") as admin:
            assert (await admin.operate(registration(network.identity("alpha", "alice")))).outcome == Done()
            assert (await admin.operate(CreateTopic("log", 1, Policy(), "", ""))).outcome == Done()
        async with client(network, "alpha-1", "alpha", "alice") as publisher:
            count = await publish(publisher, 0)
            events = {str(line["event"]): line for line in network.log("delta-1")}
            assert "raise storage.max_bytes" in str(events["disk_full"]["why"])
            assert "stopped" in events
            assert network.stop("delta-1") == 1
            limit(
                network, "delta-1", MIB
            )  # well below what it has: tidying up when it stops may free a little
            ended = run_node(network, "delta-1")
            assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
            assert "raise storage.max_bytes" in ended.stderr
            assert (
                await publisher.submit(publisher.publication("log", message(b"on")))
            ).outcome == Published(count)
        limit(network, "delta-1", 0)
        network.start("delta-1")
        async with client(network, "delta-1", "alpha", "alice") as reader:
            receipts = await patiently(reader, "log", count=count + 1)
            assert receipts[0].outcome == Published(0)

    with LocalNetwork(tmp_path / "net") as network:
        limit(network, "delta-1", 2 * MIB)
        network.start()
        asyncio.run(story())


def limit(network: LocalNetwork, broker: str, size: int) -> None:
    path = network.config(broker)
    text, _, _ = path.read_text().partition("\n[storage]\n")
    path.write_text(f"{text}\n[storage]\nmax_bytes = {size}\n")
