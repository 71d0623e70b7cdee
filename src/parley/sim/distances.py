"""How far members are from each other: spread over a wide area without neighbours, or in a few regions."""

from __future__ import annotations

from enum import StrEnum

from parley.consensus.events import Message
from parley.sim.chance import stream
from parley.sim.ensemble import Seat

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
