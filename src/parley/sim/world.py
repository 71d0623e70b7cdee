"""The loop of a simulated network: takes the next event, lets one replica act, executes its effects in order."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from parley.consensus.errors import Reason, SafetyRecordError
from parley.consensus.record import encode_record, recover_record, repairs
from parley.ledger import layout
from parley.model import refusals
from parley.model.names import word_of
from parley.replica.joining import Joiner
from parley.replica.ports import (
    Applied,
    Broadcast,
    Certified,
    Effect,
    Found,
    Halt,
    PersistSafety,
    Refused,
    Report,
    Restart,
    Send,
    SetTimer,
    Timer,
    ViewFailed,
    Write,
)
from parley.sim import observations as seen
from parley.sim.clock import Clock, Trace
from parley.sim.host import Host, Running
from parley.sim.network import Network
from parley.sync.timers import CareTimer

LEISURE = 6
# Between two looks at who can be reached: as with heartbeats, a replica learns of it some time later.
NOTICE_MS = 500

Watch = Callable[[int, seen.Observation], None]


class World:
    """Hosts, the network between them and one virtual clock. `watch` sees what an outside observer would see."""

    def __init__(self, hosts: Sequence[Host], network: Network, watch: Watch) -> None:
        self.hosts = tuple(hosts)
        self.network = network
        self.trace = Trace()
        self.evidence: Counter[str] = Counter()
        self.failed_views: dict[int, int] = {}  # view -> leader, as correct hosts have seen it
        self.happened: Counter[str] = Counter()  # to correct replicas
        self.longest_execution_us = 0  # of a block, by a correct replica
        self._watch = watch
        self._clock: Clock[Callable[[], None]] = Clock()

    @property
    def now(self) -> int:
        return self._clock.now

    @property
    def correct(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.correct)

    def after(self, delay: int, task: Callable[[], None]) -> None:
        """Run `task` that many milliseconds from now."""
        self._clock.schedule(delay, task)

    def run(self, until: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until `done` or until the time is over; whether it was done."""
        while not done():
            if (task := self._clock.next(until)) is None:
                return False
            task()
        return True

    def observe(self, event: seen.Observation) -> None:
        self._watch(self.now, event)

    # -- what happens to a replica --------------------------------------------------------------------------

    def start(self, replica: int) -> None:
        """Start the replica from what is on its disk, unless it runs."""
        host = self.hosts[replica]
        if host.up:
            return
        self.trace.add(self.now, replica, b"start", b"")
        try:
            sequence, state = recover_record(host.disk.slots, f"the disk of replica {replica}")
        except SafetyRecordError as error:
            self._see(host, seen.Recovered(replica, None, str(error)))
            return
        for repair in repairs(host.disk.slots):
            host.disk.slots[repair.slot][repair.copy] = repair.record
        self._see(host, seen.Recovered(replica, encode_record(sequence, state)))
        try:
            running = host.launch((sequence, state), host.disk)
        except Exception as error:
            if not host.correct:
                raise
            self._fail(host, _describe(error))
            return
        host.running, participant = running, running.participant
        host.joining = isinstance(participant, Joiner)
        self._see(host, seen.Started(replica, participant.executed_height, host.joining))
        self._act(host, lambda: participant.start(self.now), lambda: self._resumed(host, running))

    def submit(self, replica: int, batch: bytes) -> None:
        """A local client hands a batch to the replica; lost if it is down."""
        host = self.hosts[replica]
        self.trace.add(self.now, replica, b"submit", batch)
        if running := host.running:
            self._act(host, lambda: self._submitted(running, batch))

    def crash(self, replica: int, during: Effect | None = None) -> None:
        """The replica's machine loses power, possibly in the middle of an effect."""
        host = self.hosts[replica]
        self.trace.add(self.now, replica, b"crash", b"")
        write = during if isinstance(during, Write | PersistSafety) else None
        record = during.record if isinstance(during, PersistSafety) else None
        self._see(host, seen.Crashed(replica, record))
        host.disk.crash(host.chance, write)
        host.crash_at = None
        host.stop()
        host.crashes += 1

    def wipe(self, replica: int) -> None:
        """The replica's disk is gone; on the new one it may not sign before it knows that it contradicts nothing (P10)."""
        host = self.hosts[replica]
        if host.up:
            self.crash(replica)
        self.trace.add(self.now, replica, b"wipe", b"")
        host.wipe()
        self.happened["wipes"] += 1
        self._see(host, seen.Wiped(replica))

    def damage(self, replica: int, prefix: bytes) -> None:
        """A bit of an entry under `prefix` flips on the replica's disk, unnoticed.

        Not of the first block: it names the network, and a broker whose store names another one is right to stop.
        """
        host = self.hosts[replica]
        entries = [key for key, value in host.disk.scan(prefix) if value and key != layout.committed(0)]
        if entries and host.disk.flip(key := host.chance.choice(entries), host.chance):
            self.trace.add(self.now, replica, b"damage", key)
            self.happened["damaged"] += 1
            host.damaged = True
            host.suspect = host.suspect or key.startswith(layout.APPLICATION)

    def watch_connections(self) -> None:
        """Inform every replica of connections that have ended or are there again."""
        for host in self.hosts:
            for other in self.hosts:
                if other is not host and host.running is not None:
                    self._notice(host, host.running, other)
        self.after(NOTICE_MS, self.watch_connections)

    def _notice(self, host: Host, running: Running, other: Host) -> None:
        up = other.up and not self.network.is_cut(host.index, other.index)
        if up == (other.index not in host.unreachable):
            return
        (host.unreachable.discard if up else host.unreachable.add)(other.index)
        self.trace.add(self.now, host.index, b"connected" if up else b"unreachable", b"%d" % other.index)
        self._act(host, lambda: running.participant.connected(self.now, other.index, up=up))

    def _resumed(self, host: Host, running: Running) -> None:
        if host.running is running and not host.joining:  # it did not crash meanwhile
            self._see(host, seen.Resumed(host.index, running.participant.executed_height))

    def _deliver(self, receiver: int, sender: int, data: bytes) -> None:
        host = self.hosts[receiver]
        if running := host.running:
            self.trace.add(self.now, receiver, b"receive %d" % sender, data)
            self._act(host, lambda: running.participant.receive(self.now, sender, data))

    def _fire(self, host: Host, incarnation: int, timer: Timer) -> None:
        if (running := host.running) and host.incarnation == incarnation:
            self.trace.add(self.now, host.index, b"fire", repr(timer).encode())
            self._act(host, lambda: running.participant.fire(self.now, timer))

    # -- what a replica does --------------------------------------------------------------------------------

    def _submitted(self, running: Running, batch: bytes) -> list[Effect]:
        """What a node does with the batch of a client: it opens it, and hands it on if it may be ordered."""
        try:
            admitted = running.machine.admit(batch)
        except refusals.Refused as refused:
            return [Refused(None, Reason.INADMISSIBLE, refused.code)]
        return running.participant.submit(self.now, admitted).effects

    def _act(
        self, host: Host, step: Callable[[], list[Effect]], then: Callable[[], None] = lambda: None
    ) -> None:
        """Let the replica take an input, then execute its effects, then do what follows.

        If it executes blocks in this step, its effects come when that time is over, and all other inputs wait for them.
        """
        if host.backlog is not None:
            host.backlog.append(partial(self._act, host, step, then))
            return
        before = host.committed
        try:
            effects = step()
        except Exception as error:
            if not host.correct:
                raise  # the liar's own code is wrong
            self._fail(host, _describe(error))
            return
        if busy := host.meter.due():
            host.occupy(before)
            self._clock.schedule(busy, partial(self._executed, host, host.incarnation, effects, then))
        else:
            self._perform(host, effects)
            then()

    def _executed(
        self, host: Host, incarnation: int, effects: list[Effect], then: Callable[[], None]
    ) -> None:
        """The time of an execution is over: its effects come, then the inputs that have waited, up to the next execution."""
        if host.incarnation != incarnation:  # it has crashed in the middle: nothing of this is on its disk
            return
        waiting = host.release()
        self._perform(host, effects)
        then()
        while waiting and host.incarnation == incarnation and host.backlog is None:
            waiting.popleft()()
        if host.incarnation == incarnation and host.backlog is not None:
            host.backlog.extend(waiting)

    def _perform(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            if host.crashes_at(effect):
                self._crash_during(host, effect)
                return
            host.executed += 1
            self._execute(host, effect)
            if not host.up:
                return

    def _execute(self, host: Host, effect: Effect) -> None:
        match effect:
            case Send():
                self.trace.add(self.now, host.index, b"send %d" % effect.to, effect.data)
                self._see(host, seen.Sent(host.index, effect.data))
                self._transmit(host.index, effect.to, effect.data)
            case Broadcast():
                self.trace.add(self.now, host.index, b"broadcast", effect.data)
                self._see(host, seen.Sent(host.index, effect.data))
                for receiver in self._others(host):
                    self._transmit(host.index, receiver, effect.data)
            case SetTimer():
                fire = partial(self._fire, host, host.incarnation, effect.timer)
                self._clock.schedule(effect.delay * _leisure(host, effect.timer), fire)
            case Write():
                self.trace.add(self.now, host.index, b"write", repr(effect.entries).encode())
                host.disk.write(effect)
            case PersistSafety():
                self.trace.add(self.now, host.index, b"persist %d" % effect.slot, effect.record)
                host.disk.persist(effect)
                self._see(host, seen.Persisted(host.index, effect.record))
            case Restart():
                self._restart(host)
            case _:
                self._note(host, effect)

    def _note(
        self, host: Host, effect: Applied | Certified | Report | ViewFailed | Refused | Halt | Found
    ) -> None:
        match effect:
            case Applied():
                self.trace.add(self.now, host.index, b"applied", effect.block.id)
                leaves = host.disk.get(layout.receipts(effect.block.height)) or b""
                took = host.meter.took(effect.block.height)
                if host.correct:
                    self.longest_execution_us = max(self.longest_execution_us, took)
                self._see(
                    host,
                    seen.Applied(host.index, effect.block, effect.receipts, leaves, host.suspect, took),
                )
            case Certified():
                self.trace.add(self.now, host.index, b"certified", effect.qc.block)
                if not host.suspect:
                    self._see(host, seen.Certified(host.index, effect.header.executed_height))
            case Report():
                self.trace.add(self.now, host.index, b"report", repr(effect.evidence).encode())
                self.evidence[word_of(type(effect.evidence).__name__)] += host.correct
            case ViewFailed():
                if host.correct:
                    self.failed_views[effect.view] = effect.leader
            case Refused():
                why = _why(effect)
                self.trace.add(self.now, host.index, b"refused", why.encode())
                host.refused[why] += 1
            case Halt():
                self._fail(host, effect.why)
            case Found():
                self.trace.add(self.now, host.index, b"found", repr(effect).encode())
                self.happened["mended" if effect.mended else "found"] += host.correct

    def _restart(self, host: Host) -> None:
        """What a node does in the same process: nothing on the disk is lost."""
        self.trace.add(self.now, host.index, b"restart", b"")
        was_joining = host.joining
        host.stop()
        self.start(host.index)
        self.happened["restarts"] += host.correct
        if was_joining and host.up and not host.joining:
            host.suspect = False
            self.happened["joins"] += host.correct

    def _crash_during(self, host: Host, effect: Effect) -> None:
        """Some of the receivers of a broadcast may have got it; a write may have torn."""
        if isinstance(effect, Broadcast):
            others = self._others(host)
            reached = others[: host.chance.randint(0, len(others))]
            if reached:
                self._see(host, seen.Sent(host.index, effect.data))
            for receiver in reached:
                self._transmit(host.index, receiver, effect.data)
        downtime = host.downtime
        self.crash(host.index, effect)
        self.after(downtime, lambda: self.start(host.index))

    def _transmit(self, sender: int, receiver: int, data: bytes) -> None:
        for delay in self.network.delays(sender, receiver):
            self._clock.schedule(delay, partial(self._deliver, receiver, sender, data))

    def _others(self, host: Host) -> list[int]:
        return [other.index for other in self.hosts if other is not host]

    def _fail(self, host: Host, why: str) -> None:
        self.trace.add(self.now, host.index, b"fail", b"")
        self._see(host, seen.Failed(host.index, why))
        host.stop()

    def _see(self, host: Host, event: seen.Observation) -> None:
        if host.correct:
            self._watch(self.now, event)


def _leisure(host: Host, timer: Timer) -> int:
    """Sound disks are searched less often: timers may be late, and the search would be most of a run's work."""
    return LEISURE if isinstance(timer, CareTimer) and not host.damaged else 1


def _why(refused: Refused) -> str:
    """The reason; of a batch that is refused before order, the code."""
    inadmissible = refused.reason is Reason.INADMISSIBLE
    return word_of(refused.detail) if inadmissible else refused.reason.name.lower()


def _describe(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}, line {place.lineno}: {error}"
