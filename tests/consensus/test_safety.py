"""What a replica may sign: one vote, one timeout and one proposal per view, across restarts (T2, T16-T18)."""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace
from tests.consensus.chains import Committee, batch, roots_at
from tests.consensus.world import VIEW_TIMEOUT, Cluster, Seat, Solo, only, sent

from parley.consensus.events import Effect, Executed, PersistSafety, Resume, VerifiedQC, VerifiedTC
from parley.consensus.record import COPIES, SLOTS, SafetyState, encode_record, recover_record
from parley.consensus.safety import SafetyRules, abstaining_state, initial_state
from parley.consensus.types import Block, Proposal, Timeout, Vote

COMMITTEE = Committee()
GENESIS = VerifiedQC(COMMITTEE.genesis_qc)
B1, B2, B3 = COMMITTEE.chain(1, 2, 3)


def qc(block: Block) -> VerifiedQC:
    return VerifiedQC(COMMITTEE.qc(block))


def tc(view: int, qc_view: int = 0) -> VerifiedTC:
    return VerifiedTC(COMMITTEE.tc(view, qc_view))


def rules(state: SafetyState | None = None, **fields: object) -> SafetyRules:
    state = state or initial_state(COMMITTEE.instance, 0, COMMITTEE.genesis_qc)
    return SafetyRules(COMMITTEE.instance, COMMITTEE.authority.signer(0), replace(state, **fields))


def restarted(safety: SafetyRules) -> SafetyRules:
    """Only what the record holds survives."""
    older = [encode_record(0, safety.state)] * COPIES
    newest = [encode_record(1, safety.state)] * COPIES
    return rules(recover_record([older, newest], "the test")[1])


# -- votes --------------------------------------------------------------------------------------------------------------


def test_a_vote_verifies_and_is_recorded() -> None:
    safety = rules()
    vote = safety.vote(B1, GENESIS, None)
    assert vote is not None
    assert COMMITTEE.verifier().vote(vote).vote == COMMITTEE.vote(B1, 0)
    assert (safety.state.last_vote, safety.state.last_voted_view) == (vote, 1)


def test_a_vote_locks_the_block_that_it_builds_on() -> None:
    safety = rules()
    safety.vote(B3, qc(B2), None)
    assert safety.state.one_chain_view == 2
    assert safety.state.high_qc == COMMITTEE.qc(B2)


def test_a_vote_on_an_older_block_does_not_unlock() -> None:
    safety = rules(one_chain_view=2)
    assert safety.vote(COMMITTEE.block(B1, 5), qc(B1), tc(4, 1)) is not None
    assert safety.state.one_chain_view == 2


def test_t2_a_vote_extends_the_qc_of_the_view_before() -> None:
    assert rules(one_chain_view=1).vote(B3, qc(B2), None) is not None


def test_t2_or_the_tc_of_the_view_before_with_a_qc_as_high_as_any_in_it() -> None:
    safety = rules()
    assert safety.vote(COMMITTEE.block(B1, 3), qc(B1), tc(2, 1)) is not None
    assert safety.state.high_tc == COMMITTEE.tc(2, 1)


def test_t2_no_vote_below_a_qc_that_the_timeout_quorum_has_seen() -> None:
    assert rules().vote(COMMITTEE.block(B1, 5, tc=COMMITTEE.tc(4, (1, 1, 3))), qc(B1), None) is None


@pytest.mark.parametrize("seen", [0, 1, 2, 3])
@pytest.mark.parametrize("parent", [B1, B2, B3], ids=["view 1", "view 2", "view 3"])
def test_t2_after_a_tc_a_vote_goes_to_a_qc_as_high_as_the_highest_in_it_and_to_none_lower(
    parent: Block, seen: int
) -> None:
    """The lock after a TC: one signer that has seen a newer QC is enough, for a block below it may be final."""
    block = COMMITTEE.block(parent, 6, tc=COMMITTEE.tc(5, (0, seen, 0)))
    vote = rules().vote(block, qc(parent), tc(5, seen))
    assert (vote is not None) == (parent.view >= seen)


def test_t2_a_vote_after_a_tc_locks_the_block_that_it_builds_on_as_well() -> None:
    """Or its next timeout could hide that QC, and the TC made of it would open the way to a fork."""
    safety = rules()
    assert safety.vote(COMMITTEE.block(B2, 4), qc(B2), tc(3, 2)) is not None
    assert safety.state.one_chain_view == 2
    assert safety.timeout(5, qc(B1), tc(4, 1)) is None
    assert safety.timeout(5, qc(B2), tc(4, 2)) is not None


