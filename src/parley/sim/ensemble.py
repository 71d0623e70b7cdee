"""Bare consensus machines of one committee under one virtual clock: no wire, disk or mempool, so very many runs are cheap.

The machines, their rules and every signature check are the real ones; a message is checked once for all its receivers.
A seat is one running copy of a member: twins are two seats of one member. What links do is the caller's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from parley.consensus import events
from parley.consensus.committee import instance_of
from parley.consensus.errors import Refused
from parley.consensus.events import Input, Message
from parley.consensus.forest import Forest
from parley.consensus.leader.protocol import LeaderScheme
from parley.consensus.machine import Config, Machine
from parley.consensus.record import SafetyState
from parley.consensus.safety import SafetyRules, initial_state
from parley.consensus.types import (
    Block,
    Certificates,
    Header,
    Proposal,
    Roots,
    Timeout,
    Vote,
    genesis_block,
    genesis_qc,
)
from parley.consensus.verify import Verifier
from parley.crypto.encoding import u64
from parley.crypto.hashing import digest
from parley.crypto.simulated import SimulatedAuthority
from parley.sim.clock import Clock


@dataclass(frozen=True, slots=True)
class Settings:
    """What all seats share; times in ms. `payload`: every proposal carries a batch of its own."""

    size: int
    depth: int = 2
    view_timeout: int = 1_000
    heartbeat: int = 200
    vote_grace: int = 0
    payload: bool = True


class Seat:
    """One running copy of a member: what it has on disk, and the machine while it runs."""

    def __init__(self, number: int, member: int, state: SafetyState, genesis: Block) -> None:
        self.number = number
        self.member = member
        self.state = state
        self.stored: dict[bytes, Block] = {}
        self.chain = [genesis]
        self.blocks = {genesis.id: genesis}  # every block it ever had, to serve those who catch up
        self.machine: Machine | None = None
        self.life = 0
        self.stopped = ""  # why it stopped for good

    @property
    def view(self) -> int:
        return 0 if self.machine is None else self.machine.view


class Links(Protocol):
    """The network between seats."""

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        """After how many ms a message sent now arrives; None if it never does."""

    def fetch_delay(self, receiver: Seat, donor: Seat) -> int | None:
        """After how many ms blocks asked of `donor` now are there; None if it cannot be reached."""


Watch = Callable[[Seat, events.Effect], None]  # sees every effect of every seat before it is executed
Alter = Callable[[Seat, Message], Message]  # what a liar sends instead


@dataclass(slots=True)
class _Envelope:
    message: Message
    event: Input | Refused | None = None


def view_of(message: Message) -> int:
    """The view that a message is about."""
    match message:
        case Proposal():
            return message.header.view
        case Vote() | Timeout():
            return message.view
        case Certificates():
            return message.qc.view if message.tc is None else max(message.qc.view, message.tc.view)


class Ensemble:
    """Seats of one committee. `members[i]` is the member whose key seat i holds."""

    def __init__(
        self,
        settings: Settings,
        members: Sequence[int],
        leaders: LeaderScheme,
        links: Links,
        *,
        watch: Watch | None = None,
        alter: Alter | None = None,
    ) -> None:
        self.settings = settings
        self.leaders = leaders
        self._links = links
        self._watch = watch
        self._alter = alter
        self._instance = instance_of(digest("sim/ensemble"), settings.size)
        self._authority = SimulatedAuthority(b"sim/ensemble", settings.size)
        self._genesis = genesis_block(self._instance, bytes(32), 0)
        self._verifier = Verifier(self._instance, self._authority.scheme(), self._genesis)
        self._clock: Clock[Callable[[], None]] = Clock()
        qc = genesis_qc(self._instance, self._genesis)
        blank = {m: initial_state(self._instance, m, qc) for m in set(members)}
        self.seats = tuple(Seat(i, m, blank[m], self._genesis) for i, m in enumerate(members))
        self._seats_of = {m: tuple(s for s in self.seats if s.member == m) for m in set(members)}

    @property
    def now(self) -> int:
        return self._clock.now

    def start(self, seat: Seat) -> None:
        """Start the seat from what is on its disk; also again after a power failure."""
        config, state = self.settings, seat.state
        root = seat.chain[-1].header
        lowest = Forest.needed_history(root, config.depth, self.leaders.memory)
        seat.life += 1
        machine = seat.machine = Machine(
            Config(
                self._instance,
                seat.member,
                config.depth,
                config.view_timeout,
                config.view_timeout,
                config.heartbeat,
                config.vote_grace,
                shortest_timeout=config.view_timeout,
            ),
            safety=SafetyRules(self._instance, self._authority.signer(seat.member), state),
            scheme=self._authority.scheme(),
            leaders=self.leaders,
            high_qc=self._verifier.qc(state.high_qc),
            high_tc=None if state.high_tc is None else self._verifier.tc(state.high_tc),
            history=seat.chain[lowest:],
            roots={h: _roots(seat.chain[h]) for h in range(root.executed_height, root.height + 1)},
        )
        self._step(seat, lambda: machine.start(list(seat.stored.values()), self.now))

    def sign(self, header: Header, batches: tuple[bytes, ...]) -> Proposal:
        """A proposal that a liar makes up in its own name."""
        signature = self._authority.signer(header.proposer).sign(self._instance.proposal_message(header.id()))
        return Proposal(header, batches, signature)

    def persist(self, seat: Seat, state: SafetyState) -> None:
        """Write and sync the safety record."""
        seat.state = state

    def run(self, until: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until `done` or until the time is over; whether it was done."""
        while not done():
            if (task := self._clock.next(until)) is None:
                return False
            task()
        return True

    # -- what happens to a seat ---------------------------------------------------------------------------------

    def _deliver(self, seat: Seat, envelope: _Envelope) -> None:
        machine = seat.machine
        if machine is None:
            return
        try:
            machine.screen(envelope.message)
        except Refused:
            return
        if envelope.event is None:
            envelope.event = self._verify(envelope.message)
        if not isinstance(envelope.event, Refused):
            self._feed(seat, envelope.event)

    def _verify(self, message: Message) -> Input | Refused:
        try:
            return self._verifier.message(message)
        except Refused as refusal:
            return refusal

    def _fire(self, seat: Seat, life: int, timer: events.Timer) -> None:
        if seat.life == life:
            self._feed(seat, events.TimerFired(timer))

    def _fetch(self, seat: Seat, life: int, qc: events.VerifiedQC, place: int) -> None:
        """Ask one seat after the other, as long as the blocks are wanted; unreachable ones cost time."""
        machine = seat.machine
        if machine is None or seat.life != life or machine.known(qc.block) or qc.view <= machine.root.view:
            return
        donor = self.seats[place]
        reached = donor is not seat and self._links.fetch_delay(seat, donor) is not None
        blocks = _line(donor, qc.block, machine) if reached else ()
        if blocks:
            self._feed(seat, self._verifier.chain(blocks, qc.qc))
        else:
            self._ask(seat, qc, (place + 1) % len(self.seats))

    def _ask(self, seat: Seat, qc: events.VerifiedQC, place: int) -> None:
        delay = self._links.fetch_delay(seat, self.seats[place])
        wait = self.settings.view_timeout // 4 if delay is None else delay
        self._clock.schedule(wait, partial(self._fetch, seat, seat.life, qc, place))

    def _feed(self, seat: Seat, event: Input) -> None:
        if (machine := seat.machine) is not None:
            self._step(seat, lambda: machine.handle(event, self.now))

    def _step(self, seat: Seat, act: Callable[[], list[events.Effect]]) -> None:
        """One input, and what its effects feed back, as a replica does."""
        inputs: deque[Input] = deque()
        try:
            effects = act()
            while True:
                for effect in effects:
                    self._execute(seat, effect, inputs)
                if not inputs or seat.machine is None:
                    return
                effects = seat.machine.handle(inputs.popleft(), self.now)
        except Exception as error:  # noqa: BLE001 - whatever stops a machine is for the caller to judge
            seat.stopped = f"{type(error).__name__}: {error}"
            seat.machine = None

    # -- what a seat does ---------------------------------------------------------------------------------------

    def _execute(self, seat: Seat, effect: events.Effect, inputs: deque[Input]) -> None:
        if self._watch is not None:
            self._watch(seat, effect)
        match effect:
            case events.Broadcast(message):
                self._post(seat, self.seats, message)
            case events.Send(to, message):
                self._post(seat, self._seats_of.get(to, ()), message)
            case events.SetTimer(timer, delay):
                self._clock.schedule(delay, partial(self._fire, seat, seat.life, timer))
            case events.RequestPayload(view):
                inputs.append(events.Payload(view, self._payload(seat, view)))
            case events.RequestBatches(block):
                inputs.append(events.BatchesReady(block.id))
            case events.RequestBlocks(qc):
                self._ask(seat, qc, (seat.number + 1) % len(self.seats))
            case events.PersistSafety(state):
                self.persist(seat, state)
            case events.Commit(blocks):
                inputs += [events.Executed(block.height, _roots(block)) for block in blocks]
                _keep(seat, effect)
            case _:
                _keep(seat, effect)

    def _post(self, seat: Seat, receivers: Sequence[Seat], message: object) -> None:
        assert isinstance(message, Proposal | Vote | Timeout | Certificates)
        envelope = _Envelope(message if self._alter is None else self._alter(seat, message))
        message = envelope.message
        for receiver in receivers:
            if receiver is not seat:
                delay = self._links.delay(seat, receiver, message)
                if delay is not None:
                    self._clock.schedule(delay, partial(self._deliver, receiver, envelope))

    def _payload(self, seat: Seat, view: int) -> tuple[bytes, ...]:
        """Different in each seat and life: twins that lead one view propose two blocks, and who forgets one, another."""
        if not self.settings.payload:
            return ()
        return (digest("sim/payload", u64(seat.number), u64(seat.life), u64(view)),)


def _keep(seat: Seat, effect: events.Effect) -> None:
    """What changes the seat's disk, or ends its part."""
    match effect:
        case events.StoreBlock(block):
            seat.stored[block.id] = seat.blocks[block.id] = block
        case events.Commit(blocks):
            for block in blocks:
                seat.chain.append(block)
                seat.stored.pop(block.id, None)
        case events.Prune(pruned):
            for id_ in pruned:
                seat.stored.pop(id_, None)
        case events.Diverged(height):
            seat.stopped = f"a quorum certified other results at height {height}"
        case _:  # evidence and refusals: nobody counts them here
            pass


def _line(donor: Seat, block: bytes, machine: Machine) -> tuple[Block, ...]:
    """The donor's blocks from the first that the asker lacks up to `block`; none if the donor lacks one."""
    line: list[Block] = []
    found = donor.blocks.get(block)
    while found is not None and found.height > machine.root.height and not machine.known(found.id):
        line.append(found)
        found = donor.blocks.get(found.parent)
    return tuple(line[::-1])


def _roots(block: Block) -> Roots:
    """The results of executing a chain are its newest block's id: other chains have other results."""
    if block.height == 0:
        return Roots(block.header.state_root, block.header.history_root)
    return Roots(block.id, block.id)
