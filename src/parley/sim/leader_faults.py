"""The network and the faults under which leader schemes are compared: how far members are from each other, who is
faulty, and what faulty members do to messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parley.consensus.committee import quorum
from parley.consensus.events import Message
from parley.consensus.leader.schemes import SCHEMES, make
from parley.consensus.types import Proposal, Vote
from parley.sim.chance import stream
from parley.sim.ensemble import Ensemble, Links, Seat

WIDE_AREA = (40, 120)  # ms one way: from neighbouring countries to another continent
REGIONS = ("Virginia", "Oregon", "Frankfurt", "Tokyo", "São Paulo")
# One way, in ms: about half of the round trips that public clouds show between such places.
BETWEEN_REGIONS = (
    (5, 33, 45, 75, 57),
    (33, 5, 72, 50, 88),
    (45, 72, 5, 113, 102),
    (75, 50, 113, 5, 130),
    (57, 88, 102, 130, 5),
)
COLLUSION = 1  # ms that a message takes over the private links of colluders
JITTER = 5  # a message takes up to a fifth longer than the distance says


class Network(StrEnum):
    """Where the members are."""

    WAN = "wan"  # every two of them have a distance of their own
    REGIONS = "regions"  # evenly spread over five regions, so that some are always close to each other


class Distances:
    """Links between members; the seed says how far they are and how long each message takes."""

    def __init__(self, network: Network, seed: int, size: int) -> None:
        self._distance = _wide_area(seed, size) if network is Network.WAN else _regions(seed, size)
        # A stream for each link: what one link carries changes nothing on another.
        self._chance = [[stream(seed, "link", a, b).random for b in range(size)] for a in range(size)]

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        del message
        return self._travel(sender.member, receiver.member)

    def fetch_delay(self, receiver: Seat, donor: Seat) -> int | None:
        if donor.machine is None:
            return None
        return self._travel(receiver.member, donor.member) + self._travel(donor.member, receiver.member)

    def _travel(self, a: int, b: int) -> int:
        distance = self._distance[a][b]
        return distance + int(self._chance[a][b]() * (distance // JITTER + 1))


def _wide_area(seed: int, size: int) -> list[list[int]]:
    chance = stream(seed, "distances")
    distance = [[0] * size for _ in range(size)]
    for a in range(size):
        for b in range(a):
            distance[a][b] = distance[b][a] = chance.randint(*WIDE_AREA)
    return distance


def _regions(seed: int, size: int) -> list[list[int]]:
    homes = [i % len(REGIONS) for i in range(size)]
    stream(seed, "homes").shuffle(homes)
    return [[BETWEEN_REGIONS[a][b] for b in homes] for a in homes]


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