def test_t2_no_vote_with_the_tc_of_an_older_view() -> None:
    assert rules().vote(COMMITTEE.block(B1, 5, tc=COMMITTEE.tc(3, 1)), qc(B1), None) is None


def test_t2_no_vote_with_the_tc_of_a_newer_view() -> None:
    assert rules().vote(COMMITTEE.block(B1, 5, tc=COMMITTEE.tc(6, 1)), qc(B1), None) is None


@pytest.mark.parametrize("view", [2, 3])
def test_t2_no_vote_for_a_block_that_is_not_newer_than_the_one_it_builds_on(view: int) -> None:
    assert rules().vote(COMMITTEE.block(B3, view, tc=None), qc(B3), None) is None


def test_t3_no_vote_without_any_entitlement() -> None:
    assert rules().vote(COMMITTEE.block(B1, 5, tc=None), qc(B1), None) is None


def test_one_vote_per_view() -> None:
    safety = rules()
    safety.vote(B1, GENESIS, None)
    before = safety.state
    assert safety.vote(COMMITTEE.block(time=99), GENESIS, None) is None
    assert safety.state is before


def test_no_vote_in_an_older_view() -> None:
    safety = rules()
    safety.vote(B2, qc(B1), None)
    assert safety.vote(B1, GENESIS, None) is None


def test_no_vote_after_giving_up_on_the_view() -> None:
    safety = rules()
    safety.timeout(1, GENESIS, None)
    assert safety.vote(B1, GENESIS, None) is None


def test_t16_after_a_restart_no_other_vote_in_the_view() -> None:
    safety = rules()
    safety.vote(B1, GENESIS, None)
    assert restarted(safety).vote(COMMITTEE.block(time=99), GENESIS, None) is None


def test_t17_the_same_vote_may_be_sent_again() -> None:
    safety = rules()
    vote = safety.vote(B1, GENESIS, None)
    before = safety.state
    assert safety.vote(B1, GENESIS, None) == vote
    assert safety.state is before
    assert restarted(safety).vote(B1, GENESIS, None) == vote


def test_t17_even_after_giving_up_on_the_view() -> None:
    """The vote left already: sending the identical one again signs nothing new."""
    safety = rules()
    vote = safety.vote(B1, GENESIS, None)
    safety.timeout(1, GENESIS, None)
    assert safety.vote(B1, GENESIS, None) == vote


# -- timeouts -----------------------------------------------------------------------------------------------------------


def test_a_timeout_verifies_and_is_recorded() -> None:
    safety = rules()
    timeout = safety.timeout(2, qc(B1), None)
    assert timeout == COMMITTEE.timeout(2, 0, COMMITTEE.qc(B1))
    assert timeout is not None
    COMMITTEE.verifier().timeout(timeout)
    assert (safety.state.last_timeout, safety.state.highest_timeout_view) == (timeout, 2)


def test_a_timeout_carries_the_tc_only_if_it_needs_it() -> None:
    assert rules().timeout(2, qc(B1), tc(1)) == COMMITTEE.timeout(2, 0, COMMITTEE.qc(B1))
    assert rules().timeout(3, qc(B1), tc(2, 1)) == COMMITTEE.timeout(3, 0, COMMITTEE.qc(B1))


def test_t15_a_timeout_carries_the_vote_of_its_view() -> None:
    safety = rules()
    vote = safety.vote(B2, qc(B1), None)
    timeout = safety.timeout(2, qc(B1), None)
    assert timeout is not None
    assert timeout.vote == vote


def test_t15_but_no_vote_of_another_view() -> None:
    safety = rules()
    safety.vote(B1, GENESIS, None)
    timeout = safety.timeout(2, qc(B1), None)
    assert timeout is not None
    assert timeout.vote is None


def test_t2_no_timeout_that_hides_the_qc_that_a_vote_was_built_on() -> None:
    safety = rules()
    safety.vote(B3, qc(B2), None)
    assert safety.timeout(4, qc(B1), tc(3, 1)) is None


@pytest.mark.parametrize("high_tc", [None, tc(1), tc(3)])
def test_t2_no_timeout_of_a_view_that_no_certificate_opened(high_tc: VerifiedTC | None) -> None:
    assert rules().timeout(3, GENESIS, high_tc) is None


def test_no_timeout_of_a_view_that_is_over() -> None:
    assert rules(highest_timeout_view=5).timeout(4, qc(B3), None) is None
    assert rules(last_voted_view=5).timeout(4, qc(B3), None) is None


def test_no_timeout_of_a_view_before_the_last_one_given_up_on() -> None:
    safety = rules()
    safety.timeout(2, qc(B1), None)
    assert safety.timeout(1, GENESIS, None) is None


