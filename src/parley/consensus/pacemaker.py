"""Which view the replica is in and how long it waits there: views are entered by certificates only (T11, T12)."""

from __future__ import annotations

from parley.consensus.events import VerifiedQC, VerifiedTC
from parley.consensus.leader.protocol import EnteredBy

TOLERATED_FAILURES = 6  # a few crashed leaders in a row must not slow the others down (T13)
GROWTH = (6, 5)  # the wait grows by a fifth for each failed view beyond those


class Pacemaker:
    """The newest certificates and the view that they open."""

    def __init__(
        self, high_qc: VerifiedQC, high_tc: VerifiedTC | None, view_timeout: int, longest_timeout: int
    ) -> None:
        self._view_timeout = view_timeout
        self._longest = longest_timeout
        self._failures = 0
        self._most_failures = TOLERATED_FAILURES + _steps(view_timeout, longest_timeout)
        self.given_up = 0  # views that a TC ended, for those who watch
        self.high_qc = high_qc
        self.high_tc = high_tc
        # One after the newest certificate: a laggard jumps, it does not step (T12).
        self.view = max(high_qc.view, 0 if high_tc is None else high_tc.view) + 1

    @property
    def entered_by(self) -> EnteredBy:
        """By the QC of the view before if it is known, else by its TC (P8)."""
        return EnteredBy.QC if self.high_qc.view + 1 == self.view else EnteredBy.TC

    def on_qc(self, qc: VerifiedQC) -> bool:
        """Take a QC into account; True if a new view begins."""
        if qc.view > self.high_qc.view:
            self.high_qc = qc
        if qc.view < self.view:
            return False
        self.view = qc.view + 1
        self._failures = max(0, self._failures - 1)
        return True

    def on_tc(self, tc: VerifiedTC) -> bool:
        """Take a TC into account; True if a new view begins."""
        if tc.view < self.view:
            return False
        self.high_tc = tc
        self.view = tc.view + 1
        self.given_up += 1
        # What brings no longer wait is not counted, or it would have to be worked off after healing.
        self._failures = min(self._failures + 1, self._most_failures)
        return True

    @property
    def duration(self) -> int:
        """How long to wait in this view, in ms: constant at first, then growing, and capped (T13)."""
        wait = self._view_timeout
        for _ in range(self._failures - TOLERATED_FAILURES):
            wait = _grow(wait)
        return min(wait, self._longest)


def _grow(wait: int) -> int:
    return wait * GROWTH[0] // GROWTH[1] + 1


def _steps(shortest: int, longest: int) -> int:
    """How often a wait grows until it is the longest."""
    steps = 0
    while shortest < longest:
        shortest = _grow(shortest)
        steps += 1
    return steps
