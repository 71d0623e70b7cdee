"""Drivers of bare machines: one fed by hand, or a whole committee with a clock, a lossy network and restarts."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass
from itertools import count
from typing import TypeVar

from tests.consensus.chains import Committee, batch, roots_at

from parley.consensus import events
from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Effect, Evidence, Input, Message, Refuse
from parley.consensus.forest import Forest
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.leader.round_robin import RoundRobin
from parley.consensus.machine import Config, Machine
from parley.consensus.record import SLOTS, SafetyState, encode_record, recover_record
from parley.consensus.safety import SafetyRules, initial_state
from parley.consensus.types import Block, Certificates, Header, Proposal, Roots, Timeout, Vote

VIEW_TIMEOUT = 1_000
LONGEST_TIMEOUT = 4_000
HEARTBEAT = 200
LATENCY = 10

E = TypeVar("E")


def build(
    committee: Committee,
    index: int,
    state: SafetyState,
    *,
    history: Sequence[Block] = (),
    roots: dict[int, Roots] | None = None,
    leaders: LeaderScheme | None = None,
    vote_grace: int = 0,
    pace: int = 0,
) -> tuple[Machine, SafetyRules]:
    """A machine as a replica assembles it from its record and its chain."""
    verifier = committee.verifier()
    safety = SafetyRules(committee.instance, committee.authority.signer(index), state)
    machine = Machine(
        Config(
            committee.instance,
            index,
            committee.depth,
            VIEW_TIMEOUT,
            LONGEST_TIMEOUT,
            HEARTBEAT,
            vote_grace,
            pace,
        ),
        safety=safety,
        scheme=committee.scheme,
        leaders=leaders or RoundRobin(committee.size),
        high_qc=verifier.qc(state.high_qc),
        high_tc=None if state.high_tc is None else verifier.tc(state.high_tc),
        history=history or [committee.genesis],
        roots=roots or {0: roots_at(0)},
    )
    return machine, safety


class TwoLeaders:
    """A view has one leader by QC and another by TC, as P8 allows."""

    memory = 0

    def leader(self, view: int, entered_by: EnteredBy, ancestry: Iterable[Header]) -> int:
        del ancestry
        return (view + (entered_by is EnteredBy.TC)) % 4


def only(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def reasons(effects: Iterable[Effect]) -> list[Reason]:
    return [refusal.reason for refusal in only(Refuse, effects)]


def sent(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    """Messages of this kind that left, to one or to all."""
    messages = [effect.message for effect in effects if isinstance(effect, events.Send | events.Broadcast)]
    return [message for message in messages if isinstance(message, kind)]


def kinds(effects: Iterable[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def committed(effects: Iterable[Effect]) -> list[Block]:
    return [block for commit in only(events.Commit, effects) for block in commit.blocks]


class Solo:
    """One started machine; every method returns what the machine did."""

    def __init__(
        self,
        committee: Committee,
        index: int = 0,
        *,
        state: SafetyState | None = None,
        stored: Sequence[Block] = (),
        history: Sequence[Block] = (),
        roots: dict[int, Roots] | None = None,
        leaders: LeaderScheme | None = None,
        vote_grace: int = 0,
        pace: int = 0,
        now: int = 0,
    ) -> None:
        self.committee = committee
        self.verifier = committee.verifier()
        self.now = now
        state = state or initial_state(committee.instance, index, committee.genesis_qc)
        self.machine, self.safety = build(
            committee,
            index,
            state,
            history=history,
            roots=roots,
            leaders=leaders,
            vote_grace=vote_grace,
            pace=pace,
        )
        self.started = self.machine.start(stored, now)
        self.timers = [effect.timer for effect in self.started if isinstance(effect, events.SetTimer)]

    def receive(self, message: Message) -> list[Effect]:
        """As a replica does: screen, verify, handle."""
        try:
            self.machine.screen(message)
            event = self.verifier.message(message)
        except Refused as refusal:
            return [Refuse(refusal.reason, refusal.detail)]
        return self.feed(event)

    def feed(self, event: Input) -> list[Effect]:
        effects = self.machine.handle(event, self.now)
        self.timers += [effect.timer for effect in effects if isinstance(effect, events.SetTimer)]
        return effects

    def propose(self, block: Block) -> list[Effect]:
        return self.receive(self.committee.proposal(block))

    def time_out(self) -> list[Effect]:
        """The view timer that was set last fires."""
        newest = [timer for timer in self.timers if isinstance(timer, events.ViewTimer)][-1]
        return self.feed(events.TimerFired(newest))

    def observable(self) -> tuple[object, ...]:
        machine = self.machine
        return machine.view, machine.root.id, machine.high_qc, self.safety.state

    def inside(self) -> object:
        """Everything that the machine remembers, apart from its clock."""
        return _remembered(self.machine)


def _remembered(thing: object) -> object:
    if isinstance(thing, dict):
        return {key: _remembered(value) for key, value in thing.items() if value != {}}
    if isinstance(thing, list | set):
        return [_remembered(value) for value in sorted(thing, key=repr)]
    if type(thing).__module__.startswith("parley.consensus") and not is_dataclass(thing):
        members = getattr(thing, "__dict__", {})
        return {name: _remembered(value) for name, value in members.items() if name != "_now"} or thing
    return repr(thing)


@dataclass
class Seat:
    """One member's disk and its running machine."""

    index: int
    slots: list[list[bytes]]
    sequence: int
    committed: list[Block]
    stored: dict[bytes, Block] = field(default_factory=dict)
    executed: dict[int, Roots] = field(default_factory=lambda: {0: roots_at(0)})
    machine: Machine | None = None
    life: int = 0
    votes: list[Vote] = field(default_factory=list)
    timeouts: list[Timeout] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    offers: list[events.OfferWork] = field(default_factory=list)
    failed_views: list[events.ViewFailed] = field(default_factory=list)
    refusals: list[Reason] = field(default_factory=list)
    pruned: list[bytes] = field(default_factory=list)
    views: list[int] = field(default_factory=list)

    @property
    def running(self) -> Machine:
        assert self.machine is not None
        return self.machine