def test_no_timeout_of_a_view_that_a_qc_has_left_behind() -> None:
    assert rules().timeout(2, qc(B3), None) is None
    assert rules().timeout(2, qc(B3), tc(1)) is None


def test_t16_no_timeout_of_a_view_that_was_given_up_on_although_that_timeout_is_gone() -> None:
    assert rules(highest_timeout_view=4, last_timeout=None).timeout(4, qc(B3), None) is None


def test_t16_after_a_restart_no_other_timeout_of_the_view() -> None:
    safety = rules()
    timeout = safety.timeout(3, GENESIS, tc(2))
    assert restarted(safety).timeout(3, qc(B2), None) == timeout


def test_t17_the_same_timeout_may_be_sent_again() -> None:
    safety = rules()
    timeout = safety.timeout(1, GENESIS, None)
    before = safety.state
    assert safety.timeout(1, GENESIS, None) == timeout
    assert safety.state is before


# -- proposals ----------------------------------------------------------------------------------------------------------


def test_a_proposal_verifies_and_is_recorded() -> None:
    safety = rules()
    block = COMMITTEE.block(B3, 4, (batch(1),))
    proposal = safety.propose(block, qc(B3), None)
    assert proposal == COMMITTEE.proposal(block)
    assert safety.state.last_proposal == proposal
    assert (safety.state.high_qc, safety.state.high_tc) == (COMMITTEE.qc(B3), None)


def test_t18_one_proposal_per_view_also_after_a_restart() -> None:
    safety = rules()
    safety.propose(COMMITTEE.block(B3, 4), qc(B3), None)
    assert safety.propose(COMMITTEE.block(B3, 4, (batch(1),)), qc(B3), None) is None
    assert restarted(safety).propose(COMMITTEE.block(B3, 4, (batch(1),)), qc(B3), None) is None


def test_t18_no_proposal_in_an_older_view() -> None:
    safety = rules()
    safety.propose(COMMITTEE.block(B3, 4), qc(B3), None)
    assert safety.propose(B3, qc(B2), None) is None
    assert safety.propose(COMMITTEE.block(B3, 8), qc(B3), tc(7, 3)) is not None


# -- certificates -------------------------------------------------------------------------------------------------------


def test_t16_whatever_is_signed_the_certificates_known_then_are_recorded() -> None:
    """T16: a replica comes back in the view in which it signed, whether or not the message itself shows them."""
    high_qc, high_tc = qc(B3), tc(2, 1)
    signed = [rules() for _ in range(3)]
    assert signed[0].vote(COMMITTEE.block(B3, 4), high_qc, high_tc) is not None
    assert signed[1].timeout(4, high_qc, high_tc) is not None
    assert signed[2].propose(COMMITTEE.block(B3, 4), high_qc, high_tc) is not None
    known = (high_qc.qc, high_tc.tc)
    assert [(safety.state.high_qc, safety.state.high_tc) for safety in signed] == [known] * 3


def test_t18_no_proposal_in_a_view_that_a_certificate_has_ended() -> None:
    safety = rules(high_qc=COMMITTEE.qc(B3))
    for view in (2, 3):
        assert safety.propose(COMMITTEE.block(B1, view), qc(B3), None) is None
    assert safety.propose(COMMITTEE.block(B3, 4), qc(B3), None) is not None


# -- a lost record ------------------------------------------------------------------------------------------------------


def abstaining() -> SafetyRules:
    return rules(abstaining_state(COMMITTEE.instance, 0, COMMITTEE.genesis_qc))


def test_p10_who_lost_its_record_signs_nothing() -> None:
    safety = abstaining()
    before = safety.state
    assert safety.vote(B1, GENESIS, None) is None
    assert safety.timeout(1, GENESIS, None) is None
    assert safety.propose(B1, GENESIS, None) is None
    assert safety.state is before


def test_p10_whatever_else_its_record_says() -> None:
    """Not even what would only be sent again."""
    safety = rules()
    safety.vote(B1, GENESIS, None)
    safety.timeout(1, GENESIS, None)
    lost = rules(safety.state, abstains=True)
    assert lost.vote(B1, GENESIS, None) is None
    assert lost.timeout(1, GENESIS, None) is None


def test_p10_it_comes_back_as_one_who_voted_locked_and_gave_up_in_the_view_of_a_certificate() -> None:
    safety = abstaining()
    safety.resume(qc(B3))
    expected = initial_state(COMMITTEE.instance, 0, COMMITTEE.genesis_qc)
    assert safety.state == replace(
        expected, last_voted_view=3, one_chain_view=3, highest_timeout_view=3, high_qc=COMMITTEE.qc(B3)
    )


