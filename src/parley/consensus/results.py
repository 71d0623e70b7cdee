"""Execution results: what this replica computed, and what quorums certified. They must be the same (P2)."""

from __future__ import annotations

from parley.consensus.events import Diverged
from parley.consensus.types import Header, Roots


class Results:
    """Roots by executed height, and certified claims about heights that are not executed here yet.

    Once they contradict each other this replica's state is wrong: it must never vote or propose on it again.
    """

    def __init__(self, computed: dict[int, Roots]) -> None:
        self._computed = dict(computed)
        self._newest = max(computed)
        self._claims: dict[int, Header] = {}
        self.diverged = False

    def at(self, height: int) -> Roots | None:
        return self._computed.get(height)

    def agree(self, header: Header) -> bool | None:
        """Whether a header claims what was computed here; None while that height is not executed."""
        roots = self._computed.get(header.executed_height)
        return None if roots is None else roots == Roots(header.state_root, header.history_root)

    def executed(self, height: int, roots: Roots) -> Diverged | None:
        """Record a result; it may contradict what a quorum certified before."""
        self._computed[height] = roots
        self._newest = height
        claim = self._claims.pop(height, None)
        return None if claim is None else self._judge(claim)

    def certified(self, header: Header) -> Diverged | None:
        """A quorum stands behind this header's claim; it may contradict what was computed here."""
        if header.executed_height > self._newest:
            self._claims[header.executed_height] = header
            return None
        return self._judge(header)

    def _judge(self, header: Header) -> Diverged | None:
        """Reported once: from then on this replica knows that its state is wrong."""
        if self.diverged or self.agree(header) is not False:
            return None
        self.diverged = True
        return Diverged(header.executed_height, header.id())

    def forget_below(self, height: int) -> None:
        """No header to come can name a lower height."""
        self._computed = {h: roots for h, roots in self._computed.items() if h >= height}
