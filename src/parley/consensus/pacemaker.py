"""Which view the replica is in: views are entered by certificates only (T11, T12)."""

from __future__ import annotations

from parley.consensus.events import VerifiedQC, VerifiedTC
from parley.consensus.leader.protocol import EnteredBy


class Pacemaker:
    """The newest certificates and the view that they open."""

    def __init__(self, high_qc: VerifiedQC, high_tc: VerifiedTC | None) -> None:
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
        return True

    def on_tc(self, tc: VerifiedTC) -> bool:
        """Take a TC into account; True if a new view begins."""
        if tc.view < self.view:
            return False
        self.high_tc = tc
        self.view = tc.view + 1
        self.given_up += 1
        return True
