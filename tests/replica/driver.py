"""Replicas in lock-step: every message of one round arrives in the next, timers fire when their time has come.

Nothing here decides anything: it executes effects in order, as a node does, and remembers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import cast

from parley.consensus.record import COPIES, SafetyState, recover_record
from parley.consensus.types import Block, Instance
from parley.crypto.simulated import SimulatedAuthority
from parley.mempool.pool import Limits, batch_digest
from parley.replica.beginning import ReplicaConfig, provision
from parley.replica.chain import Chain
from parley.replica.participants import awaken
from parley.replica.ports import (
    Applied,
    Broadcast,
    Certified,
    Effect,
    Found,
    Halt,
    Intake,
    Mounted,
    PersistSafety,
    Refused,
    Report,
    Restart,
    Send,
    SetTimer,
    Submission,
    Timer,
    ViewFailed,
    Write,
)
from parley.replica.rejoining import Patience
from parley.replica.replica import Replica
from parley.sim.counter import Counter, encode_batch, mounted
from parley.store import memory

CHAIN = bytes(range(32))
ROUND = 10  # ms


class MemoryStore(memory.MemoryStore):
    """A local store whose entries a test may change; every write is durable at once."""

    @property
    def entries(self) -> Entries:
        return Entries(self)


class Entries(MutableMapping[bytes, bytes]):
    """What a store holds, as a dictionary."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getitem__(self, key: bytes) -> bytes:
        value = self._store.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._store.write([(key, value)])

    def __delitem__(self, key: bytes) -> None:
        self._store.write([(key, None)])

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self._store.scan(b""))

    def __len__(self) -> int:
        return len(self._store)


@dataclass
class Committee:
    """What the members of one instance share."""

    size: int = 4
    depth: int = 2
    limits: Limits = field(default_factory=Limits)
    chain: bytes = CHAIN
    epoch: int = 0
    patience: Patience = field(default_factory=Patience)
    version: int = 1

    def __post_init__(self) -> None:
        self.instance = Instance(self.chain, 0, self.epoch, self.size, self.version)
        self.authority = SimulatedAuthority(b"lock-step", self.size)

    def config(self, index: int) -> ReplicaConfig:
        return ReplicaConfig(
            self.instance,
            index,
            self.depth,
            view_timeout=200,
            longest_timeout=2_000,
            heartbeat=100,
            limits=self.limits,
            patience=self.patience,
        )


class Member:
    """One replica with its disk, and everything that it did."""

    def __init__(self, committee: Committee, index: int, application: Mounted) -> None:
        self.committee = committee
        self.index = index
        self.application = application
        records, genesis = provision(committee.config(index), application.machine)
        self.slots = list(records)
        self.store = MemoryStore()
        self.store.write(genesis.entries)
        self.applied: list[Applied] = []
        self.certified: list[Certified] = []
        self.failed_views: list[ViewFailed] = []
        self.halts: list[Halt] = []
        self.reports: list[Report] = []
        self.refused: list[Refused] = []
        self.found: list[Found] = []
        self.restarts: list[Restart] = []
        self.history: list[Effect] = []
        self.boot()

    def boot(self) -> None:
        """Build the replica from what is stored, and from nothing else."""
        self.replica = Replica(
            self.committee.config(self.index),
            self.committee.authority.signer(self.index),
            self.committee.authority.scheme(),
            self.application,
            record=self.record(),
            store=self.store,
        )

    def awaken(self) -> None:
        """Build whatever has to run on what is stored: the replica, or what puts its disk in order."""
        participant = awaken(
            self.committee.config(self.index),
            self.committee.authority.signer(self.index),
            self.committee.authority.scheme(),
            self.application,
            record=self.record(),
            store=self.store,
            nonce=bytes(16),
        )
        self.replica = cast("Replica", participant)  # all of it but in tests of joining

    def record(self) -> tuple[int, SafetyState]:
        return recover_record([[record] * COPIES for record in self.slots], "memory")

    def committed(self) -> list[bytes]:
        """The ids of the executed chain as stored, genesis first."""
        return [block.id for block in self.blocks()]

    def blocks(self) -> list[Block]:
        chain = Chain(self.store)
        found = [chain.block(height) for height in range(chain.head().height + 1)]
        return [block for block in found if block is not None]

    def roots(self) -> list[bytes]:
        return [value for _, value in self.store.scan(b"r/")]

    def submit(self, now: int, batch: bytes) -> Submission:
        return self.replica.submit(now, self.application.machine.admit(batch))

    def execute(self, effects: list[Effect], outbox: Outbox) -> None:
        self.history += effects
        for effect in effects:
            match effect:
                case Write():
                    self.store.write(effect.entries, sync=effect.sync)
                case PersistSafety():
                    self.slots[effect.slot] = effect.record
                case Send():
                    outbox.send(self.index, effect.to, effect.data)
                case Broadcast():
                    for member in self.others():
                        outbox.send(self.index, member, effect.data)
                case SetTimer():
                    outbox.set_timer(self.index, effect.timer, effect.delay)
                case Certified():
                    self.certified.append(effect)
                case Found():
                    self.found.append(effect)
                case Restart():
                    self.restarts.append(effect)
                    outbox.forget_timers(self.index)
                    self.awaken()
                    self.execute(self.replica.start(outbox.now), outbox)
                case Applied() | Report() | ViewFailed() | Refused() | Halt():
                    self.note(effect)

    def note(self, effect: Applied | Report | ViewFailed | Refused | Halt) -> None:
        match effect:
            case ViewFailed():
                self.failed_views.append(effect)
            case Applied():
                self.applied.append(effect)
            case Report():
                self.reports.append(effect)
            case Refused():
                self.refused.append(effect)
            case Halt():
                self.halts.append(effect)

    def others(self) -> list[int]:
        return [member for member in range(self.committee.size) if member != self.index]


