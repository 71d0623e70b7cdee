"""Liars that abuse the turn to propose: two blocks for one view, none at all, a fork, or data that nobody can get."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from parley.consensus.types import TC, Proposal, Timeout
from parley.crypto import merkle
from parley.mempool.messages import BatchMessage
from parley.replica import wire
from parley.replica.ports import Broadcast, Effect, Participant, Send
from parley.sim.byzantine.actor import Actor, Seat, to_each

REMEMBERED = 8


class EquivocatingProposer(Actor):
    """T18: both halves get a valid block, and its own votes for both."""

    name = "equivocator"
    story = "proposes two different blocks in one view to two halves, and votes for both"

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        if not isinstance(message, Proposal):
            return [effect]
        twin = self._twin(message)
        others = self.seat.others
        self.seat.chance.shuffle(others)
        one, other = others[: len(others) // 2], others[len(others) // 2 :]
        told = [*to_each(one, message), *to_each(other, twin)]
        if self.seat.chance.random() < 0.5:  # all hear of both, each half of another one first
            told += [*to_each(one, twin), *to_each(other, message)]
        votes = (self.seat.vote(p.header.view, p.header.id()) for p in (message, twin))
        return told + [Broadcast(wire.encode(vote)) for vote in votes]

    def _twin(self, proposal: Proposal) -> Proposal:
        header = proposal.header
        if proposal.batches and self.seat.chance.random() < 0.5:
            return self.seat.proposal(replace(header, batches_root=merkle.root(())), ())
        return self.seat.proposal(replace(header, time=header.time + 1), proposal.batches)


class SilentLeader(Actor):
    """T11: takes part in everything and proposes nothing."""

    name = "silent"
    story = "never proposes when it leads, and keeps the certificates that it forms"

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        return (
            [effect]
            if not isinstance(effect, Broadcast) or isinstance(message, Timeout | BatchMessage)
            else []
        )


class OldFork(Actor):
    """T14, T2: proposes again what extends an older certificate, with the newest TC or without any."""

    name = "fork"
    story = "proposes on an older certificate than it knows, with and without a timeout certificate"

    def __init__(self, replica: Participant, seat: Seat) -> None:
        super().__init__(replica, seat)
        self._older: deque[Proposal] = deque(maxlen=REMEMBERED)
        self._tc: TC | None = None

    def hear(self, _sender: int, message: wire.WireMessage) -> list[Effect]:
        match message:
            case Proposal():
                self._older.append(message)
            case Timeout(tc=TC() as tc) if self._tc is None or tc.view > self._tc.view:
                self._tc = tc
            case _:
                pass
        return []

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        if not isinstance(message, Proposal):
            return [effect]
        older = [p for p in self._older if p.header.justify.view < message.header.justify.view]
        if not older or self.seat.chance.random() < 0.2:
            return [effect]
        forks = [self._fork(message, self.seat.chance.choice(older), tc) for tc in self._excuses(message)]
        return [Broadcast(wire.encode(fork)) for fork in forks]

    def _fork(self, own: Proposal, older: Proposal, tc: TC | None) -> Proposal:
        # Everything that the older parent determines is copied, so that only the safety rule can refuse it.
        header = replace(
            older.header,
            view=own.header.view,
            proposer=self.seat.index,
            time=max(own.header.time, older.header.time),
            batches_root=own.header.batches_root,
            tc=tc,
        )
        return self.seat.proposal(header, own.batches)

    def _excuses(self, own: Proposal) -> list[TC | None]:
        """None, and the TC that would entitle the view if there is one."""
        return [None, own.header.tc or self._tc] if own.header.tc or self._tc else [None]


class BatchWithholder(Actor):
    """T20: orders digests of batches that few or none can get."""

    name = "withholder"
    story = "proposes digests of batches that it gives to nobody or to few, and answers no request for them"

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        chance = self.seat.chance
        match message:
            case BatchMessage():
                few = chance.sample(self.seat.others, chance.randint(0, 1))
                return to_each(few, message) if isinstance(effect, Broadcast) else []
            case Proposal() if chance.random() < 0.5:
                batches = (*message.batches, chance.randbytes(32))
                header = replace(message.header, batches_root=merkle.root(batches))
                return [Broadcast(wire.encode(self.seat.proposal(header, batches)))]
            case _:
                return [effect]
