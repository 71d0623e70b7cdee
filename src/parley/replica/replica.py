"""One broker, sans-IO: it composes consensus, mempool, sync and an application; node and simulator only drive it.

Inputs: `start`, `receive`, `submit`, `fire`. Each returns the effects to execute, in order, before the next input.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from parley.consensus import events
from parley.consensus.errors import Reason, SafetyViolation
from parley.consensus.errors import Refused as Refusal
from parley.consensus.leader import schemes
from parley.consensus.machine import Machine
from parley.consensus.record import SLOTS, SafetyState, encode_record
from parley.consensus.safety import SafetyRules
from parley.consensus.types import (
    Block,
    Certificates,
    Proposal,
    Timeout,
    Vote,
)
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.crypto.encoding import u64
from parley.crypto.qc import QCScheme, Signer
from parley.ledger import layout
from parley.ledger.state_map import DamagedMap
from parley.mempool import pool
from parley.mempool.messages import BatchMessage
from parley.model.refusals import Refused as InadmissibleError
from parley.replica import wire
from parley.replica.arrivals import Arrivals
from parley.replica.beginning import ReplicaConfig, certificates, genesis_of, require_own
from parley.replica.caretaker import CareEffect, Caretaker, FetchBodies
from parley.replica.chain import (
    Chain,
    Entries,
    Unusable,
    applied_entries,
    store_batch,
    store_block,
)
from parley.replica.commit_times import CommitTimes
from parley.replica.evidence import Shelf
from parley.replica.memory import Memory, Overlay
from parley.replica.ports import (
    AdmittedBatch,
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
from parley.replica.progress import Progress
from parley.replica.recovery import Recovery
from parley.replica.rejoining import Lag, require_certified, too_often
from parley.replica.serving import BATCHES_QUESTION, Budget, Serving
from parley.replica.snapshots import Snapshots
from parley.replica.votes import RecentVotes
from parley.store.interface import StoreReader
from parley.sync import blocks as sync
from parley.sync.messages import (
    BlocksResponse,
    Records,
    RecoveryAnswer,
    RecoveryRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    Values,
)
from parley.sync.timers import CareTimer, JoinTimer, RecoveryTimer

FETCH_AHEAD = 4  # committed blocks whose batches are fetched at a time
ROOTS_KEPT = 256  # executed blocks whose results stay in memory, to check the store against them
HURRY = 20  # ms after which an idle leader proposes while the application has more to do without any batch
MAX_UNEXECUTED = 256  # committed blocks that may wait for execution before catching up pauses


class Replica:
    """Rebuilt from the safety record and the local store at every start; nothing else survives."""

    def __init__(
        self,
        config: ReplicaConfig,
        signer: Signer,
        scheme: QCScheme,
        mounted: Mounted,
        *,
        record: tuple[int, SafetyState],
        store: StoreReader,
        nonce: bytes = bytes(16),
    ) -> None:
        """`nonce` is new in every life of the broker: answers to an earlier one must not be taken for its own."""
        sequence, state = record
        require_own(config, state)
        genesis = genesis_of(config, mounted.machine)
        leaders = schemes.make(config.leaders, config.instance.size)
        self._config = config
        self._state_machine = mounted.machine
        self._disk = store
        self._store = Overlay(store)
        self._chain = Chain(self._store)
        self._verifier = Verifier(config.instance, scheme, genesis)
        high_qc, high_tc = certificates(self._verifier, state)
        self._chain.check(genesis)
        self._machine = Machine(
            config,
            safety=SafetyRules(config.instance, signer, state),
            scheme=scheme,
            leaders=leaders,
            high_qc=high_qc,
            high_tc=high_tc,
            history=self._chain.history(config.depth, leaders.memory),
            roots=self._chain.roots(),
        )
        self._pool = pool.Pool(
            config.index, config.instance.size, config.limits, self._chain.batch_size, mounted.machine.admit
        )
        self._pool.restore(self._waiting())
        self._sync = sync.BlockSync(config.index, config.instance.size, self._verifier)
        self._budget = Budget(config.instance.size)
        self._roots = self._chain.roots()
        self._progress = Progress(
            config.index, config.instance.size, self._chain.head().height, self._chain.block
        )
        memory = Memory(
            genesis,
            self._verifier,
            replica=self,
            roots=self._roots,
            pool=self._pool,
            machine=self._machine,
            progress=self._progress,
        )
        self._caretaker = Caretaker(config.index, config.instance.size, self._store, mounted, memory)
        self._snapshots = Snapshots()
        self._lag = Lag(config.patience)
        self._evidence = Shelf(self._store)
        self._recovery = Recovery(config.instance.size, self._verifier, nonce) if state.abstains else None
        self._sequence = sequence
        self._recorded = state
        self._unexecuted: deque[Block] = deque()
        self._serving = Serving(
            self._budget,
            config.limits.block_bytes,
            machine=self._machine,
            chain=self._chain,
            pool=self._pool,
            caretaker=self._caretaker,
            snapshots=self._snapshots,
            unexecuted=self._unexecuted,
        )
        self.executed_height = self._chain.head().height
        self.history = self._chain.history_range()
        self._effects: list[Effect] = []
        self._inputs: deque[events.Input] = deque()
        self._certified_view = 0
        self._certified_height = 0
        self._unsynced = False  # whether the block that was stored last may not be on disk yet
        self._urgent_height = 0  # of the last block whose results do not only come from its own batches
        self._now = 0
        self._sender: int | None = None
        self._halted = False
        self.counters: Counter[Reason] = Counter()
        self.commits = CommitTimes()
        self._arrivals = Arrivals()
        self.votes = RecentVotes(config.instance.size)
        self.failed_views = [0] * config.instance.size  # by leader, since this start

    @property
    def view(self) -> int:
        return self._machine.view

    @property
    def committed_height(self) -> int:
        return self._machine.root.height

    @property
    def behind(self) -> int:
        """How many blocks are final elsewhere and not executed here, as far as the newest certificate tells. Where its
        block is not here yet, views are counted instead: there are as many blocks at most.
        """
        newest, root = self._machine.high_qc, self._machine.root
        block = self._machine.block(newest.block)
        certified = root.height + newest.view - root.view if block is None else block.height
        return max(0, certified - self._config.depth + 1 - self.executed_height)

    @property
    def given_up(self) -> int:
        """How many views have ended with a timeout certificate since this start."""
        return self._machine.given_up

    @property
    def searched(self) -> int:
        """How often the whole store has been searched for damage since this start."""
        return self._caretaker.passes

    @property
    def waiting(self) -> tuple[int, int]:
        """How many batches wait for order here, and their bytes."""
        return len(self._pool), self._pool.size

    @property
    def waiting_since(self) -> int | None:
        """When the oldest batch that waits for order came here, or this start found it; None: none waits."""
        return self._arrivals.oldest

    @property
    def damaged(self) -> int:
        """How many entries of the store are known to be damaged and not mended yet."""
        return self._caretaker.open_findings

    @property
    def accused(self) -> list[int]:
        """How many records this broker holds that prove that a member broke the rules, by member."""
        return [self._evidence.held_of(member) for member in range(self._config.instance.size)]

    @property
    def abstaining(self) -> str:
        """Why this broker signs nothing; empty if it takes part."""
        if self._recovery is None:
            return ""
        return f"Its safety record was lost, so it signs nothing yet. {self._recovery.standing()}"

    # -- inputs ---------------------------------------------------------------------------------------------------------

    def start(self, now: int) -> list[Effect]:
        return self._step(now, None, lambda: self._start(now))

    def receive(self, now: int, sender: int, *messages: bytes) -> list[Effect]:
        """Messages of another broker, in their order; the transport has authenticated `sender`."""
        return self._step(now, sender, lambda: self._on_messages(sender, messages))

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:
        """A batch from a client of this broker, which was opened with this replica's state machine."""
        intake = Intake.HALTED

        def take() -> None:
            nonlocal intake
            intake, effects = self._pool.submit(batch, self.executed_height)
            if intake is Intake.TAKEN:
                self._on_pool(effects)
            else:
                self._refuse(Reason.REPLAYED if intake is Intake.KNOWN else Reason.QUOTA, intake.value)

        effects = self._step(now, None, take)
        return Submission(intake, effects)

    def fire(self, now: int, timer: Timer) -> list[Effect]:
        return self._step(now, None, lambda: self._on_timer(timer))

    def connected(self, now: int, member: int, *, up: bool) -> list[Effect]:
        """There is a connection to another broker now, or there no longer is. At the start there is one to each."""
        return self._step(now, None, lambda: self._on_connection(member, up=up))

    def _start(self, now: int) -> None:
        self._arrivals.came(self._pool, now)
        self._execute_all(self._machine.start(self._chain.uncommitted(), now))
        self._emit_all(self._caretaker.start())
        if self._recovery is not None:
            if Recovery.is_possible(self._config.instance.size):
                self._emit_all(self._recovery.start())
            else:
                self._halt(_cannot_recover(self._config.instance.size))

    def _step(self, now: int, sender: int | None, action: Callable[[], None]) -> list[Effect]:
        self._store.clear()  # the effects of the step before have been executed
        if self._snapshots.wants(self.executed_height, now):
            self._snapshots.freeze(self.executed_height, self._disk.frozen())
        self._now = now
        self._sender = sender
        try:
            self._require_able(sender)
            action()
            self._drive()
            self._resume()
            self._look_ahead()
        except Refusal as refusal:
            self._refuse(refusal.reason, refusal.detail)
        except SafetyViolation as violation:
            self._halt(str(violation))
        except Unusable as damage:
            self._on_damage(damage)
        self._show_certified()
        effects, self._effects = self._effects, []
        return _up_to_restart(effects)

    def _require_able(self, sender: int | None) -> None:
        if self._halted:
            raise Refusal(Reason.HALTED)
        if sender is not None and not 0 <= sender < self._config.instance.size:
            raise Refusal(Reason.UNKNOWN_SIGNER, f"sender {sender}")

    def _on_messages(self, sender: int, messages: Sequence[bytes]) -> None:
        """A message that is refused takes none of the others with it."""
        for data in messages:
            if self._halted:
                return
            try:
                message = wire.decode(data)
                self._on_message(sender, message)
                if not isinstance(message, BatchMessage):  # those only wait here
                    self._drive()
            except Refusal as refusal:
                self._refuse(refusal.reason, refusal.detail)

    def _on_message(self, sender: int, message: wire.WireMessage) -> None:
        match message:
            case Proposal() | Vote() | Timeout() | Certificates():
                self._machine.screen(message)
                self._inputs.append(self._verifier.message(message))
            case BatchMessage():
                self._on_pool(self._pool.receive(sender, message.data, self.executed_height))
            case BlocksResponse():
                self._on_blocks(sender, message)
            case Records():
                self._on_records(lambda: self._caretaker.receive_records(sender, message, self._now))
            case Values():
                self._on_records(lambda: self._caretaker.receive_values(sender, message, self._now))
            case RecoveryRequest():
                self._answer_recovery(sender, message)
            case RecoveryAnswer():
                self._on_recovery(sender, message)
            case SnapshotOffer() | SnapshotNodes() | SnapshotEntries():
                self._on_snapshot(sender, message)
            case _:
                self._emit_all(self._serving.answer(sender, message, self._now))

    def _on_timer(self, timer: Timer) -> None:
        match timer:
            case pool.BatchTimer():
                self._on_pool(self._pool.on_timer(timer))
            case sync.SyncTimer():
                self._emit_all(
                    self._sync.on_timer(timer, self.committed_height, self._arrived, paused=self._busy)
                )
            case events.ViewTimer() | events.Heartbeat() | events.PaceOver() | events.GraceOver():
                self._inputs.append(events.TimerFired(timer))
            case CareTimer():
                self._emit_all(self._caretaker.on_timer(timer, self._now))
            case RecoveryTimer():
                if self._recovery is not None:
                    self._emit_all(self._recovery.on_timer(timer))
            case JoinTimer():  # of a snapshot that is here since
                return

    def _on_connection(self, member: int, *, up: bool) -> None:
        self._pool.connected(member, up=up)
        self._sync.connected(member, up=up)
        self._inputs.append(events.Connection(member, up))

    # -- consensus --------------------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Feed the machine until it has nothing more to say."""
        while self._inputs:
            self._execute_all(self._machine.handle(self._inputs.popleft(), self._now))

    def _execute_all(self, effects: Iterable[events.Effect]) -> None:
        for effect in effects:
            self._execute(effect)

    def _execute(self, effect: events.Effect) -> None:
        match effect:
            case events.StoreBlock():
                self._store_block(effect)
            case events.PersistSafety():
                self._verifier.remember_own(effect.state.last_vote)
                self._sequence += 1
                self._recorded = effect.state
                record = encode_record(self._sequence, effect.state)
                self._effects.append(PersistSafety(self._sequence % SLOTS, record))
            case events.Send() | events.Broadcast() | events.SetTimer():
                self._emit(effect)
            case events.RequestPayload() | events.RequestWork() | events.OfferWork():
                self._consult_pool(effect)
            case events.RequestBatches():
                self._on_pool(self._pool.fetch(effect.block, committed=False))
            case events.RequestBlocks():
                self._get_blocks(effect.qc)
            case events.Commit():
                self.commits.committed(effect.blocks, self._now)
                self._unexecuted.extend(effect.blocks)
                self._execute_blocks()
            case events.Prune():
                self._prune(effect.blocks)
            case events.Diverged():
                self._on_divergence(effect)
            case _:
                self._tell(effect)

    def _tell(self, effect: events.ReportMisbehaviour | events.ViewFailed | events.Refuse) -> None:
        """What changes nothing here, but others should know."""
        match effect:
            case events.ReportMisbehaviour():
                self._report(effect.evidence)
            case events.ViewFailed():
                self.failed_views[effect.leader] += 1
                self._effects.append(ViewFailed(effect.view, effect.leader))
            case events.Refuse():
                self._refuse(effect.reason, effect.detail)

    def _consult_pool(self, effect: events.RequestPayload | events.RequestWork | events.OfferWork) -> None:
        taken = self._taken(effect.exclude)
        match effect:
            case events.RequestPayload():
                self._inputs.append(events.Payload(effect.view, self._pool.payload(taken)))
            case events.RequestWork():
                if self._pool.first(taken) is not None:
                    self._inputs.append(events.WorkPending(effect.view))
            case events.OfferWork():
                if (batch := self._pool.first(taken)) is not None:
                    self._emit(events.Send(effect.to, BatchMessage(batch)))

    def _store_block(self, effect: events.StoreBlock) -> None:
        if effect.sync:  # it is to be voted for now
            self.commits.proposed(effect.block, self._now)
        self._unsynced = not effect.sync  # a synced write brings all before it to disk
        self._write(store_block(effect.block), sync=effect.sync)

    def _report(self, evidence: events.Evidence) -> None:
        if entries := self._evidence.keep(evidence):
            self._write(entries, sync=False)
        self._effects.append(Report(evidence))

    def _get_blocks(self, qc: events.VerifiedQC) -> None:
        stored = self._chain.uncommitted_block(qc.block)
        if (
            stored is not None
            and (stored.id, stored.view) == (qc.block, qc.view)
            and self._machine.known(stored.parent)
        ):
            self._inputs.append(self._verifier.chain((stored,), qc.qc))
        else:
            self._lag.saw(qc.view - self._machine.root.view, self._now)
            self._emit_all(self._sync.want(qc, self.committed_height))

    def _taken(self, in_chain: frozenset[bytes]) -> frozenset[bytes]:
        """Batches that need no place in a block: in the chain already, committed or not."""
        return in_chain.union(*(block.batches for block in self._unexecuted))

    def _prune(self, blocks: tuple[bytes, ...]) -> None:
        self.commits.abandoned(blocks)
        for block in blocks:
            self._pool.abandon(block)
        self._write([(layout.uncommitted(block), None) for block in blocks], sync=False)

    # -- execution ----------------------------------------------------------------------------------------------------------

    def _execute_blocks(self) -> None:
        """Apply committed blocks in order, each as soon as all its batches are here."""
        while self._unexecuted:
            bodies = self._bodies(self._unexecuted[0])
            if bodies is None:
                for block in list(islice(self._unexecuted, FETCH_AHEAD)):
                    self._on_pool(self._pool.fetch(block, committed=True))
                return
            self._apply(self._unexecuted.popleft(), bodies)

    def _bodies(self, block: Block) -> list[tuple[bytes, bytes]] | None:
        bodies = []
        for name in block.batches:
            body = self._pool.body(name) or self._stored_body(block, name)
            if body is None:
                return None
            bodies.append((name, body))
        return bodies

    def _stored_body(self, block: Block, name: bytes) -> bytes | None:
        """What is executed must be what was ordered: a damaged body is as good as none, and others have it."""
        body = self._chain.batch(name)
        if body is None or self._admitted(body, name) is not None:
            return body
        self._emit_all(self._caretaker.discard_body(block, name))
        return None

    def _waiting(self) -> Iterator[tuple[bytes, pool.Pending]]:
        """The batches that waited before a restart and are what they are named after, with their sessions."""
        for name, pending in self._chain.waiting():
            if (batch := self._admitted(pending.data, name)) is not None:
                yield (
                    name,
                    replace(
                        pending, session=batch.session, sequence=batch.sequence, following=batch.following
                    ),
                )

    def _admitted(self, body: bytes, name: bytes) -> AdmittedBatch | None:
        """The batch, if it is the one that has this name."""
        try:
            batch = self._state_machine.admit(body)
        except InadmissibleError:
            return None
        return batch if batch.digest == name else None

    def _apply(self, block: Block, bodies: list[tuple[bytes, bytes]]) -> None:
        try:
            results = self._state_machine.apply(block, bodies, layout.StateView(self._store))
        except DamagedMap as error:
            raise Unusable("s/", f"cannot be read to execute block {block.height}: {error}") from error
        except Exception as error:
            # A damaged record breaks an application in ways of its own: a bad batch is only refused. But a state that is
            # sound shows that the fault is another one. It would meet all members at this block, and if each of them gave
            # its state up for a snapshot, there would be nobody left to offer one.
            damaged = self._caretaker.state_damage()
            if damaged is None:
                raise
            raise Unusable(damaged, f"is damaged, so that block {block.height} cannot be executed") from error
        done = self._pool.settle(block.batches, results.settled, block.height, results.put_off)
        self._arrivals.gone(done)
        tree = merkle.Tree(results.leaves)
        entries, roots = applied_entries(block, results, tree, self.history, done)
        # Its block and batches are on disk since the vote: a crash can only take back what executing again brings back.
        self._write(entries, sync=False, applies=block.height)
        self.executed_height = block.height
        self._progress.executed(block)
        self.votes.executed(block)
        if results.urgent:
            self._urgent_height = block.height
        self._roots[block.height] = roots
        self._roots.pop(block.height - ROOTS_KEPT, None)
        self._effects.append(Applied(block, results.receipts, results.leaves, tree))
        self._inputs.append(events.Executed(block.height, roots))

    # -- mempool and sync -----------------------------------------------------------------------------------------------------

    def _on_pool(self, effects: Iterable[pool.Effect]) -> None:
        for effect in effects:
            match effect:
                case pool.StoreBatch():
                    self._write(store_batch(effect), sync=effect.sync, deferrable=True)
                    if effect.waits:
                        self._arrivals.came([effect.digest], self._now)
                        if _AVAILABLE not in self._inputs:
                            self._inputs.append(_AVAILABLE)
                case pool.TooLarge():
                    self._refuse(Reason.OVERSIZED, f"batches of block {effect.block.hex()}")
                case pool.Ready():
                    self._inputs.append(events.BatchesReady(effect.block))
                    if self._unexecuted and self._unexecuted[0].id == effect.block:
                        self._execute_blocks()
                case _:
                    self._emit(effect)

    def _on_blocks(self, sender: int, response: BlocksResponse) -> None:
        try:
            self._inputs.append(self._sync.receive(sender, response, self._machine.known))
            self._drive()
        finally:
            if not self._busy:
                self._emit_all(self._sync.resume(self.committed_height, self._arrived))

    @property
    def _busy(self) -> bool:
        """Execution is far behind: do not fetch still more blocks into memory."""
        return len(self._unexecuted) > MAX_UNEXECUTED

    def _arrived(self, qc: events.VerifiedQC) -> bool:
        return self._machine.known(qc.block) or qc.view <= self._machine.root.view

    def _show_certified(self) -> None:
        """Tell the driver of the newest certified header, once its results have been computed here as well."""
        qc = self._machine.high_qc.qc
        if qc.view <= self._certified_view:
            return
        block = self._machine.block(qc.block)
        if block is not None and block.header.executed_height <= self.executed_height:
            self._certified_view = qc.view
            self._certified_height = max(self._certified_height, block.header.executed_height)
            self._snapshots.certified(block.header, qc)
            if self._unsynced:  # clients are answered for blocks that this replica only fetched, too
                self._unsynced = False
                self._write([], sync=True)
            self._effects.append(Certified(block.header, qc))

    # -- damage, snapshots, lost records ------------------------------------------------------------------------------------------

    def _on_records(self, receive: Callable[[], list[CareEffect]]) -> None:
        """Refused or not, the caretaker goes on from there."""
        try:
            self._emit_all(receive())
        finally:
            self._emit_all(self._caretaker.resume(self._now))

    def _look_ahead(self) -> None:
        """Ask for a snapshot if blocks do not get this replica any further."""
        waiting = self._unexecuted[0].height if self._unexecuted else None
        request = self._lag.ask(self._now, self.executed_height, waiting)
        if request is not None and not too_often(self._store, self._config.patience, self.executed_height):
            self._emit(events.Broadcast(request))

    def _on_snapshot(self, sender: int, message: SnapshotOffer | SnapshotNodes | SnapshotEntries) -> None:
        above = self._lag.above(self._now, self.executed_height)
        if above is None or not isinstance(message, SnapshotOffer) or message.header.executed_height <= above:
            raise Refusal(Reason.UNSOLICITED, f"a snapshot from member {sender}")
        require_certified(message, self._config.instance, self._verifier)
        if not too_often(self._store, self._config.patience, self.executed_height):
            height = message.header.executed_height
            self._rejoin(
                above, f"This broker is at height {self.executed_height}, and others are beyond {height}."
            )

    def _on_divergence(self, effect: events.Diverged) -> None:
        why = _diverged(effect)
        if too_often(self._store, self._config.patience, self.executed_height):
            self._effects.append(Halt(why))
            return
        self._effects.append(Found(f"the state of height {effect.height}", why, mended=False))
        self._rejoin(max(effect.height - 1, 0), why)

    def _on_damage(self, damage: Unusable) -> None:
        if too_often(self._store, self._config.patience, self.executed_height):
            self._halt(str(damage))
            return
        self._effects.append(Found(damage.entry, damage.what, mended=False))
        self._rejoin(0, str(damage))

    def _rejoin(self, above: int, why: str) -> None:
        """Give the state up. What runs here next fetches a certified one; this replica does nothing any more."""
        self._write([(layout.JOINING, u64(above))], sync=True)
        self._effects.append(Restart(f"{why} It fetches a certified snapshot."))
        self._snapshots.drop()
        self._halted = True

    def _answer_recovery(self, sender: int, request: RecoveryRequest) -> None:
        """From the record alone: that is what shows what this member has signed. Who has lost its own says nothing."""
        self._budget.require(sender, self._now)
        self._budget.charge(sender, BATCHES_QUESTION)
        if self._recovery is None:
            answer = RecoveryAnswer(request.nonce, self._recorded.high_qc, self._recorded.high_tc)
            self._emit(events.Send(sender, answer))

    def _on_recovery(self, sender: int, answer: RecoveryAnswer) -> None:
        if self._recovery is None:
            raise Refusal(Reason.UNSOLICITED, f"certificates from member {sender}")
        self._recovery.receive(sender, answer)

    def _resume(self) -> None:
        """Take part again as soon as the newest certificate leaves the forgotten life behind."""
        if self._recovery is not None and self._recovery.is_safe(self._machine.high_qc.view):
            self._recovery = None
            self._inputs.append(events.Resume(self._machine.high_qc))
            self._drive()

    # -- output -----------------------------------------------------------------------------------------------------------------

    def _write(
        self, entries: Entries, *, sync: bool, applies: int | None = None, deferrable: bool = False
    ) -> None:
        self._store.write(entries)
        self._effects.append(Write(tuple(entries), sync, applies, deferrable))

    def _emit_all(self, effects: Iterable[_Outgoing]) -> None:
        for effect in effects:
            self._emit(effect)

    def _emit(self, effect: _Outgoing) -> None:
        match effect:
            case events.Send():
                self._effects.append(Send(effect.to, wire.encode(effect.message)))
            case events.Broadcast():
                self._effects.append(Broadcast(wire.encode(effect.message)))
            case events.SetTimer(timer=events.Heartbeat()) if self._urgent_height > self._certified_height:
                self._effects.append(SetTimer(effect.timer, min(effect.delay, HURRY)))
            case events.SetTimer():
                self._effects.append(SetTimer(effect.timer, effect.delay))
            case Write():
                self._store.write(effect.entries)
                self._effects.append(effect)
                written = (key for key, _ in effect.entries if key.startswith(layout.APPLICATION))
                self._state_machine.repaired([key.removeprefix(layout.APPLICATION) for key in written])
            case Send() | Found() | Restart():
                self._effects.append(effect)
            case FetchBodies():
                self._on_pool(self._pool.fetch(effect.block, committed=True))

    def _refuse(self, reason: Reason, detail: str) -> None:
        self.counters[reason] += 1
        self._effects.append(Refused(self._sender, reason, detail))

    def _halt(self, why: str) -> None:
        self._halted = True
        self._effects.append(Halt(why))


_AVAILABLE = events.PayloadAvailable()

_Outgoing = (
    Send
    | events.Send
    | events.Broadcast
    | events.SetTimer[events.Timer]
    | events.SetTimer[pool.BatchTimer]
    | events.SetTimer[sync.SyncTimer]
    | events.SetTimer[CareTimer]
    | events.SetTimer[RecoveryTimer]
    | Write
    | Found
    | Restart
    | FetchBodies
)


def _up_to_restart(effects: list[Effect]) -> list[Effect]:
    """Nothing happens after a restart: not in this life."""
    last = next((at for at, effect in enumerate(effects) if isinstance(effect, Restart)), len(effects))
    return effects[: last + 1]


def _cannot_recover(size: int) -> str:
    return (
        f"The safety record of this broker is lost, and in a network of {size} there are not enough others to tell it what "
        f"it may still sign. Find the old record, or make a new network; with three brokers or more one may lose its record."
    )


def _diverged(effect: events.Diverged) -> str:
    return (
        f"A quorum certified other results for height {effect.height} than this replica computed (block "
        f"{effect.block.hex()}). Its state is wrong: it no longer votes or proposes. Check disk and version, then "
        f"rejoin from a certified snapshot."
    )