class Cluster:
    """Machines of one committee under a virtual clock. `lost(sender, to, message)` decides what the network drops."""

    def __init__(
        self,
        committee: Committee,
        *,
        dead: Iterable[int] = (),
        payload: bool = True,
        vote_grace: int = 0,
        pace: int = 0,
        lost: Callable[[int, int, Message], bool] = lambda _sender, _to, _message: False,
    ) -> None:
        self.committee = committee
        self.verifier = committee.verifier()
        self.lost = lost
        self.now = 0
        self.payload = payload
        self._vote_grace = vote_grace
        self._pace = pace
        self._batches = count(1)
        self._order = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.seats = [self._seat(index) for index in range(committee.size)]
        self.dead = set(dead)
        for seat in self.alive:
            self.boot(seat.index)

    @property
    def alive(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.index not in self.dead]

    def run(self, until: int) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = until

    def kill(self, index: int) -> None:
        self.dead.add(index)
        self.seats[index].machine = None

    def boot(self, index: int) -> None:
        """Start from what the disk holds, as often as wanted."""
        seat = self.seats[index]
        self.dead.discard(index)
        seat.life += 1
        seat.sequence, state = recover_record(seat.slots, "the test")
        root = seat.committed[-1].header
        lowest = Forest.needed_history(root, self.committee.depth, 0)
        seat.machine, _ = build(
            self.committee,
            index,
            state,
            history=seat.committed[lowest:],
            roots={height: seat.executed[height] for height in range(root.executed_height, root.height + 1)},
            vote_grace=self._vote_grace,
            pace=self._pace,
        )
        self._drive(seat, seat.machine.start(list(seat.stored.values()), self.now))

    def receive(self, seat: Seat, message: Message) -> None:
        try:
            seat.running.screen(message)
            event = self.verifier.message(message)
        except Refused as refusal:
            seat.refusals.append(refusal.reason)
            return
        self.feed(seat, event)

    def feed(self, seat: Seat, event: Input) -> None:
        self._drive(seat, seat.running.handle(event, self.now))

    def _seat(self, index: int) -> Seat:
        state = initial_state(self.committee.instance, index, self.committee.genesis_qc)
        slots = [[encode_record(sequence, state)] * 2 for sequence in range(SLOTS)]
        return Seat(index, slots, SLOTS - 1, [self.committee.genesis])

    def _drive(self, seat: Seat, effects: list[Effect]) -> None:
        inputs: list[Input] = []
        while True:
            for effect in effects:
                self._execute(seat, effect, inputs)
            seat.views.append(seat.running.view)
            if not inputs:
                return
            effects = seat.running.handle(inputs.pop(0), self.now)

    def _execute(self, seat: Seat, effect: Effect, inputs: list[Input]) -> None:
        match effect:
            case events.Send(to, message):
                self._post(seat, to, message)
            case events.Broadcast(message):
                for to in range(self.committee.size):
                    if to != seat.index:
                        self._post(seat, to, message)
            case events.SetTimer(timer, delay):
                self._later(delay, seat, lambda: self.feed(seat, events.TimerFired(timer)))
            case events.RequestPayload(view):
                batches = (batch(next(self._batches)),) if self.payload else ()
                inputs.append(events.Payload(view, batches))
            case events.RequestWork(view):
                inputs += [events.WorkPending(view)] if self.payload else []
            case events.OfferWork():
                seat.offers.append(effect)
            case events.RequestBatches(block):
                inputs.append(events.BatchesReady(block.id))
            case events.RequestBlocks(qc):
                self._later(2 * LATENCY, seat, lambda: self._fetch(seat, qc))
            case events.Commit(blocks):
                inputs += [events.Executed(block.height, roots_at(block.height)) for block in blocks]
                self._keep(seat, effect)
            case _:
                self._keep(seat, effect)

    def _keep(self, seat: Seat, effect: Effect) -> None:
        """What changes the member's disk, or its notes."""
        match effect:
            case events.StoreBlock(block):
                seat.stored[block.id] = block
            case events.PersistSafety(state):
                seat.sequence += 1
                seat.slots[seat.sequence % SLOTS] = [encode_record(seat.sequence, state)] * 2
            case events.Commit(blocks):
                for block in blocks:
                    assert block.parent == seat.committed[-1].id
                    seat.committed.append(block)
                    seat.stored.pop(block.id, None)
                    seat.executed[block.height] = roots_at(block.height)
            case events.Prune(pruned):
                seat.pruned += pruned
                for id_ in pruned:
                    seat.stored.pop(id_, None)
            case events.ReportMisbehaviour(evidence):
                seat.evidence.append(evidence)
            case events.ViewFailed():
                seat.failed_views.append(effect)
            case events.Refuse(reason):
                seat.refusals.append(reason)
            case _:
                raise AssertionError(f"nobody expected {effect}")

    def _post(self, seat: Seat, to: int, message: object) -> None:
        match message:
            case Vote():
                seat.votes.append(message)
            case Timeout():
                seat.timeouts.append(message)
            case Proposal():
                seat.proposals.append(message)
            case Certificates():
                pass
            case _:
                raise AssertionError(f"consensus sends no {type(message).__name__}")
        if not self.lost(seat.index, to, message):
            receiver = self.seats[to]
            self._later(LATENCY, receiver, lambda: self.receive(receiver, message))

    def _later(self, delay: int, seat: Seat, action: Callable[[], None]) -> None:
        """Only if the same life of the member lasts until then."""
        life = seat.life

        def guarded() -> None:
            if seat.index not in self.dead and life in (seat.life, 0):
                action()

        heapq.heappush(self._agenda, (self.now + delay, next(self._order), guarded))

    def _fetch(self, seat: Seat, qc: events.VerifiedQC) -> None:
        """Catch up from whoever has the block."""
        for donor in self.alive:
            line: list[Block] = []
            known = {block.id: block for block in donor.committed} | donor.stored
            block = known.get(qc.block)
            while block is not None and block.height > seat.running.root.height:
                line.append(block)
                block = known.get(block.parent)
            if line and block is not None:
                self.feed(seat, self.verifier.chain(tuple(line[::-1]), qc.qc))
                return
