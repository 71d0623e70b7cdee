"""Votes become quorum certificates and timeouts become timeout certificates; every outcome has a name.

Signatures were checked before (`verify.py`), so a certificate built here is verified by construction. Who contradicts
itself yields evidence, once per view: a liar cannot make the log of its lies grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from parley.consensus.committee import faults, quorum
from parley.consensus.events import (
    DoubleProposal,
    DoubleTimeout,
    DoubleVote,
    VerifiedQC,
    VerifiedTC,
    VerifiedTimeout,
    VerifiedVote,
)
from parley.consensus.types import QC, TC, Header, Instance, Proposal, Timeout, Vote
from parley.crypto.qc import QCScheme


class Outcome(Enum):
    """What became of a proposal, vote or timeout."""

    ADDED = auto()
    DUPLICATE = auto()
    EQUIVOCATION = auto()
    ECHO = auto()  # timeouts only: f + 1 gave up, one of them is honest, so join them (T11)
    ENOUGH = auto()  # votes only: a quorum, but a patient collector waits for more
    QUORUM = auto()


@dataclass(frozen=True, slots=True)
class ProposalResult:
    outcome: Outcome
    evidence: DoubleProposal | None = None


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


class Proposals:
    """The first proposal of each leader and view. Two leaders in one view are no equivocation (P8)."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], Proposal] = {}
        self._accused: set[tuple[int, int]] = set()

    def add(self, proposal: Proposal) -> ProposalResult:
        key = (proposal.header.view, proposal.header.proposer)
        first = self._first.get(key)
        if first is None:
            self._first[key] = proposal
            return ProposalResult(Outcome.ADDED)
        if first.header == proposal.header:
            return ProposalResult(Outcome.DUPLICATE)
        new = _accuse(self._accused, key)
        return ProposalResult(Outcome.EQUIVOCATION, DoubleProposal(first, proposal) if new else None)

    def first(self, header: Header) -> Proposal | None:
        """The proposal with this header, unless its proposer had proposed something else before."""
        found = self._first.get((header.view, header.proposer))
        return found if found is not None and found.header == header else None

    def forget_below(self, view: int) -> None:
        self._first = {key: proposal for key, proposal in self._first.items() if key[0] >= view}
        self._accused = {key for key in self._accused if key[0] >= view}


class Votes:
    """Votes by view. At most one per signer and view is kept; the machine bounds the views (T7)."""

    def __init__(self, instance: Instance, scheme: QCScheme, *, patient: bool = False) -> None:
        """Who is patient makes a QC when all votes are here, or with `close`."""
        self._instance = instance
        self._scheme = scheme
        self._quorum = quorum(instance.size)
        self._wanted = instance.size if patient else self._quorum
        self._by_view: dict[int, dict[int, Vote]] = {}
        self._accused: set[tuple[int, int]] = set()

    def add(self, verified: VerifiedVote) -> VoteResult:
        vote = verified.vote
        votes = self._by_view.setdefault(vote.view, {})
        if (first := votes.get(vote.signer)) is not None:
            if first.block == vote.block:
                return VoteResult(Outcome.DUPLICATE)
            new = _accuse(self._accused, (vote.view, vote.signer))
            return VoteResult(Outcome.EQUIVOCATION, evidence=DoubleVote(first, vote) if new else None)
        votes[vote.signer] = vote
        same = self._for(vote.view, vote.block)
        if len(same) == self._wanted:
            return VoteResult(Outcome.QUORUM, qc=self._certificate(vote.view, vote.block, same))
        return VoteResult(Outcome.ENOUGH if len(same) == self._quorum else Outcome.ADDED)

    def has(self, vote: Vote) -> bool:
        """Whether this very vote is here."""
        return self._by_view.get(vote.view, {}).get(vote.signer) == vote

    def of(self, view: int, block: bytes) -> list[Vote]:
        """The votes for this block that have come."""
        return [vote for vote in self._by_view.get(view, {}).values() if vote.block == block]

    def close(self, view: int, block: bytes) -> VerifiedQC | None:
        """The QC of all votes that are here for this block, if they are a quorum."""
        same = self._for(view, block)
        return None if len(same) < self._quorum else self._certificate(view, block, same)

    def _for(self, view: int, block: bytes) -> dict[int, bytes]:
        return {vote.signer: vote.signature for vote in self.of(view, block)}

    def _certificate(self, view: int, block: bytes, votes: dict[int, bytes]) -> VerifiedQC:
        return VerifiedQC(QC(self._instance.epoch, view, block, self._scheme.aggregate(votes)))

    def forget_below(self, view: int) -> None:
        self._by_view = {v: votes for v, votes in self._by_view.items() if v >= view}
        self._accused = {key for key in self._accused if key[0] >= view}


class Timeouts:
    """Timeouts of the current view; those of other views are never kept."""

    def __init__(self, instance: Instance, scheme: QCScheme) -> None:
        self._instance = instance
        self._scheme = scheme
        self._quorum = quorum(instance.size)
        self._echo = faults(instance.size) + 1
        self._timeouts: dict[int, Timeout] = {}
        self._accused: set[tuple[int, int]] = set()

    def add(self, verified: VerifiedTimeout) -> TimeoutResult:
        timeout = verified.timeout
        if (first := self._timeouts.get(timeout.signer)) is not None:
            if first.high_qc.view == timeout.high_qc.view:
                return TimeoutResult(Outcome.DUPLICATE)
            new = _accuse(self._accused, (timeout.view, timeout.signer))
            return TimeoutResult(
                Outcome.EQUIVOCATION, evidence=DoubleTimeout(first, timeout) if new else None
            )
        self._timeouts[timeout.signer] = timeout
        if len(self._timeouts) == self._quorum:
            return TimeoutResult(Outcome.QUORUM, tc=VerifiedTC(self._certificate(timeout.view)))
        return TimeoutResult(Outcome.ECHO if len(self._timeouts) == self._echo else Outcome.ADDED)

    def clear(self) -> None:
        self._timeouts.clear()
        self._accused.clear()

    def _certificate(self, view: int) -> TC:
        signers = sorted(self._timeouts)
        qc_views = tuple(self._timeouts[signer].high_qc.view for signer in signers)
        aggregate = self._scheme.aggregate({signer: self._timeouts[signer].signature for signer in signers})
        return TC(self._instance.epoch, view, qc_views, aggregate)


def _accuse(accused: set[tuple[int, int]], key: tuple[int, int]) -> bool:
    """Note an accusation; False if it was made before."""
    before = len(accused)
    accused.add(key)
    return len(accused) > before
