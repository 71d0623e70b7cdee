"""How long answers usually take, so that silence is noticed when it is not usual: sooner than the network's `ack` allows."""

from __future__ import annotations

from collections import deque

RECENT = 16  # answers that are looked back at
ENOUGH = 3  # of them, to say what is usual
TIMES = 4  # so many times as long as usual is silence
SHORTEST = 0.5  # seconds: a machine that is busy for a moment is no silent broker


class Pace:
    """The times that the last answers took."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)

    def took(self, seconds: float) -> None:
        """An answer came after so long."""
        self._recent.append(seconds)

    def patience(self, most: float) -> float:
        """Seconds after which silence is unusual, and another broker is asked as well; never more than `most`."""
        if len(self._recent) < ENOUGH:
            return most
        usual = sorted(self._recent)[len(self._recent) // 2]
        return min(most, max(SHORTEST, TIMES * usual))
