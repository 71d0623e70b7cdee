"""Drives the replica: feeds it inputs, one at a time, and executes its effects in their order.

A write that fails ends the node: after a failed sync nobody knows what is on disk, and going on could break a promise.
Batches that clients submit share a sync: they are written at once, and announced when one sync has put all on disk.

A thread waits for the disk (decision 23). The replica gets no input meanwhile: its own vote must be on disk before anything
that counts it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from parley.consensus.errors import Reason
from parley.consensus.events import Heartbeat
from parley.ledger import layout
from parley.ledger.application import AdmittedBatch
from parley.ledger.proofs import Anchor
from parley.mempool.pool import Intake
from parley.node.archive import Archive
from parley.node.clock import monotonic
from parley.node.disk import Disk, DiskWork
from parley.node.feed import Feed
from parley.node.holding import DISK, MESSAGE, SUBMISSION, TIMER, Background, Holding
from parley.node.logs import Log, Throttled
from parley.node.storage import Storage
from parley.node.telemetry.tally import Tally
from parley.replica import evidence, wire
from parley.replica.ports import (
    Applied,
    Broadcast,
    Certified,
    Effect,
    Found,
    Halt,
    Participant,
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
from parley.sync.timers import CareTimer

GATHER_SECONDS = 0.010  # in which batches of clients come together for one sync, under load
MAX_UNANNOUNCED = 256
_STATE = (layout.STATE, layout.NODE)  # what can be read as it was: the rest is only added to
FIRST_BLOCKS, FIRST_HEARTBEAT_MS = 3, 20
MAX_FOUND = 64  # damaged entries that are remembered for those who ask
SLOW_DISK_MS = 500  # a wait for the disk that is this long is logged


class Links(Protocol):
    """How messages reach other brokers; what cannot be sent now may be dropped, never waited for."""

    def send(self, to: int, data: bytes) -> None: ...

    def broadcast(self, data: bytes) -> None: ...

    def refused(self, member: int, reason: Reason, detail: str) -> None:
        """Count what the replica has refused of a member's messages."""


class _Kinds:
    """The kinds of some messages, for people: they are looked at only if somebody asks."""

    def __init__(self, messages: tuple[bytes, ...]) -> None:
        self._messages = messages

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in Counter(map(wire.kind, self._messages)).items())


