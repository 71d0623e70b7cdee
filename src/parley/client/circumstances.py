"""What a client knows of the brokers while it waits in vain: who answers, how many are missing, how old the news is."""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_TOLERANCE = 2_000  # ms by which clocks may differ: brokers allow each other as much


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Which of `brokers` have answered and which were asked in vain; `needed` of them have to take part to order anything.

    `header_age` is in ms, of the newest certified header that was shown; None: none was. `clock_ahead` is by how many ms
    this machine's clock is ahead of those of f+1 brokers. It is negative if the clock is behind them, or behind a
    certified header; 0 if there is no reason to doubt it.
    """

    answered: tuple[str, ...]
    silent: tuple[str, ...]
    brokers: int
    needed: int
    header_age: int | None = None
    clock_ahead: int = 0

    @property
    def missing(self) -> int:
        """How many more brokers have to answer. 0 while some were not asked: they may."""
        asked = len(self.answered) + len(self.silent)
        return max(0, self.needed - len(self.answered)) if asked >= self.brokers else 0

    @property
    def counted(self) -> str:
        """Who answers, and how many are missing, in words."""
        asked = len(self.answered) + len(self.silent)
        of = f"{self.brokers} brokers" if asked >= self.brokers else f"{asked} brokers that were asked"
        names = f" ({', '.join(self.answered)})" if self.answered else ""
        missing = f"; {self.needed} are needed, {self.missing} missing" if self.missing else ""
        return f"{len(self.answered)} of {of} answer{names}{missing}"

    def __str__(self) -> str:
        said = [f"{self.counted}."]
        if self.header_age is not None:
            said.append(f"The newest certified header that was shown is {self.header_age / 1_000:.1f} s old.")
        if self.clock_ahead:
            way = "ahead of" if self.clock_ahead > 0 else "behind"
            said.append(
                f"This machine's clock may be wrong: it is {abs(self.clock_ahead) / 1_000:.1f} s {way} the brokers' clocks."
            )
        return " ".join(said)


def clock_ahead(offsets: list[int], enough: int) -> int:
    """By how much this clock is ahead of the clocks of `enough` brokers, one of which is honest; 0: it may be right.

    `offsets` are how far the brokers' clocks were ahead of this one when they said so.
    """
    if len(offsets) < enough:
        return 0
    ordered = sorted(offsets)
    lowest, highest = ordered[enough - 1], ordered[-enough]
    if lowest < -CLOCK_TOLERANCE:
        return -lowest
    return -highest if highest > CLOCK_TOLERANCE else 0
