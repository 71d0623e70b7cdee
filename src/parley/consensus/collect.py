"""Votes become quorum certificates and timeouts become timeout certificates; every outcome has a name.

Signatures were checked before (`verify.py`), so a certificate built here is verified by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from parley.consensus.committee import faults, quorum
from parley.consensus.events import (
    DoubleTimeout,
    DoubleVote,
    VerifiedQC,
    VerifiedTC,
    VerifiedTimeout,
    VerifiedVote,
)
from parley.consensus.types import QC, TC, Instance, Timeout, Vote
from parley.crypto.qc import QCScheme

__all__ = ["Outcome", "TimeoutResult", "Timeouts", "VoteResult", "Votes"]


class Outcome(Enum):
    """What became of a vote or timeout."""

    ADDED = auto()
    DUPLICATE = auto()
    EQUIVOCATION = auto()
    ECHO = auto()  # timeouts only: f + 1 gave up, one of them is honest, so join them (T11)
    QUORUM = auto()


@dataclass(frozen=True, slots=True)
class VoteResult:
    outcome: Outcome
    qc: VerifiedQC | None = None
    evidence: DoubleVote | None = None


@dataclass(frozen=True, slots=True)
class TimeoutResult:
    outcome: Outcome
    tc: VerifiedTC | None = None
    evidence: DoubleTimeout | None = None


class Votes:
    """Votes by view. At most one per signer and view is kept; the machine bounds the views (T7)."""

    def __init__(self, instance: Instance, scheme: QCScheme) -> None:
        self._instance = instance
        self._scheme = scheme
        self._quorum = quorum(instance.size)
        self._by_view: dict[int, dict[int, Vote]] = {}

    def add(self, verified: VerifiedVote) -> VoteResult:
        vote = verified.vote
        votes = self._by_view.setdefault(vote.view, {})
        if (first := votes.get(vote.signer)) is not None:
            if first.block == vote.block:
                return VoteResult(Outcome.DUPLICATE)
            return VoteResult(Outcome.EQUIVOCATION, evidence=DoubleVote(first, vote))
        votes[vote.signer] = vote
        same = {v.signer: v.signature for v in votes.values() if v.block == vote.block}
        if len(same) != self._quorum:
            return VoteResult(Outcome.ADDED)
        qc = QC(self._instance.epoch, vote.view, vote.block, self._scheme.aggregate(same))
        return VoteResult(Outcome.QUORUM, qc=VerifiedQC(qc))

    def forget_below(self, view: int) -> None:
        self._by_view = {v: votes for v, votes in self._by_view.items() if v >= view}


class Timeouts:
    """Timeouts of the current view; those of other views are never kept."""

    def __init__(self, instance: Instance, scheme: QCScheme) -> None:
        self._instance = instance
        self._scheme = scheme
        self._quorum = quorum(instance.size)
        self._echo = faults(instance.size) + 1
        self._timeouts: dict[int, Timeout] = {}

    def add(self, verified: VerifiedTimeout) -> TimeoutResult:
        timeout = verified.timeout
        if (first := self._timeouts.get(timeout.signer)) is not None:
            if first.high_qc.view == timeout.high_qc.view:
                return TimeoutResult(Outcome.DUPLICATE)
            return TimeoutResult(Outcome.EQUIVOCATION, evidence=DoubleTimeout(first, timeout))
        self._timeouts[timeout.signer] = timeout
        if len(self._timeouts) == self._quorum:
            return TimeoutResult(Outcome.QUORUM, tc=VerifiedTC(self._certificate(timeout.view)))
        return TimeoutResult(Outcome.ECHO if len(self._timeouts) == self._echo else Outcome.ADDED)

    def clear(self) -> None:
        self._timeouts.clear()

    def _certificate(self, view: int) -> TC:
        signers = sorted(self._timeouts)
        qc_views = tuple(self._timeouts[signer].high_qc.view for signer in signers)
        aggregate = self._scheme.aggregate({signer: self._timeouts[signer].signature for signer in signers})
        return TC(self._instance.epoch, view, qc_views, aggregate)