class Driver:
    """Owns the replica. Every step runs to its end before the next one begins, also if it waits for the disk."""

    def __init__(
        self,
        replica: Participant,
        storage: Storage,
        *,
        feed: Feed,
        links: Links,
        log: Log,
        now: Callable[[], int],
        names: Sequence[str],
        archive: Archive | None = None,
        found: deque[Found] | None = None,
        tally: Tally | None = None,
        holding: Holding | None = None,
    ) -> None:
        """`names` are those of all members. `archive` gets the receipts of blocks that were just executed, which then need not be read back."""
        self.replica = replica  # others may read it, but not drive it
        self._storage = storage
        self._feed = feed
        self._archive = archive
        self._links = links
        self._log = log
        self._now = now
        self._names = names
        self._loop = asyncio.get_running_loop()
        self._throttled = Throttled()
        self._stopped = False
        self._unannounced: list[Effect] = []
        self._sync_planned = False
        self._gathered_at = 0.0  # when the last gathered batches were synced, by the loop's clock
        self._dirty = False  # whether something was written whose sync was put off
        self._disk = Disk(self._loop, self._disk_done)
        # The step that waits for the disk: its job, and the rest of its effects. None: no step waits.
        self._job: tuple[str, object] = (TIMER, "")
        self._rest: Iterator[DiskWork] | None = None
        self._disk_since = 0  # ms of the monotonic clock
        self._late_timers: deque[Callable[[], None]] = deque()  # that fired meanwhile
        self._passed_over = False  # whether messages went before these timers already
        self._waiting: list[asyncio.Future[None]] = []  # tasks in `until_free`
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self.halted: str | None = None
        self._certified_at = monotonic()
        self.found: deque[Found] = deque(maxlen=MAX_FOUND) if found is None else found
        self._tally = tally or Tally()
        self._holding = holding or Holding()
        self._background = Background(self._fire, self._loop.call_later)
        self.restart: asyncio.Future[str] = self._loop.create_future()

    def start(self) -> None:
        for found in self._storage.found:
            self._tell(found)
        self._step(lambda: self.replica.start(self._now()))

    def stop(self) -> None:
        """Nothing more goes in; timers that are still set do nothing."""
        self._stopped = True

    async def until_ended(self) -> None:
        """Wait until the last step has ended, and stop the disk thread. Then the storage may be closed."""
        await self.until_free()
        self._disk.close()

    async def until_free(self) -> None:
        """Wait until no step waits for the disk, so that the next may begin."""
        while self._rest is not None:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting

    @property
    def still_ms(self) -> int:
        """For how long no newer header has been certified here."""
        return monotonic() - self._certified_at

    @property
    def is_waiting(self) -> bool:
        """Whether a step waits for the disk."""
        return self._rest is not None

    @property
    def disk_wait_ms(self) -> int:
        """How long that step has waited by now."""
        return 0 if self._rest is None else monotonic() - self._disk_since

    def look(self) -> None:
        """End the node if its files are not where it opened them. Every sync looks, too, but there may be none for long."""

        def look() -> list[Effect]:
            self._storage.require_in_place()
            return []

        if self._rest is None:
            self._step(look, DISK, "where its files lie")
        elif (waited := self.disk_wait_ms) >= SLOW_DISK_MS:  # it may never come to its end
            self._note_disk_wait(waited * 1_000_000)

    async def receive(self, sender: int, *messages: bytes) -> None:
        await self.until_free()
        self._step(lambda: self.replica.receive(self._now(), sender, *messages), MESSAGE, _Kinds(messages))

    def submit(self, batch: AdmittedBatch) -> Intake:
        """What became of a client's batch, which the replica's state machine has admitted. Only after `until_free`."""
        intake = Intake.HALTED

        def take() -> list[Effect]:
            nonlocal intake
            submission = self.replica.submit(self._now(), batch)
            intake = submission.intake
            return submission.effects

        return intake if self._step(take, SUBMISSION) else Intake.HALTED

    def peer_changed(self, index: int, *, up: bool) -> None:
        """There is a connection to another broker now, or there no longer is."""
        if self._rest is not None:
            self._late_timers.append(partial(self.peer_changed, index, up=up))
            return
        self._step(lambda: self.replica.connected(self._now(), index, up=up), TIMER, "connections")

    def _fire(self, timer: Timer) -> None:
        if self._rest is not None:
            self._late_timers.append(partial(self._fire, timer))
            return
        job = timer.job if isinstance(timer, CareTimer) else TIMER
        self._step(lambda: self.replica.fire(self._now(), timer), job, timer)

    def _step(self, step: Callable[[], list[Effect]], job: str = TIMER, what: object = "") -> bool:
        """Begin a step, and return whether the node still runs."""
        return self._begin(self._carry_out(step), job, what)

    def _begin(self, rest: Iterator[DiskWork], job: str, what: object) -> bool:
        if self._stopped:
            return False
        assert self._rest is None, "a step begins when the one before has ended"
        self._rest, self._job = rest, (job, what)
        self._go_on()
        return not self.failure.done()

    def _go_on(self) -> None:
        """Carry out the step up to the next effect that has to wait for the disk."""
        rest = self._rest
        assert rest is not None, "there is a step to go on with"
        try:
            work = self._holding.run(*self._job, lambda: next(rest, None))
            if work is None:
                self._rest = None
            else:
                self._disk_since = monotonic()
                self._disk.do(work)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the replica's memory and the disk may differ now
            self._rest = None
            self._fail(error)

    def _disk_done(self, failed: BaseException | None, took: int) -> None:
        if failed is not None:
            self._rest = None
            self._fail(failed)
        else:
            self._note_disk_wait(took)
            self._go_on()
        if self._passed_over:
            self._fire_late()
        if self._rest is None:
            self._wake()

    def _wake(self) -> None:
        """Let the tasks go on that wait, and then the timers: a message that came in time makes many a timer obsolete."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
        if self._late_timers:
            self._loop.call_soon(self._fire_late)

    def _fire_late(self) -> None:
        """Fire the timers that waited. If a message has begun a step with a wait before them, they go first after it."""
        while self._late_timers and self._rest is None:
            self._late_timers.popleft()()
        self._passed_over = bool(self._late_timers)

    def _note_disk_wait(self, ns: int) -> None:
        self._tally.longest_sync_ns = max(self._tally.longest_sync_ns, ns)
        if ns >= SLOW_DISK_MS * 1_000_000 and (
            count := self._throttled.count("disk_slow", None, monotonic())
        ):
            self._log.warning("disk_slow", sync_ms=ns // 1_000_000, count=count)

    def _carry_out(self, step: Callable[[], list[Effect]]) -> Iterator[DiskWork]:
        """Take a step and execute its effects. Yields work for the disk thread, to be done before the next effect.

        Writes in a row are waited for once, before what follows them; a sync that can be deferred is, with its messages.
        """
        due = deferred = False
        effects = step()
        if any(isinstance(effect, Halt | Restart) for effect in effects):
            self._feed.silence()  # before any wait: this replica has given its state up
        for effect in effects:
            if isinstance(effect, Write):
                self._write(effect)
                due |= effect.sync and not effect.deferrable
                deferred |= effect.sync
            elif deferred and not due and isinstance(effect, Send | Broadcast):
                self._unannounced.append(effect)
            elif isinstance(effect, PersistSafety):
                yield from self._persist(effect)
                due = deferred = False
            else:
                if due or (deferred and not isinstance(effect, SetTimer)):
                    yield from self._sync()
                    due = deferred = False
                self._execute(effect)
        if due or (deferred and len(self._unannounced) >= MAX_UNANNOUNCED):
            yield from self._sync()
        elif deferred:
            self._sync_soon()

    def _write(self, effect: Write) -> None:
        if effect.applies is not None:
            self._storage.recent.before_write(
                effect.applies, [entry for entry in effect.entries if entry[0].startswith(_STATE)]
            )
        self._storage.store.write(effect.entries, sync=False)
        self._dirty |= effect.sync

    def _delay(self, effect: SetTimer) -> int:
        """In ms. The first blocks of a network wait for nobody: before some are executed it has nothing to prove anything with."""
        is_early = isinstance(effect.timer, Heartbeat) and self.replica.executed_height < FIRST_BLOCKS
        return min(effect.delay, FIRST_HEARTBEAT_MS) if is_early else effect.delay

    def _execute(self, effect: Effect) -> None:
        """Execute an effect that writes nothing."""
        match effect:
            case Send():
                self._links.send(effect.to, effect.data)
            case Broadcast():
                self._links.broadcast(effect.data)
            case SetTimer(timer=CareTimer() as timer, delay=0):
                self._background.go_on(timer)
            case SetTimer():
                self._loop.call_later(self._delay(effect) / 1_000, self._fire, effect.timer)
            case Applied() | Certified() | Report() | ViewFailed() | Refused() | Halt() | Found():
                self._tell(effect)
            case Restart():
                self._on_restart(effect.why)
            case Write() | PersistSafety():
                raise AssertionError("writes are executed by _carry_out")

    # -- batches of clients -----------------------------------------------------------------------------------------

    def _sync_soon(self) -> None:
        if not self._sync_planned:
            self._sync_planned = True
            # The first batch after a pause does not wait.
            self._loop.call_at(
                max(self._gathered_at + GATHER_SECONDS, self._loop.time()), self._sync_as_planned
            )

    def _sync_as_planned(self) -> None:
        if self._rest is not None:
            self._late_timers.append(self._sync_as_planned)
            return
        self._sync_planned = False
        self._gathered_at = self._loop.time()
        self._begin(self._sync(), SUBMISSION, "")

    def _sync(self) -> Iterator[DiskWork]:
        """Put on disk what was put off, if anything was, and announce it."""
        if self._dirty:
            yield self._hand_on()
            self._storage.require_in_place()
        unannounced, self._unannounced = self._unannounced, []
        for effect in unannounced:
            self._execute(effect)

    def _hand_on(self) -> DiskWork:
        """Hand what was put off to the store's library, and return the work that puts it on disk."""
        self._dirty = False
        self._storage.store.hand_on()
        return self._storage.store.sync_log

    def _persist(self, effect: PersistSafety) -> Iterator[DiskWork]:
        """Put the record on disk, after all that was put off: what is signed now may build on that."""
        persist = partial(self._storage.safety.persist, effect.slot, effect.record)
        if self._dirty and not self._unannounced:  # one wait for both
            yield partial(_in_turn, self._hand_on(), persist)
        else:
            yield from self._sync()
            yield persist
        self._storage.require_in_place()

    # -- what the replica tells -------------------------------------------------------------------------------------

    def _tell(self, effect: Applied | Certified | Report | ViewFailed | Refused | Halt | Found) -> None:
        match effect:
            case Applied():
                receipts = sum(map(len, effect.leaves))
                self._tally.largest_receipts = max(self._tally.largest_receipts, receipts)
                if self._archive is not None:
                    self._archive.applied(effect.block, effect.leaves, effect.tree)
                self._feed.applied(effect.block.height, effect.receipts)
            case Certified():
                self._certified_at = monotonic()
                if self.halted is None:
                    self._feed.certified(Anchor(effect.header, effect.qc))
            case Report():
                self._on_report(evidence.charge(effect.evidence))
            case ViewFailed():
                self._on_view_failed(effect)
            case Refused():
                self._on_refused(effect)
            case Halt():
                self.halted = effect.why
                self._feed.silence()
                self._log.critical("halted", why=effect.why)
            case Found():
                self.found.append(effect)
                self._tally.damage[effect.mended] += 1
                self._log.error("damage", entry=effect.entry, what=effect.what, mended=effect.mended)

    def _on_restart(self, why: str) -> None:
        """Nothing more goes in; the node is built again from what is on disk."""
        self._stopped = True
        self._feed.silence()
        self._log.warning("restarting", why=why)
        if not self.restart.done():
            self.restart.set_result(why)

    def _on_report(self, accused: evidence.Accusation) -> None:
        peer, kind = self._names[accused.member], accused.kind
        self._tally.misbehaviour[peer, kind] += 1
        # Others can cause it at will, so it is logged once in a while.
        if count := self._throttled.count("misbehaviour", (peer, kind), monotonic()):
            self._log.error("misbehaviour", peer=peer, kind=kind, view=accused.view, count=count)

    def _on_view_failed(self, effect: ViewFailed) -> None:
        leader = self._names[effect.leader]
        if count := self._throttled.count("view_change", leader, monotonic()):
            self._log.warning("view_change", leader=leader, view=effect.view, count=count)

    def _on_refused(self, effect: Refused) -> None:
        if effect.sender is not None:
            self._links.refused(effect.sender, effect.reason, effect.detail)

    def _fail(self, error: BaseException) -> None:
        self._stopped = True
        self._feed.silence()
        if not self.failure.done():
            self.failure.set_exception(error)
        self._log.critical("failed", why=str(error), exc_info=error)


def _in_turn(*work: DiskWork) -> None:
    for one in work:
        one()