def test_p10_then_it_signs_in_later_views_only() -> None:
    safety = abstaining()
    safety.resume(qc(B2))
    assert safety.vote(COMMITTEE.block(B1, 2, time=99), qc(B2), None) is None
    assert safety.timeout(2, qc(B2), tc(1)) is None
    assert safety.propose(COMMITTEE.block(B1, 2), qc(B2), None) is None
    assert safety.vote(B3, qc(B2), None) is not None
    assert safety.timeout(3, qc(B2), None) is not None
    assert safety.propose(COMMITTEE.block(B2, 3, (batch(1),)), qc(B2), None) is not None


def test_p10_and_its_timeouts_hide_no_certificate_that_it_may_have_voted_on() -> None:
    safety = abstaining()
    safety.resume(qc(B3))
    assert safety.timeout(5, qc(B2), tc(4, 2)) is None
    assert safety.timeout(5, qc(B3), tc(4, 3)) is not None


def test_p10_all_that_was_in_the_record_before_is_gone() -> None:
    safety = rules()
    safety.propose(B1, GENESIS, tc(1))
    safety.vote(B1, GENESIS, tc(1))
    safety.timeout(1, GENESIS, tc(1))
    lost = rules(safety.state, abstains=True)
    lost.resume(qc(B3))
    state = lost.state
    assert (state.last_proposal, state.last_vote, state.last_timeout, state.high_tc) == (None,) * 4


def test_p10_who_has_its_record_never_gives_it_up() -> None:
    safety = rules()
    with pytest.raises(AssertionError):
        safety.resume(qc(B3))


@pytest.mark.parametrize("index", range(4))
def test_p10_a_machine_without_its_record_follows_and_signs_nothing_until_it_may(index: int) -> None:
    state = abstaining_state(COMMITTEE.instance, index, COMMITTEE.genesis_qc)
    machine = Solo(COMMITTEE, index, state=state)
    effects = [*machine.started, *machine.time_out()]
    for block in (B1, B2, B3):
        effects += [*machine.propose(block), *machine.time_out()]
    assert (machine.machine.view, machine.machine.root) == (3, B1)
    assert only(PersistSafety, effects) == []
    assert [sent(kind, effects) for kind in (Vote, Timeout, Proposal)] == [[], [], []]
    (persist,) = machine.feed(Resume(machine.machine.high_qc))
    assert isinstance(persist, PersistSafety)
    assert (persist.state.last_voted_view, persist.state.abstains) == (2, False)
    timeouts = sent(Timeout, machine.time_out())
    assert [(timeout.view, timeout.vote) for timeout in timeouts] == [(3, None)]
    machine.propose(COMMITTEE.block(B3, 4))
    for height in (1, 2):
        machine.feed(Executed(height, roots_at(height)))
    assert machine.safety.state.last_voted_view == 4


class Recorded(Cluster):
    """Looks at every record that a member writes."""

    def __init__(self, committee: Committee, seed: int) -> None:
        chance = Random(seed)
        self.shown = [0] * committee.size
        self.signed = 0
        super().__init__(committee, lost=lambda _sender, _to, _message: chance.random() < 0.25)
        for _ in range(40):
            self.run(self.now + chance.randrange(VIEW_TIMEOUT))
            member = chance.randrange(committee.size)
            if member not in self.dead:
                self.kill(member)
            self.boot(member)

    def _keep(self, seat: Seat, effect: Effect) -> None:
        if isinstance(effect, PersistSafety):
            state, index = effect.state, seat.index
            proposed = 0 if state.last_proposal is None else state.last_proposal.header.view
            signed = max(state.last_voted_view, state.highest_timeout_view, proposed)
            shown = max(state.high_qc.view, 0 if state.high_tc is None else state.high_tc.view)
            assert shown >= signed - 1
            assert shown >= self.shown[index]
            self.shown[index] = shown
            self.signed += 1
        super()._keep(seat, effect)


@pytest.mark.parametrize("seed", range(12))
def test_p10_a_record_shows_a_certificate_of_the_view_before_all_that_was_signed(seed: int) -> None:
    """Whatever is lost and whoever restarts: on this the way back of another member rests (replica/recovery.py)."""
    cluster = Recorded(COMMITTEE, seed)
    assert cluster.signed > 100
    assert max(cluster.shown) > 10


# -- whatever happens -----------------------------------------------------------------------------------------------------

VIEWS = st.integers(1, 12)
MANY = settings(derandomize=True, max_examples=60, stateful_step_count=40, deadline=None)