Carries = Callable[[int, int, bytes], bool]


class Outbox:
    """Messages of this round and timers of all rounds."""

    def __init__(self) -> None:
        self.now = 0
        self.carries: Carries = lambda _sender, _to, _data: True
        self.messages: list[tuple[int, int, bytes]] = []
        self.timers: list[tuple[int, int, int, Timer]] = []
        self._count = 0

    def send(self, sender: int, to: int, data: bytes) -> None:
        if self.carries(sender, to, data):
            self.messages.append((sender, to, data))

    def forget_timers(self, member: int) -> None:
        self.timers = [entry for entry in self.timers if entry[2] != member]
        heapify(self.timers)

    def set_timer(self, member: int, timer: Timer, delay: int) -> None:
        self._count += 1
        heappush(self.timers, (self.now + delay, self._count, member, timer))


class Cluster:
    """`absent` members run, but nothing reaches them and nothing that they say reaches the others."""

    def __init__(
        self, committee: Committee | None = None, applications: dict[int, Mounted] | None = None
    ) -> None:
        self.committee = committee or Committee()
        others = applications or {}
        self.members = [
            Member(self.committee, index, others.get(index, mounted()))
            for index in range(self.committee.size)
        ]
        self.absent: set[int] = set()
        self.outbox = Outbox()
        self.fired: list[tuple[int, Timer]] = []

    @property
    def now(self) -> int:
        return self.outbox.now

    def start(self, *members: int) -> Cluster:
        for index in members or range(self.committee.size):
            member = self.members[index]
            member.execute(member.replica.start(self.now), self.outbox)
        return self

    def restart(self, index: int) -> None:
        """Lose everything but the disk."""
        self.outbox.forget_timers(index)
        self.outbox.messages = [entry for entry in self.outbox.messages if entry[1] != index]
        self.members[index].awaken()
        self.start(index)

    def submit(self, index: int, batch: bytes) -> list[Effect]:
        """A client's batch, opened as a node does."""
        member = self.members[index]
        submission = member.submit(self.now, batch)
        member.execute(submission.effects, self.outbox)
        refused = any(isinstance(effect, Refused) for effect in submission.effects)
        assert refused == (submission.intake is not Intake.TAKEN)
        return submission.effects

    def deliver(self, sender: int, to: int, *data: bytes) -> list[Effect]:
        member = self.members[to]
        effects = member.replica.receive(self.now, sender, *data)
        member.execute(effects, self.outbox)
        return effects

    def round(self) -> None:
        """Deliver what was sent in the round before, then fire what is due."""
        self.outbox.now += ROUND
        messages, self.outbox.messages = self.outbox.messages, []
        for sender, to, data in self.parcels(messages):
            if sender not in self.absent and to not in self.absent:
                self.deliver(sender, to, *data)
        while self.outbox.timers and self.outbox.timers[0][0] <= self.now:
            _, _, index, timer = heappop(self.outbox.timers)
            member = self.members[index]
            self.fired.append((index, timer))
            member.execute(member.replica.fire(self.now, timer), self.outbox)

    def parcels(self, messages: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, list[bytes]]]:
        """How messages come: each alone, in the order in which they were sent."""
        return ((sender, to, [data]) for sender, to, data in messages)

    def run(self, rounds: int) -> Cluster:
        for _ in range(rounds):
            self.round()
        return self

    def run_until(self, done: Callable[[], bool], rounds: int = 2_000) -> Cluster:
        for _ in range(rounds):
            if done():
                return self
            self.round()
        raise AssertionError(f"not done after {rounds} rounds: {self.heights()}")

    def heights(self) -> list[int]:
        return [member.replica.executed_height for member in self.members]


def counting(counter: Counter) -> Mounted:
    """A counter that is not as others."""
    return mounted()._replace(machine=counter)


def batches(author: int, count: int, size: int = 8) -> list[bytes]:
    """The first batches of one author, in sequence."""
    return [encode_batch(author, sequence, bytes(size)) for sequence in range(count)]


def submitted(cluster: Cluster, count: int = 6) -> set[bytes]:
    """Each member's client submits some batches; returns their digests."""
    names: set[bytes] = set()
    for index in range(cluster.committee.size):
        for batch in batches(author=index, count=count):
            cluster.submit(index, batch)
            names.add(batch_digest(batch))
    return names


def ordered(member: Member) -> list[bytes]:
    return [name for block in member.blocks() for name in block.batches]


def done(cluster: Cluster, names: set[bytes], *members: int) -> bool:
    indexes = members or range(cluster.committee.size)
    return all(names <= set(ordered(cluster.members[index])) for index in indexes)


def agree(members: Sequence[Member]) -> bool:
    """Whether all chains are prefixes of the longest, with equal results."""
    longest = max(members, key=lambda member: len(member.committed()))
    return all(
        longest.committed()[: len(member.committed())] == member.committed()
        and longest.roots()[: len(member.roots())] == member.roots()
        for member in members
    )
