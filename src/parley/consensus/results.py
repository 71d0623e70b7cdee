"""Execution results: what this replica computed, and what quorums certified. They must be the same (P2)."""

from __future__ import annotations

from parley.consensus.types import Header, Roots

__all__ = ["Results"]


class Results:
    """Roots by executed height, and certified claims about heights that are not executed here yet."""

    def __init__(self, computed: dict[int, Roots]) -> None:
        self._computed = dict(computed)
        self._newest = max(computed)
        self._claims: dict[int, Header] = {}

    def at(self, height: int) -> Roots | None:
        return self._computed.get(height)

    def agree(self, header: Header) -> bool | None:
        """Whether a header claims what was computed here; None while that height is not executed."""
        roots = self._computed.get(header.executed_height)
        return None if roots is None else roots == Roots(header.state_root, header.history_root)

    def executed(self, height: int, roots: Roots) -> Header | None:
        """Record a result; returns a certified header that contradicts it."""
        self._computed[height] = roots
        self._newest = height
        claim = self._claims.pop(height, None)
        return claim if claim is not None and not self.agree(claim) else None

    def certified(self, header: Header) -> Header | None:
        """A quorum stands behind this header's claim; returns it if it contradicts what was computed here."""
        if header.executed_height > self._newest:
            self._claims[header.executed_height] = header
            return None
        return header if self.agree(header) is False else None

    def forget_below(self, height: int) -> None:
        """No header to come can name a lower height."""
        self._computed = {h: roots for h, roots in self._computed.items() if h >= height}