class SigningHistory(RuleBasedStateMachine):
    """Any blocks, any certificates, in any order, with crashes that keep only the record (T16-T18)."""

    def __init__(self) -> None:
        super().__init__()
        self.safety = rules()
        self.disk: list[list[bytes]] = [[], []]
        self.sequence = 1
        self.votes: dict[int, set[bytes]] = {}
        self.timeouts: dict[int, set[bytes]] = {}
        self.proposals: dict[int, set[bytes]] = {}
        self.lock = 0

    @initialize(
        voted=st.integers(0, 6),
        lock=st.integers(0, 6),
        timed_out=st.integers(0, 6),
    )
    def start_from_any_record(self, voted: int, lock: int, timed_out: int) -> None:
        state = replace(
            self.safety.state,
            last_voted_view=voted,
            one_chain_view=min(lock, max(voted - 1, 0)),
            highest_timeout_view=timed_out,
        )
        self.safety = rules(state)
        self.disk = [[encode_record(number, state)] * COPIES for number in range(SLOTS)]
        self.lock = state.one_chain_view
        self.before = (voted, timed_out)

    def persist(self) -> None:
        """A record must be on disk before what it allows leaves."""
        self.sequence += 1
        self.disk[self.sequence % SLOTS] = [encode_record(self.sequence, self.safety.state)] * COPIES

    @rule(parent=st.integers(0, 6), view=VIEWS, time=st.integers(1, 3), qc_view=st.integers(0, 10))
    def a_block_arrives(self, parent: int, view: int, time: int, qc_view: int) -> None:
        below = COMMITTEE.genesis if parent == 0 else COMMITTEE.block(view=parent)
        if view <= below.view:
            return
        tc_ = None if view == below.view + 1 else COMMITTEE.tc(view - 1, min(qc_view, view - 2))
        block = COMMITTEE.block(below, view, time=below.header.time + time, tc=tc_)
        gave_up = view in self.timeouts or view <= self.before[1]
        known = self.votes.get(view, set())
        vote = self.safety.vote(block, qc(below), None)
        self.persist()
        if vote is not None:
            assert COMMITTEE.verifier().vote(vote).vote == vote
            assert not gave_up or vote.block in known
            assert view > self.before[0]
            self.votes.setdefault(view, set()).add(vote.block)

    @rule(view=VIEWS, high=st.integers(0, 11), lag=st.sampled_from([0, 0, 1]), seen=st.integers(0, 3))
    def the_timer_fires(self, view: int, high: int, lag: int, seen: int) -> None:
        high_qc = GENESIS if high == 0 else qc(COMMITTEE.block(view=high))
        high_tc = tc(view - 1 - lag, seen) if view - 1 - lag > seen else None
        timeout = self.safety.timeout(view, high_qc, high_tc)
        self.persist()
        if timeout is not None:
            assert view in self.timeouts or timeout.high_qc.view >= self.lock
            assert timeout.high_qc.view + 1 == view or (timeout.tc and timeout.tc.view + 1 == view)
            self.timeouts.setdefault(view, set()).add(
                COMMITTEE.instance.timeout_message(view, timeout.high_qc.view)
            )

    @rule(view=VIEWS, payload=st.integers(0, 3))
    def a_proposal_is_due(self, view: int, payload: int) -> None:
        block = COMMITTEE.block(view=view, batches=tuple(batch(number) for number in range(payload)))
        proposal = self.safety.propose(block, GENESIS, None)
        self.persist()
        if proposal is not None:
            self.proposals.setdefault(view, set()).add(block.id)

    @rule()
    def it_crashes_and_comes_back(self) -> None:
        self.sequence, state = recover_record(self.disk, "the test")
        self.safety = rules(state)

    @rule(view=VIEWS)
    def it_crashes_while_it_writes(self, view: int) -> None:
        """What was signed under the unfinished write has not left, so forgetting it is right."""
        self.safety.vote(COMMITTEE.block(view=view, time=7), GENESIS, None)
        self.safety.timeout(view, GENESIS, None)
        self.disk[(self.sequence + 1) % SLOTS][0] = b"torn"
        self.it_crashes_and_comes_back()
        self.persist()

    @invariant()
    def nothing_is_signed_twice_in_one_view(self) -> None:
        for signed in (self.votes, self.timeouts, self.proposals):
            assert all(len(messages) == 1 for messages in signed.values())

    @invariant()
    def the_lock_never_goes_down(self) -> None:
        assert self.safety.state.one_chain_view >= self.lock
        self.lock = self.safety.state.one_chain_view


TestSigningHistory = SigningHistory.TestCase
TestSigningHistory.settings = MANY
