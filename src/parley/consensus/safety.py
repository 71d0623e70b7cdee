"""What a replica may sign: the only code that can create a vote, a timeout or a proposal (Jolteon; Galaxy IV-B).

Theorem: of any view at most one block is certified, and a certified block of a higher view extends every final block.
Each rule below is one line of its proof. The caller persists `state` before anything signed leaves (T16).
"""

from __future__ import annotations

from msgspec.structs import replace

from parley.consensus.events import VerifiedQC, VerifiedTC, bare
from parley.consensus.record import SafetyState
from parley.consensus.types import QC, Block, Instance, Proposal, Timeout, Vote
from parley.crypto.qc import Signer


def initial_state(instance: Instance, signer: int, genesis_qc: QC) -> SafetyState:
    """The record of a replica that has never signed anything."""
    return SafetyState(
        chain=instance.chain,
        shard=instance.shard,
        epoch=instance.epoch,
        signer=signer,
        last_voted_view=0,
        one_chain_view=0,
        highest_timeout_view=0,
        last_vote=None,
        last_timeout=None,
        last_proposal=None,
        high_qc=genesis_qc,
        high_tc=None,
    )


def abstaining_state(instance: Instance, signer: int, genesis_qc: QC) -> SafetyState:
    """The record of a replica that has lost its own: what it has signed, it does not know, so it signs nothing (P10)."""
    return replace(initial_state(instance, signer, genesis_qc), abstains=True)


class SafetyRules:
    """Holds the signer, so nothing else can sign. What was signed for a view is returned again, never replaced (T17)."""

    def __init__(self, instance: Instance, signer: Signer, state: SafetyState) -> None:
        self._instance = instance
        self._signer = signer
        self.state = state

    def vote(self, block: Block, high_qc: VerifiedQC, high_tc: VerifiedTC | None) -> Vote | None:
        """A vote for `block`, or None if voting could help to certify a second block or to undo a final one."""
        state = self.state
        if state.abstains:
            return None
        if state.last_vote is not None and state.last_vote.block == block.id:
            return state.last_vote
        if not self._is_safe(block):
            return None
        signature = self._signer.sign(self._instance.vote_message(block.view, block.id))
        vote = Vote(self._instance.epoch, block.view, block.id, self._signer.index, signature)
        self.state = replace(
            state,
            last_voted_view=block.view,
            one_chain_view=max(state.one_chain_view, block.header.justify.view),
            last_vote=vote,
            high_qc=high_qc.qc,
            high_tc=bare(high_tc),
        )
        return vote

    def timeout(self, view: int, high_qc: VerifiedQC, high_tc: VerifiedTC | None) -> Timeout | None:
        """Give up on `view`. A timeout promises not to vote in the view any more, and shows the highest QC known."""
        state = self.state
        if state.abstains:
            return None
        if state.last_timeout is not None and state.last_timeout.view == view:
            return state.last_timeout
        # A TC must know of every QC that its signers' votes may have helped to make final.
        if (
            view <= state.highest_timeout_view
            or view < state.last_voted_view
            or high_qc.view < state.one_chain_view
        ):
            return None
        tc = high_tc if high_qc.view + 1 < view else None
        if high_qc.view + 1 != view and (tc is None or tc.view + 1 != view):
            return None
        signature = self._signer.sign(self._instance.timeout_message(view, high_qc.view))
        vote = state.last_vote if state.last_vote is not None and state.last_vote.view == view else None
        timeout = Timeout(
            self._instance.epoch, view, high_qc.qc, bare(tc), vote, self._signer.index, signature
        )
        self.state = replace(
            state,
            highest_timeout_view=view,
            last_timeout=timeout,
            high_qc=high_qc.qc,
            high_tc=bare(high_tc),
        )
        return timeout

    def propose(self, block: Block, high_qc: VerifiedQC, high_tc: VerifiedTC | None) -> Proposal | None:
        """Sign a proposal. One per view, also across restarts: a proposal is as binding as a vote (T18)."""
        last = self.state.last_proposal
        if self.state.abstains or (last is not None and last.header.view >= block.view):
            return None
        # A view that is over; after `resume` it may be one in which the forgotten life proposed.
        if block.view <= self.state.high_qc.view:
            return None
        signature = self._signer.sign(self._instance.proposal_message(block.id))
        proposal = Proposal(block.header, block.batches, signature)
        self.state = replace(self.state, last_proposal=proposal, high_qc=high_qc.qc, high_tc=bare(high_tc))
        return proposal

    def resume(self, qc: VerifiedQC) -> None:
        """Take part again after the record was lost; `qc` is newer than all that the forgotten life can have signed.

        That life's votes, timeouts and proposals were for views below that of `qc`, and its lock was lower still. From
        here on nothing is signed for a view up to `qc`'s: as if this replica had voted there, been locked, and given up.
        """
        assert self.state.abstains, "who knows what it has signed has nothing to resume"
        self.state = replace(
            self.state,
            last_voted_view=qc.view,
            one_chain_view=qc.view,
            highest_timeout_view=qc.view,
            last_vote=None,
            last_timeout=None,
            last_proposal=None,
            high_qc=qc.qc,
            high_tc=None,
            abstains=False,
        )

    def _is_safe(self, block: Block) -> bool:
        # One vote per view, none after giving up on it: two quorums in one view would share an honest replica.
        if block.view <= self.state.last_voted_view or block.view <= self.state.highest_timeout_view:
            return False
        # Extend the newest certified block, or one as new as any that a timeout quorum has seen: q replicas voted for
        # the child of a final block with its QC, and every TC quorum contains an honest one of them (T2).
        header = block.header
        if header.view == header.justify.view + 1:
            return True
        return (
            header.tc is not None
            and header.view == header.tc.view + 1
            and header.justify.view >= header.tc.highest_qc_view
        )
