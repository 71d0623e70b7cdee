"""The faults under which leader schemes are compared: who is faulty, and what faulty members do to messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parley.consensus.committee import quorum
from parley.consensus.events import Message
from parley.consensus.leader.schemes import SCHEMES, make
from parley.consensus.types import Proposal, Vote
from parley.sim.chance import stream
from parley.sim.distances import Distances, Network
from parley.sim.ensemble import Ensemble, Links, Seat

COLLUSION = 1  # ms that a message takes over the private links of colluders


class Fault(StrEnum):
    """What the faulty members do."""

    NONE = "none"  # there are no faulty members
    CRASH = "crash"  # never started
    WITHHOLD = "withhold"  # vote and time out like all others, but never propose
    OMIT = "omit"  # propose, but leave the votes of chosen victims out of certificates (R7)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. `faulty` is a number of members; the seed says which."""

    nodes: int
    faulty: int
    fault: Fault
    seed: int
    blocks: int = 3_000
    network: Network = Network.WAN

    @property
    def members(self) -> tuple[int, ...]:
        """The faulty ones."""
        count = 0 if self.fault is Fault.NONE else self.faulty
        return tuple(sorted(stream(self.seed, "faulty").sample(range(self.nodes), count)))

    @property
    def victims(self) -> tuple[int, ...]:
        """Whose votes colluders leave out: as many honest members as a QC can do without."""
        honest = sorted(set(range(self.nodes)) - set(self.members))
        return tuple(sorted(stream(self.seed, "victims").sample(honest, self.nodes - quorum(self.nodes))))

    @property
    def warm_up(self) -> int:
        """Blocks that do not count: the longest memory of all schemes, so that none of them is favoured."""
        return max(make(name, self.nodes).memory for name in SCHEMES)


def links(plan: Plan) -> Links:
    match plan.fault:
        case Fault.NONE | Fault.CRASH:
            return Distances(plan.network, plan.seed, plan.nodes)
        case Fault.WITHHOLD:
            return _Withholding(plan)
        case Fault.OMIT:
            return _Omitting(plan)


class _Withholding(Distances):
    """Proposals of faulty members never leave them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.network, plan.seed, plan.nodes)
        self._faulty = frozenset(plan.members)

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        if isinstance(message, Proposal) and sender.member in self._faulty:
            return None
        return super().delay(sender, receiver, message)


class _Omitting(Distances):
    """Colluders hear of proposals and vote before everybody else, and drop the votes of their victims (R7)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.network, plan.seed, plan.nodes)
        self._faulty = frozenset(plan.members)
        self._victims = frozenset(plan.victims)

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        if isinstance(message, Proposal) and receiver.member in self._faulty:
            return COLLUSION
        if isinstance(message, Vote):
            if sender.member in self._faulty:
                return COLLUSION
            if receiver.member in self._faulty and sender.member in self._victims:
                return None
        return super().delay(sender, receiver, message)


class Stopwatch(Distances):
    """Notes when each vote arrives."""

    ensemble: Ensemble

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.network, plan.seed, plan.nodes)
        self._size = plan.nodes
        self._quorum = quorum(plan.nodes)
        self._arrivals: dict[int, list[int]] = {}

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        delay = super().delay(sender, receiver, message)
        if isinstance(message, Vote) and delay is not None:
            self._arrivals.setdefault(message.view, []).append(self.ensemble.now + delay)
        return delay

    def longest_wait(self) -> int:
        """From the vote that completes a quorum to the last one, in the view where that takes longest."""
        # The collector's own vote is not sent; it is there among the first. In the last views not all have voted yet.
        complete = [sorted(times) for times in self._arrivals.values() if len(times) == self._size - 1]
        return max(times[-1] - times[self._quorum - 2] for times in complete)
