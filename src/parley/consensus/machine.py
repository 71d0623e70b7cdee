"""The consensus machine: verified inputs in, effects out, the same on every replica (Galaxy IV-B, Jolteon, P2, P8).

Read `handle`, then the handlers in its order. A proposal that cannot be judged yet is parked, never waited for inside
a rule (T21): until its parent is fetched, its batches are stored, or execution has caught up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, assert_never

from parley.consensus import collect
from parley.consensus.collect import Proposals, Timeouts, Votes
from parley.consensus.committee import faults
from parley.consensus.errors import Reason, Refused, SafetyViolation
from parley.consensus.events import (
    BatchesReady,
    Broadcast,
    CertifiedChain,
    Commit,
    Connection,
    Diverged,
    Effect,
    Evidence,
    Executed,
    GraceOver,
    Heartbeat,
    Input,
    Message,
    PaceOver,
    Payload,
    PayloadAvailable,
    PersistSafety,
    Prune,
    Refuse,
    ReportMisbehaviour,
    RequestBatches,
    RequestBlocks,
    Resume,
    Send,
    SetTimer,
    StoreBlock,
    TimerFired,
    VerifiedCertificates,
    VerifiedProposal,
    VerifiedQC,
    VerifiedTC,
    VerifiedTimeout,
    VerifiedVote,
    ViewFailed,
    ViewTimer,
    WorkPending,
)
from parley.consensus.forest import Forest, Node
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.pacemaker import Pacemaker
from parley.consensus.proposer import Proposer
from parley.consensus.results import Results
from parley.consensus.safety import SafetyRules
from parley.consensus.types import (
    Block,
    Certificates,
    Instance,
    Proposal,
    Roots,
    Timeout,
    Vote,
)
from parley.consensus.view_times import Waits
from parley.consensus.waiting import Waiting
from parley.crypto.qc import QCScheme

MAX_AHEAD = 2_000  # ms that a block's time may lie ahead of a voter's clock (P5)
# ms. It covers the pace, the grace for votes and the longest execution of a block (P29).
SHORTEST_TIMEOUT = 320
WINDOW = 16  # views ahead for which votes are kept, and back for which proposals are compared


@dataclass(frozen=True, slots=True)
class Config:
    """One member's consensus settings; times in ms."""

    instance: Instance
    index: int
    depth: int = 2
    view_timeout: int = 2_000  # while it is not known how long views take
    longest_timeout: int = 20_000
    heartbeat: int = 1_000
    vote_grace: int = 0  # how long a collector with a quorum waits for more votes
    pace: int = 0  # between two blocks with batches, unless the network was idle
    shortest_timeout: int = SHORTEST_TIMEOUT

    @property
    def waits(self) -> Waits:
        return Waits(
            min(self.shortest_timeout, self.view_timeout),
            self.view_timeout,
            self.longest_timeout,
            self.heartbeat,
            faults(self.instance.size),
        )


