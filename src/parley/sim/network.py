"""The links between replicas: slow, lossy, repeating, out of order, and cut in one direction or both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from parley.sim.chance import stream

Link = tuple[int, int]  # (sender, receiver): each direction is a link of its own


@dataclass(frozen=True, slots=True)
class Weather:
    """How links behave. Latencies in milliseconds, the rest are probabilities per message."""

    min_latency: int = 5
    max_latency: int = 60
    loss: float = 0.0
    duplication: float = 0.0
    straggling: float = 0.0  # the message takes up to `straggle` longer and is overtaken by many
    straggle: int = 3000


CALM = Weather()


class Network:
    """Decides when, how often and whether a message arrives. Every link draws from its own stream."""

    def __init__(self, seed: int, size: int, weather: Weather = CALM) -> None:
        self.size = size
        self.weather = weather
        self.sent = 0
        self.lost = 0
        self._cuts = [[0] * size for _ in range(size)]
        self._chance = [[stream(seed, "link", a, b) for b in range(size)] for a in range(size)]

    def delays(self, sender: int, receiver: int) -> tuple[int, ...]:
        """After how many milliseconds a message sent now arrives: never, once or twice."""
        self.sent += 1
        chance = self._chance[sender][receiver]
        weather = self.weather
        if self._cuts[sender][receiver] or chance.random() < weather.loss:
            self.lost += 1
            return ()
        if chance.random() < weather.duplication:
            return (self._delay(chance), self._delay(chance))
        return (self._delay(chance),)

    def cut(self, links: Iterable[Link]) -> None:
        """Cut these directed links; cuts add up, so each needs its own `mend`."""
        for sender, receiver in links:
            self._cuts[sender][receiver] += 1

    def mend(self, links: Iterable[Link]) -> None:
        for sender, receiver in links:
            self._cuts[sender][receiver] = max(0, self._cuts[sender][receiver] - 1)

    def is_cut(self, one: int, other: int) -> bool:
        """Whether nothing gets through in at least one direction."""
        return bool(self._cuts[one][other] or self._cuts[other][one])

    def heal(self) -> None:
        """Mend every link and calm the weather."""
        self._cuts = [[0] * self.size for _ in range(self.size)]
        self.weather = CALM

    def _delay(self, chance: Random) -> int:
        weather = self.weather
        delay = chance.randint(weather.min_latency, weather.max_latency)
        if chance.random() < weather.straggling:
            delay += chance.randint(0, weather.straggle)
        return delay
