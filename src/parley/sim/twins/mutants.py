"""Negative controls: rules broken on purpose, each a bug that was shipped somewhere. A campaign must catch every one.

The core has no switches for its own destruction: a mutant replaces functions from outside while a campaign runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from parley.consensus.collect import Outcome, VoteResult, Votes
from parley.consensus.errors import Reason, Refused
from parley.consensus.events import VerifiedQC, VerifiedVote
from parley.consensus.forest import Forest
from parley.consensus.record import SafetyState
from parley.consensus.safety import SafetyRules
from parley.consensus.types import QC, Block
from parley.consensus.verify import Verifier
from parley.crypto.qc import Aggregate, bitmap_of
from parley.sim.ensemble import Ensemble, Seat
from parley.sim.twins.generator import Shape


@dataclass(frozen=True)
class Mutant:
    """A broken rule: what it replaces, and the campaign in which it must show."""

    story: str
    shape: Shape
    replaces: Mapping[tuple[type, str], object] = field(default_factory=dict)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the rule until the block ends."""
        before = {(owner, name): owner.__dict__[name] for owner, name in self.replaces}
        try:
            for (owner, name), broken in self.replaces.items():
                setattr(owner, name, broken)
            yield
        finally:
            for (owner, name), whole in before.items():
                setattr(owner, name, whole)


def _adjacent(self: Forest, block: Block, otherwise: int) -> int:
    """The commit rule of HotStuff's Algorithm 4 without its blank blocks: parents, whatever their views (T1)."""
    for _ in range(self._depth - 1):
        parent = self._find(block.parent)
        if parent is None:
            return otherwise
        block = parent
    return block.height


def _votes_after_giving_up(self: SafetyRules, block: Block) -> bool:
    """Fast-HotStuff's first rule: a timeout promises nothing about votes (T2)."""
    header = block.header
    if block.view <= self.state.last_voted_view:
        return False
    return header.view == header.justify.view + 1 or (
        header.tc is not None and header.justify.view >= header.tc.highest_qc_view
    )


def _forget(self: Ensemble, seat: Seat, state: SafetyState) -> None:
    """Nothing reaches the disk (T16)."""


def _count_votes(self: Votes, verified: VerifiedVote) -> VoteResult:
    """A list of votes, counted by its length: one signer's votes all count (T5)."""
    vote = verified.vote
    votes = self._by_view.setdefault(vote.view, {})
    votes[len(votes)] = vote
    same = [v for v in votes.values() if v.block == vote.block]
    if len(same) != self._quorum:
        return VoteResult(Outcome.ADDED)
    bitmap = bitmap_of({v.signer for v in same}, self._instance.size)
    listed = Aggregate(bitmap, b"".join(v.signature for v in same))
    return VoteResult(Outcome.QUORUM, qc=VerifiedQC(QC(self._instance.epoch, vote.view, vote.block, listed)))


def _count_signatures(self: Verifier, qc: QC) -> VerifiedQC:
    """A quorum by the number of signatures, not of signers; each was checked when its vote came (T5)."""
    if qc != self._genesis_qc and len(qc.votes.signature) < self._quorum * self._scheme.signature_size:
        raise Refused(Reason.TOO_FEW_SIGNERS)
    return VerifiedQC(qc)


MUTANTS: Mapping[str, Mutant] = {
    "parent-only-commit": Mutant(
        "Commits a run of parents whatever their views, as HotStuff's pseudo-code does with blank blocks (T1).",
        Shape(),
        {(Forest, "_final_after"): _adjacent},
    ),
    "fast-hotstuff-v1": Mutant(
        "The first rules of Fast-HotStuff: two adjacent certified blocks commit, timeouts do not bar votes (T2).",
        Shape(),
        {(Forest, "_final_after"): _adjacent, (SafetyRules, "_is_safe"): _votes_after_giving_up},
    ),
    "no-persistence": Mutant(
        "The safety record never reaches the disk, so a restarted replica signs again (T16).",
        Shape(),
        {(Ensemble, "persist"): _forget},
    ),
    "duplicate-signers": Mutant(
        "A quorum is counted by signatures instead of signers, so one signer counts twice (T5).",
        Shape(),
        {(Votes, "add"): _count_votes, (Verifier, "qc"): _count_signatures},
    ),
    "two-twins-of-four": Mutant(
        "The rules are whole, but two of four members lie: one more than four bear (P1).",
        Shape(twins=2),
    ),
}
