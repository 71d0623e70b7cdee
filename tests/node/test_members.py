"""A shard's members by their places in its committee, whatever their places among the brokers of the network."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from msgspec.structs import replace
from tests.application.world import ORGANISATIONS, make_genesis

from parley.consensus.committee import committee_of
from parley.consensus.errors import Reason
from parley.model.genesis import Shard, one_shard
from parley.net.messages import Envelope, decode_envelope
from parley.node.members import Members
from parley.node.peers import Peers

ALL = one_shard(make_genesis().brokers)[0].members
GENESIS = replace(make_genesis(), shards=(Shard(ALL), Shard((ALL[1], ALL[3]))))
assert len(ORGANISATIONS) == 4


class Wires:
    """A transport that remembers."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Envelope]] = []
        self.counted: list[tuple[int, Reason]] = []

    def send(self, to: int, data: bytes) -> None:
        self.sent.append((to, decode_envelope(data)))

    def refused(self, broker: int, reason: Reason, _detail: str) -> None:
        self.counted.append((broker, reason))


class Heard:
    """A replica's driver that remembers."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, tuple[bytes, ...]]] = []
        self.changes: list[tuple[int, bool]] = []

    async def receive(self, sender: int, /, *messages: bytes) -> None:
        self.messages.append((sender, messages))

    def peer_changed(self, index: int, *, up: bool) -> None:
        self.changes.append((index, up))


def made() -> tuple[Members, Wires, Heard]:
    wires, heard = Wires(), Heard()
    members = Members(cast("Peers", cast("Any", wires)), committee_of(GENESIS, 1), GENESIS.brokers)
    members.hear(heard)
    return members, wires, heard


def test_what_a_replica_sends_goes_to_the_members_in_an_envelope_of_its_shard() -> None:
    members, wires, _ = made()
    members.send(1, b"one")
    members.broadcast(b"all")
    assert wires.sent == [
        (3, Envelope(1, 0, b"one")),
        (1, Envelope(1, 0, b"all")),
        (3, Envelope(1, 0, b"all")),
    ]


def test_what_members_send_comes_under_their_index_in_one_step() -> None:
    members, wires, heard = made()
    asyncio.run(members.receive(3, [Envelope(1, 0, b"one"), Envelope(1, 0, b"two")]))
    assert heard.messages == [(1, (b"one", b"two"))]
    assert wires.counted == []


def test_others_and_other_epochs_are_refused_and_counted() -> None:
    members, wires, heard = made()
    asyncio.run(members.receive(0, [Envelope(1, 0, b"one")]))
    asyncio.run(members.receive(1, [Envelope(1, 7, b"old"), Envelope(1, 0, b"new")]))
    assert wires.counted == [(0, Reason.UNKNOWN_SIGNER), (1, Reason.WRONG_EPOCH)]
    assert heard.messages == [(0, (b"new",))]
    members.refused(1, Reason.STALE, "")
    assert wires.counted[-1] == (3, Reason.STALE)


def test_a_replica_learns_of_connections_to_members_only() -> None:
    members, _, heard = made()
    for broker in range(4):
        members.changed(broker, up=broker > 1)
    assert heard.changes == [(0, False), (1, True)]
