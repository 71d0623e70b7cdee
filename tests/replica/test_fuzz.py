"""Whatever arrives, a replica neither fails nor changes by what it refuses, and it keeps only so much."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pytest
from tests.replica.driver import Cluster, Committee, Member, agree
from tests.replica.mutation import damaged_bytes, damaged_fields, random_bytes, signed_by

from parley.consensus.errors import Reason
from parley.consensus.errors import Refused as Refusal
from parley.consensus.forest import MAX_UNCERTIFIED
from parley.consensus.machine import WINDOW
from parley.mempool.fetch import MAX_FETCHES
from parley.mempool.pool import SLACK, Limits
from parley.replica import wire
from parley.replica.ports import Effect, Refused
from parley.sim.counter import encode_batch
from parley.sync.messages import BlocksResponse

INPUTS = 10_000 if os.environ.get("PARLEY_LONG") else 1_000
LIMITS = Limits(pending_batches=64, pending_bytes=64 * 1024, block_bytes=16 * 1024)


@dataclass(frozen=True)
class Observed:
    """What others and a restart can see of a replica."""

    view: int
    committed: int
    executed: int
    slots: tuple[bytes, ...]
    entries: dict[bytes, bytes]

    @classmethod
    def of(cls, member: Member) -> Observed:
        replica = member.replica
        return cls(
            replica.view,
            replica.committed_height,
            replica.executed_height,
            tuple(member.slots),
            dict(member.store.entries),
        )


class Traffic:
    """A network under load in which one member is away now and then, so that every kind of message is sent."""

    def __init__(self) -> None:
        self.cluster = Cluster(Committee(limits=LIMITS)).start()
        self.round = 0

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        """The messages that are on their way, round after round."""
        while True:
            yield from list(self.cluster.outbox.messages)
            self.round += 1
            author = self.round % 4
            self.cluster.submit(author, encode_batch(author, self.round // 4, b"load"))
            self.cluster.absent = {2} if self.round % 200 < 60 else set()
            self.cluster.round()


def inject(cluster: Cluster, sender: int, to: int, data: bytes) -> list[Effect]:
    """Deliver an input; if it is refused, nothing may have changed."""
    member = cluster.members[to]
    before, counted = Observed.of(member), member.replica.counters.total()
    effects = cluster.deliver(sender, to, data)
    refused = [effect for effect in effects if isinstance(effect, Refused)]
    assert member.replica.counters.total() == counted + len(refused)
    assert all(effect.sender == sender for effect in refused)
    if refused:
        assert Observed.of(member) == before, refused
        # A bad answer to a question leads to the next question; nothing else does anything.
        assert len(effects) == len(refused) or answers(data), effects
    return effects


def answers(data: bytes) -> bool:
    try:
        return isinstance(wire.decode(data), BlocksResponse)
    except Refusal:
        return False


def bounded(member: Member) -> None:
    replica, size = member.replica, member.committee.size
    machine, pool = replica._machine, replica._pool
    uncertified = [node for node in machine._forest._nodes.values() if not node.certified]
    assert len(uncertified) <= MAX_UNCERTIFIED
    assert len(machine._orphans) <= size
    assert len(machine._votes._by_view) <= WINDOW + 1
    assert all(len(votes) <= size for votes in machine._votes._by_view.values())
    assert len(machine._timeouts._timeouts) <= size
    assert len(pool._fetches._running) <= MAX_FETCHES
    for entry, share in enumerate(pool._shares):
        slack = 1 if entry == member.index else SLACK
        assert len(share.waiting) <= slack * LIMITS.pending_batches
        assert share.size <= slack * LIMITS.pending_bytes
    assert not replica._inputs
    assert not replica._effects


def still_works(cluster: Cluster) -> None:
    cluster.absent = set()
    height = max(cluster.heights())
    cluster.run_until(lambda: min(cluster.heights()) > height + 5)
    assert agree(cluster.members)
    for member in cluster.members:
        bounded(member)
        assert not member.halts


def test_noise_is_refused_and_changes_nothing() -> None:
    chance = Random(1)
    cluster = Cluster(Committee(limits=LIMITS)).start().run(50)
    for _ in range(INPUTS):
        sender, to = chance.sample(range(4), 2)
        effects = inject(cluster, sender, to, random_bytes(chance))
        assert [type(effect) for effect in effects] == [Refused]
    still_works(cluster)


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_fields])
def test_damaged_messages_are_refused_without_a_trace_or_taken_for_what_they_are(
    damage: Callable[[Random, bytes], bytes],
) -> None:
    chance, traffic = Random(2), Traffic()
    reasons: Counter[Reason] = Counter()
    kinds: set[str] = set()
    for done, (sender, to, data) in enumerate(traffic):
        if done == INPUTS:
            break
        kinds.add(type(wire.decode(data)).__name__)
        if to not in traffic.cluster.absent:
            effects = inject(traffic.cluster, sender, to, damage(chance, data))
            reasons.update(effect.reason for effect in effects if isinstance(effect, Refused))
            bounded(traffic.cluster.members[to])
    assert reasons.total() > INPUTS // 2
    assert len(reasons) > 3
    assert len(kinds) == 8, kinds
    still_works(traffic.cluster)


def test_messages_of_other_times_and_members_do_no_harm() -> None:
    chance, traffic = Random(3), Traffic()
    seen: list[bytes] = []
    for done, (_, _, data) in enumerate(traffic):
        if done == INPUTS:
            break
        seen.append(data)
        sender, to = chance.sample(range(4), 2)
        traffic.cluster.deliver(sender, to, chance.choice(seen))
    still_works(traffic.cluster)


def test_what_one_member_signs_cannot_part_the_others_or_stop_them() -> None:
    chance, traffic, liar = Random(4), Traffic(), 3
    traffic.cluster.absent = set()
    said = 0
    for done, (_, to, data) in enumerate(traffic):
        if done == INPUTS:
            break
        try:
            message = wire.decode(damaged_fields(chance, data))
        except Refusal:
            continue
        lie = signed_by(traffic.cluster.committee, liar, message)
        if lie is not None and to != liar:
            said += 1
            traffic.cluster.deliver(liar, to, wire.encode(lie))
            bounded(traffic.cluster.members[to])
    assert said > INPUTS // 8
    honest = traffic.cluster.members[:liar]
    assert agree(honest)
    traffic.cluster.absent = set()
    height = max(traffic.cluster.heights())
    traffic.cluster.run_until(lambda: min(traffic.cluster.heights()[:liar]) > height + 5)
    assert agree(honest)
    assert not any(member.halts for member in honest)
