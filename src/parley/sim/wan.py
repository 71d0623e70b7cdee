"""Links across a wide area: every two members have their own distance, and no member is close to all the others."""

from __future__ import annotations

from parley.consensus.events import Message
from parley.sim.chance import stream
from parley.sim.ensemble import Seat

__all__ = ["Wan"]

DISTANCES = (40, 120)  # ms one way: from neighbouring countries to another continent
JITTER = 5  # a message takes up to a fifth longer than the distance says


class Wan:
    """The seed says how far members are from each other and how long each message takes."""

    def __init__(self, seed: int, size: int) -> None:
        distances = stream(seed, "distances")
        self._distance = [[0] * size for _ in range(size)]
        for a in range(size):
            for b in range(a):
                self._distance[a][b] = self._distance[b][a] = distances.randint(*DISTANCES)
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