class Machine:
    """One member of one instance. `handle` is the only way in; `now` is the member's clock in ms (P5)."""

    def __init__(
        self,
        config: Config,
        *,
        # what it signs and checks with
        safety: SafetyRules,
        scheme: QCScheme,
        leaders: LeaderScheme,
        # where it stands, as stored
        high_qc: VerifiedQC,
        high_tc: VerifiedTC | None,
        history: Sequence[Block],
        roots: dict[int, Roots],
    ) -> None:
        self._config = config
        self._safety = safety
        self._leaders = leaders
        self._forest = Forest(config.depth, history, leaders.memory)
        self._pacemaker = Pacemaker(high_qc, high_tc)
        self._waiting = Waiting(
            config.waits,
            config.index,
            leaders=leaders,
            forest=self._forest,
            pacemaker=self._pacemaker,
            safety=safety,
        )
        self._votes = Votes(config.instance, scheme, patient=config.vote_grace > 0)
        self._timeouts = Timeouts(config.instance, scheme)
        self._results = Results(roots)
        self._proposals = Proposals()
        self._proposer = Proposer(
            config.instance,
            config.index,
            config.heartbeat,
            config.pace,
            leaders=leaders,
            forest=self._forest,
            pacemaker=self._pacemaker,
            results=self._results,
        )
        self._orphans: dict[int, VerifiedProposal] = {}  # the newest by proposer, until its parent is fetched
        self._candidates: dict[bytes, bool] = {}  # blocks of this view to vote for -> batches stored
        self._shelf: dict[bytes, int] = {}  # uncertified blocks kept on disk only -> their views
        self._formed_qc = 0  # view of the newest QC formed here
        self._now = 0
        self._effects: list[Effect] = []
        self._persisted = safety.state

    @property
    def view(self) -> int:
        return self._pacemaker.view

    @property
    def given_up(self) -> int:
        """How many views have ended with a timeout certificate since this start."""
        return self._pacemaker.given_up

    @property
    def high_qc(self) -> VerifiedQC:
        return self._pacemaker.high_qc

    @property
    def root(self) -> Block:
        return self._forest.root

    def block(self, id_: bytes) -> Block | None:
        """A block of the forest: the last committed one or above it."""
        node = self._forest.get(id_)
        return None if node is None else node.block

    def known(self, block: bytes) -> bool:
        """Whether this is an uncommitted block or the last committed one."""
        return self._forest.get(block) is not None

    def branch(self, block: bytes) -> tuple[Block, ...]:
        """The uncommitted blocks up to a known one, oldest first."""
        return tuple(self._forest.uncommitted(block))[::-1] if self.known(block) else ()

    def start(self, stored: Sequence[Block], now: int) -> list[Effect]:
        """Take up where the record left off: stored blocks, then what was signed for this view is sent again (T17)."""
        self._now = now
        for block in sorted(stored, key=lambda block: block.height):
            if self.known(block.parent):
                self._certify(block.parent)  # its justify was verified before it was stored
                self._forest.add(block)
            else:
                self._shelf[block.id] = block.view
        self._observe_qc(self.high_qc)
        self._trim()
        self._forget()
        self._enter_view()
        self._effects += self._proposer.ask()
        self._resend()
        return self._take_effects()

    def screen(self, message: Message) -> None:
        """Refuse what is certainly useless before any signature is checked."""
        match message:
            case Vote():
                self._require_window(message.view)
                self._require_unknown(self._votes.has(message), message.view)
            case Timeout():
                if not self._is_late(message):
                    self._require_view(message.view)
            case Proposal():
                self._require_recent(message)
                self._require_unknown(self._proposals.first(message.header) == message, message.header.view)
            case Certificates():
                self._require_news(message)
            case _:
                assert_never(message)

    def handle(self, event: Input, now: int) -> list[Effect]:
        """Advance by one input. Same state and input, same effects, on every replica."""
        self._now = now
        try:
            self._dispatch(event)
        except Refused as refusal:
            self._effects.append(Refuse(refusal.reason, refusal.detail))
        return self._take_effects()

    def _dispatch(self, event: Input) -> None:
        match event:
            case VerifiedProposal():
                self._on_proposal(event)
            case VerifiedVote():
                self._on_vote(event)
            case VerifiedTimeout():
                self._on_timeout(event)
            case VerifiedCertificates():
                self._observe(event.qc, event.tc)
            case CertifiedChain():
                self._on_chain(event)
            case TimerFired():
                self._on_timer(event)
            case Executed():
                self._on_executed(event)
            case BatchesReady():
                self._on_batches(event)
            case Payload():
                self._on_payload(event)
            case PayloadAvailable() | WorkPending() | Connection():
                self._on_news(event)
            case Resume():
                self._safety.resume(event.qc)
            case _:
                assert_never(event)

    # -- proposals and votes ------------------------------------------------------------------------------------------

    def _on_proposal(self, proposal: VerifiedProposal) -> None:
        block = proposal.block
        if self.known(block.id) or self._parked(block):
            raise Refused(Reason.REPLAYED, f"proposal of view {block.view}")
        parent = self._forest.get(block.parent)
        if parent is None:
            if block.view <= self.root.view:
                raise Refused(Reason.STALE, f"view {block.view} is committed")
            self._park(proposal)
            return
        self._check(block, parent)
        self._note(proposal.proposal)
        if block.id != self.high_qc.block:  # unless its certificate came first, a block is for its view only
            self._require_view(block.view)
        self._observe(proposal.justify, proposal.tc)
        self._admit(block)
        if block.id == self.high_qc.block:
            self._certify(block.id)
            self._effects += self._proposer.ask()
        self._adopt_orphans()

    def _check(self, block: Block, parent: Node) -> None:
        """What only the chain can tell; the rest was checked by `Verifier.proposal`."""
        header = block.header
        entered_by = EnteredBy.QC if header.tc is None else EnteredBy.TC
        if header.proposer != self._leader(header.view, header.parent, entered_by):
            raise Refused(Reason.NOT_LEADER, f"member {header.proposer} in view {header.view}")
        # Votes sign the view, so only a broken quorum could contradict it; compared all the same (T4).
        if header.justify.view != parent.block.view:
            raise Refused(Reason.BAD_CERTIFICATE, f"QC of view {header.justify.view} on {parent.block.view}")
        if header.height != parent.block.height + 1:
            raise Refused(Reason.BAD_HEIGHT, f"{header.height} on {parent.block.height}")
        if not parent.block.header.time < header.time <= self._now + MAX_AHEAD:
            raise Refused(Reason.BAD_TIME, f"{header.time} at {self._now}")
        if header.executed_height != parent.child_executes:
            raise Refused(
                Reason.BAD_EXECUTED_HEIGHT, f"{header.executed_height} instead of {parent.child_executes}"
            )

    def _note(self, proposal: Proposal) -> None:
        result = self._proposals.add(proposal)
        if result.outcome is collect.Outcome.EQUIVOCATION:
            self._accuse(result.evidence, proposal.header.proposer, proposal.header.view)

    def _admit(self, block: Block) -> None:
        candidate = block.view == self.view
        self._extend(block, sync=candidate)
        if candidate:
            self._candidates[block.id] = not block.batches
            if block.batches:
                self._effects.append(RequestBatches(block))
                self._effects += self._waiting.proposed(self._now)
            for vote in self._votes.of(block.view, block.id):  # which came before it
                self._relay(vote)
            self._try_vote(block.id)

    def _extend(self, block: Block, *, sync: bool) -> None:
        self._effects.append(StoreBlock(block, sync))
        self._forest.add(block)
        self._shelf.pop(block.id, None)
        self._trim(block.id)

    def _trim(self, keep: bytes = b"") -> None:
        # They stay on disk: one may have been certified somewhere, and then everything to come must extend it.
        self._shelf.update((block.id, block.view) for block in self._forest.trim(keep))

    def _try_vote(self, id_: bytes) -> None:
        node = self._forest.get(id_)
        if node is None or not self._candidates.get(id_) or self._results.diverged:
            return
        header = node.block.header
        agree = self._results.agree(header)
        if agree is None:  # parked until execution has caught up (P2)
            return
        del self._candidates[id_]
        if not agree:
            self._effects.append(Refuse(Reason.ROOTS_DIFFER, f"at height {header.executed_height}"))
            return
        vote = self._safety.vote(node.block, self._pacemaker.high_qc, self._pacemaker.high_tc)
        if vote is not None:
            self._send_vote(vote)

    def _send_vote(self, vote: Vote) -> None:
        """To those who collect it; if one of them cannot be reached, to all, who pass it on."""
        collectors = self._collectors(vote.view, vote.block)
        everyone = range(self._config.instance.size)
        receivers = collectors if all(map(self._waiting.can_reach, collectors)) else everyone
        self._effects += [Send(member, vote) for member in receivers if member != self._config.index]
        if self._config.index in receivers:
            self._on_vote(VerifiedVote(vote))

    def _collectors(self, view: int, block: bytes) -> tuple[int, ...]:
        """The next leader and, in case it keeps the QC, who leads if the view fails: a faulty one can then neither stop
        the chain nor have the proposer blamed for the view (R9).
        """
        leaders = [self._leader(view + 1, block, entered_by) for entered_by in EnteredBy]
        return tuple(dict.fromkeys(leaders))

    def _on_vote(self, verified: VerifiedVote) -> None:
        self._require_window(verified.vote.view)
        self._collect(verified)
        self._relay(verified.vote)

    def _relay(self, vote: Vote) -> None:
        """Pass on a vote to its collectors. It came here because its signer cannot reach one of them.

        If the signer is the proposer, that collector has not got the block either. Of the f+1 members that pass it on one
        is honest, so that one cut link and f hasty liars do not end the view of an honest leader (P29).
        """
        node = self._forest.get(vote.block)
        if node is None or not node.block.view == vote.view == self.view:
            return
        collectors, header = self._collectors(vote.view, vote.block), node.block.header
        if self._config.index not in self._relays(vote.signer, collectors):
            return
        proposal = self._proposals.first(header) if vote.signer == header.proposer else None
        messages = [vote] if proposal is None else [proposal, vote]
        receivers = [
            member for member in collectors if member != vote.signer and self._waiting.can_reach(member)
        ]
        self._effects += [Send(member, message) for member in receivers for message in messages]

    def _relays(self, signer: int, collectors: tuple[int, ...]) -> list[int]:
        """The f+1 members after the signer, without those who collect."""
        size = self._config.instance.size
        following = ((signer + step) % size for step in range(1, size))
        return [member for member in following if member not in collectors][: faults(size) + 1]

    def _collect(self, verified: VerifiedVote) -> None:
        vote = verified.vote
        result = self._votes.add(verified)
        match result.outcome:
            case collect.Outcome.DUPLICATE:
                raise Refused(Reason.REPLAYED, f"vote of member {vote.signer} in view {vote.view}")
            case collect.Outcome.EQUIVOCATION:
                self._accuse(result.evidence, vote.signer, vote.view)
            case collect.Outcome.ENOUGH:
                timer = GraceOver(vote.view, vote.block)
                self._effects.append(SetTimer(timer, self._config.vote_grace))
            case collect.Outcome.QUORUM if result.qc is not None:
                self._on_formed(result.qc)

    def _on_formed(self, qc: VerifiedQC | None) -> None:
        # None: too few votes, or their view has ended and they are forgotten. Not newer: more votes for the same block.
        if qc is not None and qc.view > self._formed_qc:
            self._formed_qc = qc.view
            self._observe(qc, None)
            self._pass_on(qc)

    def _pass_on(self, qc: VerifiedQC) -> None:
        """Send a QC that was formed here to the leader of this view, which may not have got the block (R9).

        If that leader cannot be reached all get it, or they would wait in vain for its view, and for the one before.
        """
        leader, message = self._waiting.leader(), Certificates(qc.qc, None)
        if qc.view + 1 != self.view or leader in (None, self._config.index):
            return
        if self._config.index not in self._collectors(qc.view, qc.block):  # others have the votes as well
            return
        reachable = self._waiting.can_reach(leader)
        self._effects.append(Send(leader, message) if reachable else Broadcast(message))

    # -- certificates and views ---------------------------------------------------------------------------------------

    def _observe(self, qc: VerifiedQC, tc: VerifiedTC | None) -> None:
        """Learn from verified certificates: what is certified, what is final, which view it is."""
        if qc.view == self.view:
            self._waiting.certified(self._now)
        entered = self._pacemaker.on_qc(qc)
        if tc is not None:
            entered |= self._observe_tc(tc)
        self._observe_qc(qc)
        if entered:
            self._enter_view()
        self._effects += self._proposer.ask()  # a higher QC may allow a proposal in the same view

    def _observe_tc(self, tc: VerifiedTC) -> bool:
        """Whether a new view begins. If it ends the view that this member is in, that view's leader has failed."""
        view, leader = self.view, self._waiting.leader()
        entered = self._pacemaker.on_tc(tc)
        if entered and tc.view == view:
            self._waiting.failed(leader)
            if leader is not None:
                self._effects.append(ViewFailed(view, leader))
        return entered

    def _observe_qc(self, qc: VerifiedQC) -> None:
        if self.known(qc.block):
            self._certify(qc.block)
        elif qc.view > self.root.view:
            self._effects.append(RequestBlocks(qc))

    def _certify(self, id_: bytes) -> None:
        node = self._forest.get(id_)
        if node is None or node.certified:
            return
        self._report(self._results.certified(node.block.header))
        final, abandoned = self._forest.certify(id_)
        if abandoned:
            self._effects.append(Prune(abandoned))
        if final:
            self._effects.append(Commit(final))
            self._forget()

    def _forget(self) -> None:
        root = self.root
        over = tuple(id_ for id_, view in self._shelf.items() if view <= root.view)
        for id_ in over:
            del self._shelf[id_]
        if over:
            self._effects.append(Prune(over))
        self._orphans = {proposer: p for proposer, p in self._orphans.items() if p.block.view > root.view}
        self._results.forget_below(root.header.executed_height)

    def _enter_view(self) -> None:
        self._votes.forget_below(self.view - 1)  # see `_is_late`
        self._proposals.forget_below(self.view - WINDOW)
        self._timeouts.clear()
        self._candidates.clear()
        self._proposer.enter_view()
        self._effects += self._waiting.enter_view(self._now)

    def _on_timer(self, event: TimerFired) -> None:
        match event.timer:
            case ViewTimer() as timer:
                if self._waiting.is_over(timer):
                    self._on_view_timer()
            case Heartbeat() as timer:
                self._effects += self._proposer.heartbeat_over(timer)
            case PaceOver() as timer:
                self._effects += self._proposer.pace_over(timer)
            case timer:
                self._on_formed(self._votes.close(timer.view, timer.block))

    def _on_view_timer(self) -> None:
        if again := self._waiting.wait_once_more(self._now):
            self._effects += again
        else:
            self._time_out()

    def _time_out(self) -> None:
        """Give up on the view and say so to all, again and again until it changes (T11)."""
        self._effects.append(self._waiting.gave_up(self._now))
        timeout = self._safety.timeout(self.view, self._pacemaker.high_qc, self._pacemaker.high_tc)
        if timeout is not None:
            self._effects.append(Broadcast(timeout))
            self._collect_own(timeout)

    def _collect_own(self, timeout: Timeout) -> None:
        vote = None if timeout.vote is None else VerifiedVote(timeout.vote)
        own = VerifiedTimeout(timeout, self._pacemaker.high_qc, self._pacemaker.high_tc, vote)
        try:
            self._on_timeout(own)
        except Refused:  # counted already: this is the re-broadcast
            return

    def _on_timeout(self, verified: VerifiedTimeout) -> None:
        timeout = verified.timeout
        if not self._is_late(timeout):
            self._require_view(timeout.view)
        self._observe(verified.high_qc, verified.tc)
        if verified.vote is not None:
            self._collect_resent(verified.vote)
        if timeout.view < self.view:  # it was late, or the vote in it completed a QC
            return
        result = self._timeouts.add(verified)
        match result.outcome:
            case collect.Outcome.DUPLICATE:
                raise Refused(Reason.REPLAYED, f"timeout of member {timeout.signer} in view {timeout.view}")
            case collect.Outcome.EQUIVOCATION:
                self._accuse(result.evidence, timeout.signer, timeout.view)
            case collect.Outcome.ECHO if not self._waiting.has_given_up:
                self._time_out()
            case collect.Outcome.QUORUM if result.tc is not None:
                self._observe(self._pacemaker.high_qc, result.tc)

    def _collect_resent(self, vote: VerifiedVote) -> None:
        """A vote sent again with a timeout: any live member can finish the QC that its collector did not (T9, T15)."""
        try:
            self._collect(vote)
        except Refused as refusal:
            if refusal.reason is Reason.EQUIVOCATION:
                raise
        if (
            vote.vote.view <= self._safety.state.highest_timeout_view
        ):  # given up here as well: no grace any more
            self._on_formed(self._votes.close(vote.vote.view, vote.vote.block))

    def _is_late(self, timeout: Timeout) -> bool:
        """Of the view just left, with a vote that its QC may lack: a liar's timeout without one can complete the TC first."""
        return (
            timeout.vote is not None
            and timeout.view + 1 == self.view
            and self.high_qc.view < timeout.view <= self._safety.state.highest_timeout_view
        )

    # -- catching up ----------------------------------------------------------------------------------------------------

    def _park(self, proposal: VerifiedProposal) -> None:
        self._orphans[proposal.block.header.proposer] = proposal
        self._observe(proposal.justify, proposal.tc)

    def _parked(self, block: Block) -> bool:
        parked = self._orphans.get(block.header.proposer)
        return parked is not None and parked.block.view >= block.view

    def _on_chain(self, chain: CertifiedChain) -> None:
        """Every block is certified by its child's justify, the last by the QC that came with the answer."""
        first = chain.blocks[0]
        if not self.known(first.parent):
            self._require_no_fork(first, chain.qc)
            raise Refused(Reason.CONFLICT, "fetched chain does not start here")
        for block in chain.blocks:
            self._certify(block.parent)
            if not self.known(block.id):
                self._extend(block, sync=False)
        self._observe(chain.qc, None)
        self._adopt_orphans()
        self._effects += self._proposer.ask()

    def _require_no_fork(self, first: Block, qc: VerifiedQC) -> None:
        # A certified block of a higher view extends every final block, or more than f members are faulty.
        if first.height == self.root.height + 1 and qc.view > self.root.view:
            raise SafetyViolation(
                f"Block {qc.block.hex()} of view {qc.view} is certified but leaves out block {self.root.id.hex()}, which "
                f"is final here. More than f members broke the rules: this replica stops. Keep its data "
                f"directory and those of the others, they hold the proof; docs/consensus.md says what to do after a fork."
            )

    def _adopt_orphans(self) -> None:
        while (
            found := next((p for p in self._orphans.values() if self.known(p.block.parent)), None)
        ) is not None:
            del self._orphans[found.block.header.proposer]
            try:
                self._on_proposal(found)
            except Refused as refusal:
                self._effects.append(Refuse(refusal.reason, refusal.detail))

    def _on_executed(self, event: Executed) -> None:
        self._report(self._results.executed(event.height, event.roots))
        for id_ in list(self._candidates):
            self._try_vote(id_)
        self._effects += self._proposer.ask()

    def _on_batches(self, event: BatchesReady) -> None:
        if event.block in self._candidates:
            self._candidates[event.block] = True
            self._try_vote(event.block)

    def _on_payload(self, payload: Payload) -> None:
        match self._proposer.on_payload(payload, self._now):
            case Block() as block:
                self._propose(block)
            case effects:
                self._effects += effects

    def _on_news(self, event: PayloadAvailable | WorkPending | Connection) -> None:
        if isinstance(event, PayloadAvailable):
            self._effects += self._proposer.payload_available()
        self._effects += self._waiting.on_news(event, self._now)

    def _propose(self, block: Block) -> None:
        proposal = self._safety.propose(block, self._pacemaker.high_qc, self._pacemaker.high_tc)
        if proposal is not None:  # None: proposed in this view before a restart
            self._effects.append(Broadcast(proposal))
            self._note(proposal)
            self._admit(block)

    # -- helpers ------------------------------------------------------------------------------------------------------------

    def _leader(self, view: int, parent: bytes, entered_by: EnteredBy) -> int:
        # Headers below the root may be incomplete. Only a vote that is sent again after a restart asks about a block
        # there, and nobody waits for it.
        ancestry = self._forest.ancestry(parent) if self.known(parent) else ()
        return self._leaders.leader(view, entered_by, ancestry)

    def _report(self, divergence: Diverged | None) -> None:
        if divergence is not None:
            self._effects.append(divergence)

    def _accuse(self, evidence: Evidence | None, member: int, view: int) -> NoReturn:
        if evidence is not None:
            self._effects.append(ReportMisbehaviour(evidence))
        raise Refused(Reason.EQUIVOCATION, f"member {member} in view {view}")

    def _require_view(self, view: int) -> None:
        if view < self.view:
            raise Refused(Reason.STALE, f"view {view}, this is {self.view}")

    def _require_recent(self, proposal: Proposal) -> None:
        if proposal.header.view + WINDOW < self.view:
            raise Refused(Reason.STALE, f"view {proposal.header.view}, this is {self.view}")

    def _require_unknown(self, known: bool, view: int) -> None:  # noqa: FBT001
        """Members pass on votes and proposals, so that many come twice: that costs no check of a signature."""
        if known:
            raise Refused(Reason.REPLAYED, f"a message of view {view}")

    def _require_news(self, message: Certificates) -> None:
        if message.qc.view <= self.high_qc.view and (message.tc is None or message.tc.view < self.view):
            raise Refused(Reason.STALE, "certificates are known")

    def _require_window(self, view: int) -> None:
        self._require_view(view)
        if view > self.view + WINDOW:
            raise Refused(Reason.FUTURE, f"view {view}, this is {self.view}")

    def _resend(self) -> None:
        state = self._safety.state
        if state.last_proposal is not None and state.last_proposal.header.view == self.view:
            self._effects.append(Broadcast(state.last_proposal))
        if state.last_timeout is not None and state.last_timeout.view == self.view:
            self._time_out()
        elif state.last_vote is not None and state.last_vote.view == self.view:
            self._send_vote(state.last_vote)

    def _take_effects(self) -> list[Effect]:
        """Blocks and the record reach the disk before anything that depends on them leaves, in one sync each."""
        effects, self._effects = self._effects, []
        if self._safety.state is self._persisted:
            return effects
        self._persisted = self._safety.state
        stores: list[Effect] = [effect for effect in effects if isinstance(effect, StoreBlock)]
        rest = [effect for effect in effects if not isinstance(effect, StoreBlock)]
        return [*stores, PersistSafety(self._persisted), *rest]
