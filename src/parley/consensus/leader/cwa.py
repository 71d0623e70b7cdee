"""CWA leader rotation: Galaxy's Algorithm 2 in the form of P8, a pure function of the chain below the parent (R1-R5)."""

from __future__ import annotations

from collections.abc import Iterable

from parley.consensus.committee import faults
from parley.consensus.leader.line import Line, remember
from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.leader.round_robin import RoundRobin
from parley.consensus.types import Header

DELAY = 5  # D: so many blocks lie between a parent and the reference block under it
POINT = (
    2**16
)  # scores are fixed-point numbers, and alpha is exactly 4/5: floats may differ between machines (R5)
PROPOSER_REWARD = 10 * POINT  # R_p
VOTER_REWARD = 1 * POINT  # R_v
HIGHEST_SCORE = 100 * POINT  # R_max
WINDOW = 4  # W: blocks that are scored, for each member


class Cwa:
    """Of those who voted for the reference block, the one with the highest reputation that did not propose lately.

    `leader` reads in the order of Algorithm 2. B_ref is found by ancestry where the paper subtracts views, so it always
    exists and every replica finds the same one, whatever it has committed (R2, R3). The reputation map M starts at zero
    W blocks below B_ref where the paper keeps it between calls, so it does not depend on who asked before (R1).
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._faults = faults(size)
        self._window = WINDOW * size
        self._fallback = RoundRobin(size)
        self._elected: dict[bytes, int | None] = {}
        self.memory = self._window + DELAY

    def leader(self, view: int, entered_by: EnteredBy, ancestry: Iterable[Header]) -> int:
        line = Line(ancestry)
        reference = line.height - DELAY
        # Lines 7-12. Block 0 is no reference: nobody proposed it and nobody voted for it.
        if entered_by is EnteredBy.TC or reference < 1:
            return self._fallback.leader(view, entered_by, ())
        elected = self._elect(line, reference)
        return self._fallback.leader(view, entered_by, ()) if elected is None else elected

    def _elect(self, line: Line, reference: int) -> int | None:
        # B_ref's child decides all: it names B_ref and holds its votes, and another child may hold other votes.
        child = line.id(reference + 1)
        if child not in self._elected:
            remember(self._elected, child, self._best(line, reference))
        return self._elected[child]

    def _best(self, line: Line, reference: int) -> int | None:
        scores = self._scores(line, reference)
        excluded = self._newest_proposers(line, reference)
        # Lines 33-34 and 42-48. Voters ascend, so the first of equals is the lowest index.
        candidates = [voter for voter in line.voters(reference, self._size) if voter not in excluded]
        return max(candidates, key=scores.__getitem__, default=None)

    def _scores(self, line: Line, reference: int) -> list[int]:
        """The reputation map M after B_ref (lines 17-31), oldest block first."""
        scores = [0] * self._size
        for height in range(self._below_window(reference) + 1, reference + 1):
            scores[line.header(height).proposer] += PROPOSER_REWARD
            for voter in line.voters(height, self._size):
                scores[voter] += VOTER_REWARD
            scores = [kept if (kept := score * 4 // 5) < HIGHEST_SCORE else HIGHEST_SCORE for score in scores]
        return scores

    def _newest_proposers(self, line: Line, reference: int) -> list[int]:
        """P_exclude (lines 35-40): the newest f different proposers from B_ref downwards."""
        proposers: list[int] = []
        height = reference
        while len(proposers) < self._faults and height > self._below_window(reference):
            proposer = line.header(height).proposer
            if proposer not in proposers:
                proposers.append(proposer)
            height -= 1
        return proposers

    def _below_window(self, reference: int) -> int:
        return max(0, reference - self._window)
