"""Plays a trace of the model on the real rules: each honest member's `SafetyRules`, and one `Forest` that sees it all."""

from dataclasses import dataclass

from formal.trace import Certified, MayTimeout, MayVote, Proposed, Step, TimedOut, Trace, Voted
from tests.consensus.chains import Committee, batch

from parley.consensus.errors import Refused
from parley.consensus.events import VerifiedQC, VerifiedTC
from parley.consensus.forest import Forest
from parley.consensus.safety import SafetyRules, initial_state
from parley.consensus.types import TC, Block


@dataclass(frozen=True)
class Disagreement:
    """The model took a step that the core does not take."""

    step: Step
    why: str


class Replay:
    """The committee's signatures so far, as the trace has them, and what the core makes of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.committee = Committee(depth=trace.depth)
        self.verifier = self.committee.verifier()
        self.rules = {member: self._fresh(member) for member in trace.honest}
        self.forest = Forest(trace.depth, [self.committee.genesis])
        self.blocks = {0: self.committee.genesis}
        self.votes: dict[int, list[int]] = {0: [0, 1, 2]}
        self.claims: dict[tuple[int, int], int] = {}
        self.committed = {self.committee.genesis.id}
        self.model_committed = {self.committee.genesis.id}
        self.forks: list[int] = []

    def play(self) -> Disagreement | None:
        """All steps, up to the first on which model and core differ."""
        for step in self.trace.steps:
            why = self._take(step)
            if why is not None:
                return Disagreement(step, why)
        return None

    def allowed(self) -> set[MayVote | MayTimeout]:
        """What the core would sign next, of all blocks and certificates that there are."""
        votes = {
            MayVote(member, number)
            for member in self.rules
            for number in self.blocks
            if number != 0 and self._would_vote(member, number)
        }
        tcs = [0, *(view for view in range(1, self.trace.views + 1) if self._tc(view) is not None)]
        timeouts = {
            MayTimeout(member, view, qc, tc)
            for member in self.rules
            for view in range(1, self.trace.views + 1)
            for qc in self._certified_views()
            for tc in tcs
            if self._would_time_out(member, view, qc, tc)
        }
        return votes | timeouts

    # -- steps --------------------------------------------------------------------------------------------------------

    def _take(self, step: Step) -> str | None:
        match step:
            case Proposed():
                return self._propose(step)
            case Voted():
                return self._vote(step)
            case TimedOut():
                return self._time_out(step)
            case Certified():
                return self._certify(step)

    def _propose(self, step: Proposed) -> str | None:
        tc = self._tc(step.tc, step.by) if step.tc else None
        if step.tc and tc is None:
            return "there is no such TC"
        block = self.committee.block(
            self.blocks[step.parent],
            step.view,
            (batch(step.block),),
            justify=self._qc(step.parent).qc,
            tc=tc,
        )
        self.blocks[step.block] = block
        self.votes[step.block] = []
        if self.forest.get(block.parent) is not None:
            self.forest.add(block)
        if self._verified(block) and self._fresh(0).vote(block, self._qc(0), None) is None:
            return "the verifier lets a proposal through that no member may vote for"
        return None

    def _vote(self, step: Voted) -> str | None:
        self.votes[step.block].append(step.member)
        rules = self.rules.get(step.member)
        if rules is None:  # a liar
            return None
        block = self.blocks[step.block]
        before = rules.state
        vote = rules.vote(block, VerifiedQC(block.header.justify), None)
        if vote is None or rules.state is before:
            return "no vote"
        assert self.verifier.vote(vote).vote.block == block.id
        return None

    def _time_out(self, step: TimedOut) -> str | None:
        rules = self.rules.get(step.member)
        if rules is not None:
            before = rules.state
            timeout = rules.timeout(step.view, self._qc_of(step.qc), self._entry(step.view))
            if timeout is None or rules.state is before:
                return "no timeout"
            assert (timeout.view, timeout.high_qc.view) == (step.view, step.qc)
        self.claims[step.view, step.member] = step.qc
        return None

    def _certify(self, step: Certified) -> str | None:
        if len(self.votes[step.block]) < self.committee.quorum:
            return "no quorum"
        self.verifier.qc(self._qc(step.block).qc)
        block = self.blocks[step.block]
        if self.forest.get(block.id) is not None:
            final, _ = self.forest.certify(block.id)
            self.committed |= {block.id for block in final}
        elif (
            block.view > self.forest.root.view
        ):  # certified, newer than the last final block, and not above it
            self.forks.append(step.block)
        if step.final:
            head = self.blocks[step.final]
            self.model_committed |= {block.id for block in self.committee.lineage(head)}
        if not self.forks and self.committed != self.model_committed:
            return "not the same blocks are final"
        return None

    # -- what was signed ------------------------------------------------------------------------------------------------

    def _fresh(self, member: int) -> SafetyRules:
        state = initial_state(self.committee.instance, member, self.committee.genesis_qc)
        return SafetyRules(self.committee.instance, self.committee.authority.signer(member), state)

    def _copy(self, member: int) -> SafetyRules:
        signer = self.committee.authority.signer(member)
        return SafetyRules(self.committee.instance, signer, self.rules[member].state)

    def _verified(self, block: Block) -> bool:
        try:
            self.verifier.proposal(self.committee.proposal(block))
        except Refused:
            return False
        return True

    def _qc(self, number: int) -> VerifiedQC:
        """From the votes so far; genesis has its empty one."""
        signers = None if number == 0 else sorted(self.votes[number])
        return VerifiedQC(self.committee.qc(self.blocks[number], signers))

    def _certified_views(self) -> set[int]:
        return {
            self.blocks[number].view
            for number, votes in self.votes.items()
            if len(votes) >= self.committee.quorum
        }

    def _qc_of(self, view: int) -> VerifiedQC:
        certified = [
            number
            for number, votes in self.votes.items()
            if self.blocks[number].view == view and len(votes) >= self.committee.quorum
        ]
        return self._qc(certified[0])

    def _tc(self, view: int, by: tuple[int, ...] = ()) -> TC | None:
        """Of these signers, or of all who timed out; None if they are no quorum."""
        signed = {member: qc for (of, member), qc in self.claims.items() if of == view}
        signers = sorted(by or signed)
        if len(signers) < self.committee.quorum or not set(signers) <= set(signed):
            return None
        return self.verifier.tc(self.committee.tc(view, [signed[i] for i in signers], signers)).tc

    def _entry(self, view: int) -> VerifiedTC | None:
        tc = self._tc(view - 1)
        return None if tc is None else VerifiedTC(tc)

    def _would_vote(self, member: int, number: int) -> bool:
        rules = self._copy(member)
        block = self.blocks[number]
        rules.vote(block, VerifiedQC(block.header.justify), None)
        return rules.state is not self.rules[member].state

    def _would_time_out(self, member: int, view: int, qc: int, tc: int) -> bool:
        rules = self._copy(member)
        made = self._tc(tc) if tc else None
        rules.timeout(view, self._qc_of(qc), None if made is None else VerifiedTC(made))
        return rules.state is not self.rules[member].state
