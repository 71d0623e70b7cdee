"""A running shard whose brokers look after their stores while no block is made: damage can be watched being mended."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify

from tests.ledger.shard import GENESIS, Shard, network, told
from tests.replica.driver import Cluster, Member, MemoryStore

from parley.applications import DATA_SHARD
from parley.ledger.audit import Verdict, verify_store
from parley.mempool.fetch import BatchTimer
from parley.sync.timers import CareTimer

STEPS = 600


def copied(shard: Shard | None = None) -> Cluster:
    """A shard, that of `told` if there is no other, after a restart of all, on disks of their own."""
    source = (shard or told()).cluster
    cluster = network()
    cluster.outbox.now = source.now
    for member, old in zip(cluster.members, source.members, strict=True):
        member.store = MemoryStore(old.store.entries.items())
        member.slots = list(old.slots)
        member.boot()
    return cluster


def running() -> Cluster:
    cluster = copied().start()
    cluster.outbox.messages.clear()
    return cluster


def care(cluster: Cluster, index: int, done: Callable[[], bool], steps: int = STEPS) -> None:
    """Let one member's caretaker work, and carry what is said, until it is done; `steps` with a pause before them."""
    left = steps
    while not done():
        left -= fire_next(cluster, index)
        if not left:
            raise AssertionError(f"not done after {steps} steps: {cluster.members[index].found}")


def fire_next(cluster: Cluster, index: int) -> bool:
    """Fire the next timer of the caretaker, and say whether there was a pause before it."""
    outbox = cluster.outbox
    due = [
        entry for entry in outbox.timers if entry[2] == index and isinstance(entry[3], CareTimer | BatchTimer)
    ]
    assert due, "the caretaker has no timer"
    first = min(due)
    outbox.timers.remove(first)
    heapify(outbox.timers)
    paused = first[0] > outbox.now
    outbox.now = max(outbox.now, first[0])
    member = cluster.members[index]
    member.execute(member.replica.fire(cluster.now, first[3]), outbox)
    carry(cluster)
    return paused


def carry(cluster: Cluster) -> None:
    while cluster.outbox.messages:
        messages, cluster.outbox.messages = cluster.outbox.messages, []
        for sender, to, data in messages:
            if sender not in cluster.absent and to not in cluster.absent:
                cluster.deliver(sender, to, data)


def passes(member: Member, more: int = 1) -> Callable[[], bool]:
    """Whether everything has been looked at that many times from now on."""
    caretaker = member.replica._caretaker
    goal = caretaker.passes + more
    return lambda: caretaker.passes >= goal


def flipped(value: bytes, at: int) -> bytes:
    at %= len(value)
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


def names(member: Member, *, mended: bool) -> set[str]:
    return {found.entry for found in member.found if found.mended is mended}


def audit(member: Member) -> Verdict:
    return verify_store(member.store, GENESIS, DATA_SHARD.mount(GENESIS), shard=0)
