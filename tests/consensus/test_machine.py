"""The machine, one input at a time: what it does, in which order, and what it waits for."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.consensus.chains import Committee, batch, roots_at
from tests.consensus.world import (
    HEARTBEAT,
    VIEW_TIMEOUT,
    Cluster,
    Solo,
    TwoLeaders,
    committed,
    kinds,
    only,
    reasons,
    sent,
)

from parley.consensus.errors import Reason, SafetyViolation
from parley.consensus.events import (
    BatchesReady,
    Broadcast,
    Diverged,
    Effect,
    Executed,
    GraceOver,
    Heartbeat,
    Message,
    Payload,
    PayloadAvailable,
    PersistSafety,
    Prune,
    ReportMisbehaviour,
    RequestBatches,
    RequestBlocks,
    RequestPayload,
    RequestWork,
    Send,
    SetTimer,
    StoreBlock,
    TimerFired,
    ViewTimer,
)
from parley.consensus.forest import MAX_UNCERTIFIED
from parley.consensus.leader.cwa import Cwa
from parley.consensus.leader.cwa_plus import CwaPlus
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.machine import MAX_AHEAD, WINDOW
from parley.consensus.safety import initial_state
from parley.consensus.types import Block, Certificates, Proposal, Timeout, Vote
from parley.crypto.qc import voters

COMMITTEE = Committee()
B1, B2, B3, B4 = COMMITTEE.chain(1, 2, 3, 4)
FULL = COMMITTEE.block(batches=(batch(1), batch(2)))
FRESH = initial_state(COMMITTEE.instance, 0, COMMITTEE.genesis_qc)


def solo(index: int = 0, *blocks: Block) -> Solo:
    """A machine that has received these proposals."""
    machine = Solo(COMMITTEE, index)
    for block in blocks:
        machine.propose(block)
    return machine


# -- voting -------------------------------------------------------------------------------------------------------------


def test_a_proposal_gets_a_vote_that_goes_to_the_next_leader() -> None:
    effects = solo(0).propose(B1)
    assert only(Send, effects) == [Send(2, COMMITTEE.vote(B1, 0))]


def test_blocks_from_the_last_committed_one_on_are_found_by_their_id() -> None:
    machine = solo(0, B1, B2).machine
    assert machine.block(B2.id) == B2
    assert machine.block(COMMITTEE.genesis.id) == COMMITTEE.genesis
    assert machine.block(B3.id) is None


def test_t16_block_and_record_are_on_disk_before_the_vote_leaves() -> None:
    effects = solo(0).propose(B1)
    assert kinds(effects) == [StoreBlock, PersistSafety, Send]
    assert only(StoreBlock, effects)[0].sync
    assert only(PersistSafety, effects)[0].state.last_vote == COMMITTEE.vote(B1, 0)


def test_the_next_leader_keeps_its_own_vote_and_makes_the_qc() -> None:
    machine = solo(2)
    assert only(Send, machine.propose(B1)) == []
    machine.receive(COMMITTEE.vote(B1, 0))
    machine.receive(COMMITTEE.vote(B1, 3))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 2, 3))
    assert machine.machine.view == 2


def test_t20_no_vote_before_every_batch_is_stored() -> None:
    machine = solo(0)
    effects = machine.propose(FULL)
    assert only(RequestBatches, effects) == [RequestBatches(FULL)]
    assert sent(Vote, effects) == []
    assert machine.feed(BatchesReady(B2.id)) == []
    assert sent(Vote, machine.feed(BatchesReady(FULL.id))) == [COMMITTEE.vote(FULL, 0)]


def test_t20_batches_that_come_after_the_view_make_no_vote() -> None:
    machine = solo(0, FULL)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    assert machine.feed(BatchesReady(FULL.id)) == []


def test_a_vote_waits_until_execution_has_caught_up() -> None:
    machine = solo(0, B1, B2, B3)
    assert B4.header.executed_height == 1
    assert sent(Vote, machine.propose(B4)) == []
    assert sent(Vote, machine.feed(Executed(1, roots_at(1)))) == [COMMITTEE.vote(B4, 0)]


def test_no_vote_for_other_results_than_ours() -> None:
    machine = solo(0)
    effects = machine.propose(COMMITTEE.block(state_root=bytes(32)))
    assert reasons(effects) == [Reason.ROOTS_DIFFER]
    assert sent(Vote, effects) == []
    assert machine.safety.state == FRESH


def test_a_proposal_for_an_earlier_view_is_refused() -> None:
    machine = solo(0)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    before = machine.observable()
    assert reasons(machine.propose(B1)) == [Reason.STALE]
    assert not machine.machine.known(B1.id)
    assert machine.observable() == before


def test_unless_its_certificate_came_first() -> None:
    machine = solo(0)
    machine.receive(Certificates(COMMITTEE.qc(B1), None))
    effects = machine.propose(B1)
    assert kinds(effects) == [StoreBlock]
    assert not only(StoreBlock, effects)[0].sync
    assert machine.machine.known(B1.id)


def test_and_then_it_commits_what_that_certificate_makes_final() -> None:
    machine = solo(0, B1)
    machine.receive(Certificates(COMMITTEE.qc(B2), None))
    assert committed(machine.propose(B2)) == [B1]


def test_a_proposal_far_behind_is_refused_before_its_signature_is_checked() -> None:
    machine = solo(0)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(WINDOW + 1)))
    before = machine.inside()
    assert reasons(machine.receive(replace(COMMITTEE.proposal(B1), signature=b""))) == [Reason.STALE]
    assert machine.inside() == before


def test_a_leader_that_proposed_twice_is_found_out_some_views_later() -> None:
    machine = solo(0, B1)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(WINDOW)))
    effects = machine.propose(COMMITTEE.block(time=9))
    assert (len(only(ReportMisbehaviour, effects)), reasons(effects)) == (1, [Reason.EQUIVOCATION])


def test_no_vote_in_a_view_that_was_given_up() -> None:
    machine = solo(0)
    machine.time_out()
    assert kinds(machine.propose(B1)) == [StoreBlock]


def test_a_candidate_that_was_abandoned_meanwhile_gets_no_vote() -> None:
    """More than f members lied here, so that an older QC still makes another branch final."""
    machine = solo(0, B1, B2)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(4)))
    fork = COMMITTEE.block(view=5, batches=(batch(9),))
    machine.propose(fork)
    effects = machine.receive(Certificates(COMMITTEE.qc(B2), None))
    assert only(Prune, effects) == [Prune((fork.id,))]
    assert machine.feed(BatchesReady(fork.id)) == []


def test_of_two_legal_proposals_in_a_view_the_first_gets_the_vote() -> None:
    """P8; the vote completes a QC here, which ends the view while the second still waits for execution."""
    committee = Committee(depth=3)
    b1, b2, b3 = committee.chain(1, 2, 3)
    b5 = committee.block(b3, 5, proposer=2)
    b6 = committee.block(b5, 6)
    by_qc, by_tc = committee.block(b6, 7), committee.block(b5, 7, proposer=0)
    machine = Solo(committee, 0, leaders=TwoLeaders())
    for block in (b1, b2, b3, b5, b6, by_qc, by_tc):
        machine.propose(block)
    machine.receive(committee.vote(by_qc, 1))
    machine.receive(committee.vote(by_qc, 2))
    machine.feed(Executed(1, roots_at(1)))
    assert machine.machine.view == 8
    assert machine.safety.state.last_vote == committee.vote(by_qc, 0)


def elected(committee: Committee, scheme: LeaderScheme, count: int) -> list[Block]:
    """A chain of consecutive views, each proposed by whom the scheme elects."""
    chain = [committee.genesis]
    for view in range(1, count + 1):
        line = [block.header for block in reversed(chain)]
        chain.append(committee.block(chain[-1], view, proposer=scheme.leader(view, EnteredBy.QC, line)))
    return chain[1:]


@pytest.mark.parametrize("make", [Cwa, CwaPlus])
@pytest.mark.parametrize("first", ["by_qc", "by_tc"])
def test_p8_cwa_after_a_qc_and_round_robin_after_a_tc_are_both_legal_in_one_view(
    make: Callable[[int], LeaderScheme], first: str
) -> None:
    committee = Committee()
    *line, below, parent, by_qc = elected(committee, make(4), 14)
    by_tc = committee.block(below, by_qc.view)
    assert by_tc.header.proposer != by_qc.header.proposer
    machine = Solo(committee, 0, leaders=make(4))
    for block in [*line, below, parent]:
        for final in committed(machine.propose(block)):
            machine.feed(Executed(final.height, roots_at(final.height)))
    proposals = [by_qc, by_tc] if first == "by_qc" else [by_tc, by_qc]
    effects = [effect for block in proposals for effect in machine.propose(block)]
    assert machine.safety.state.last_vote == committee.vote(proposals[0], 0)
    assert machine.machine.known(by_qc.id)
    assert machine.machine.known(by_tc.id)
    assert (only(ReportMisbehaviour, effects), reasons(effects)) == ([], [])
    intruder = committee.block(parent, by_qc.view, proposer=by_tc.header.proposer, time=99)
    assert reasons(machine.propose(intruder)) == [Reason.NOT_LEADER]


# -- votes that their collector keeps ------------------------------------------------------------------------------------


def left_behind() -> Solo:
    """Member 0 gave up on view 1 with a liar that kept its vote and one other: one vote short of the QC of B1."""
    machine = Solo(COMMITTEE, 0)
    machine.propose(B1)
    machine.time_out()
    machine.receive(COMMITTEE.timeout(1, 2))
    machine.receive(COMMITTEE.timeout(1, 1, vote=COMMITTEE.vote(B1, 1)))
    assert (machine.machine.view, machine.machine.high_qc.view) == (2, 0)
    return machine


def test_t15_the_vote_in_a_late_timeout_completes_the_qc_of_the_view_just_left() -> None:
    machine = left_behind()
    machine.receive(COMMITTEE.timeout(1, 3, vote=COMMITTEE.vote(B1, 3)))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 1, 3))
    assert machine.machine.view == 2


def test_t15_a_late_timeout_that_brings_nothing_is_stale() -> None:
    machine = left_behind()
    assert reasons(machine.receive(COMMITTEE.timeout(1, 3))) == [Reason.STALE]
    machine.receive(Certificates(COMMITTEE.qc(B1), None))
    vote = COMMITTEE.vote(B1, 3)
    assert reasons(machine.receive(COMMITTEE.timeout(1, 3, vote=vote))) == [Reason.STALE]
    older = left_behind()
    older.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2)))
    assert reasons(older.receive(COMMITTEE.timeout(1, 3, vote=vote))) == [Reason.STALE]


def test_t15_who_has_not_given_up_on_the_view_takes_no_late_votes_for_it() -> None:
    machine = solo(2, B1)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    assert machine.machine.view == 2
    vote = COMMITTEE.vote(B1, 3)
    assert reasons(machine.receive(COMMITTEE.timeout(1, 3, vote=vote))) == [Reason.STALE]


def test_t15_votes_go_to_the_next_leader_and_to_who_leads_if_the_view_fails() -> None:
    """R9: a leader that keeps the QC can then not have the proposer of the view blamed."""
    machine = Solo(COMMITTEE, 0, leaders=TwoLeaders())
    effects = machine.propose(COMMITTEE.block(view=1, proposer=TwoLeaders().leader(1, EnteredBy.QC, ())))
    receivers = [effect.to for effect in only(Send, effects) if isinstance(effect.message, Vote)]
    leaders = [TwoLeaders().leader(2, entered_by, ()) for entered_by in EnteredBy]
    assert receivers == [leader for leader in leaders if leader != 0]
    assert len(set(leaders)) == 2


# -- the grace for votes --------------------------------------------------------------------------------------------------

GRACE = 50


def collector() -> Solo:
    """Member 2 collects the votes for B1, and has a quorum of them."""
    machine = Solo(COMMITTEE, 2, vote_grace=GRACE)
    machine.propose(B1)
    assert only(SetTimer, machine.receive(COMMITTEE.vote(B1, 0))) == []
    effects = machine.receive(COMMITTEE.vote(B1, 3))
    assert only(SetTimer, effects) == [SetTimer(GraceOver(1, B1.id), GRACE)]
    assert machine.machine.view == 1
    return machine


def test_in_the_grace_every_vote_may_still_come() -> None:
    machine = collector()
    machine.receive(COMMITTEE.vote(B1, 1))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, range(4))
    assert machine.feed(TimerFired(GraceOver(1, B1.id))) == []


def test_after_the_grace_the_qc_is_made_of_what_is_here() -> None:
    machine = collector()
    effects = machine.feed(TimerFired(GraceOver(1, B1.id)))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 2, 3))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset())]
    effects = machine.feed(Payload(2, ()))
    assert sent(Certificates, effects) == [Certificates(COMMITTEE.qc(B1, (0, 2, 3)), None)]


def test_a_certificate_that_comes_first_ends_the_grace() -> None:
    machine = collector()
    machine.receive(Certificates(COMMITTEE.qc(B1), None))
    before = machine.observable()
    assert machine.feed(TimerFired(GraceOver(1, B1.id))) == []
    assert machine.observable() == before


def test_a_quorum_of_votes_is_not_lost_to_a_tc() -> None:
    machine = collector()
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    machine.feed(TimerFired(GraceOver(1, B1.id)))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 2, 3))


def test_one_timeout_does_not_end_the_grace() -> None:
    """R7: a liar could cut short what slow members are given."""
    machine = collector()
    machine.receive(COMMITTEE.timeout(1, 3, vote=COMMITTEE.vote(B1, 3)))
    assert machine.machine.high_qc.view == 0
    machine.receive(COMMITTEE.timeout(1, 1, vote=COMMITTEE.vote(B1, 1)))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, range(4))


def test_f_plus_1_timeouts_end_it() -> None:
    machine = collector()
    machine.receive(COMMITTEE.timeout(1, 3, vote=COMMITTEE.vote(B1, 3)))
    machine.receive(COMMITTEE.timeout(1, 0, vote=COMMITTEE.vote(B1, 0)))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 2, 3))


def test_and_so_does_the_collectors_own_one() -> None:
    machine = collector()
    machine.time_out()
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 2, 3))


@pytest.mark.parametrize("dead", [[], [1]])
def test_certificates_hold_the_votes_of_all_who_live(dead: list[int]) -> None:
    cluster = Cluster(COMMITTEE, dead=dead, vote_grace=GRACE)
    cluster.run(10_000)
    blocks = cluster.alive[0].committed[2:]
    assert len(blocks) > 5
    for block in blocks:
        signers = voters(block.header.justify.votes.bitmap, 4)
        assert signers == tuple(member for member in range(4) if member not in dead)


# -- committing ---------------------------------------------------------------------------------------------------------


def test_the_justify_of_a_proposal_commits_and_opens_its_view() -> None:
    machine = solo(0, B1, B2)
    effects = machine.propose(B3)
    assert committed(effects) == [B1]
    assert (machine.machine.root, machine.machine.view) == (B1, 3)
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B2)


def test_the_branch_of_a_block_starts_above_the_root() -> None:
    machine = solo(0, B1, B2, B3)
    assert machine.machine.branch(B3.id) == (B2, B3)
    assert machine.machine.branch(B1.id) == ()
    assert machine.machine.branch(bytes(32)) == ()


def test_certificates_alone_commit_too() -> None:
    machine = solo(0, B1, B2)
    assert committed(machine.receive(Certificates(COMMITTEE.qc(B2), None))) == [B1]


def test_t14_an_abandoned_block_is_pruned_and_its_batches_may_be_proposed_again() -> None:
    committee = Committee()
    lost = committee.block(batches=(batch(1),))
    b2 = committee.block(view=2, batches=(batch(2),))
    b3 = committee.block(b2, 3)
    machine = Solo(committee, 0)
    for block in (lost, b2, b3):
        machine.propose(block)
    effects = machine.receive(Certificates(committee.qc(b3), None))
    assert committed(effects) == [b2]
    assert only(Prune, effects) == [Prune((lost.id,))]
    assert only(RequestPayload, effects) == [RequestPayload(4, frozenset())]


def test_batches_of_the_uncommitted_branch_are_not_asked_for_again() -> None:
    machine = solo(2, FULL)
    effects = machine.receive(Certificates(COMMITTEE.qc(FULL), None))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset(FULL.batches))]


def overfull() -> tuple[Solo, list[Block], list[Effect]]:
    """A replica that saw one more uncertified block than it keeps in memory, in as many failed views."""
    machine = solo(0)
    loose = [COMMITTEE.block(view=view) for view in range(1, MAX_UNCERTIFIED + 2)]
    return machine, loose, [effect for block in loose for effect in machine.propose(block)]


def test_a_block_that_falls_out_of_the_buffer_stays_on_disk() -> None:
    """It may have been certified somewhere, and then everything to come must extend it."""
    machine, loose, effects = overfull()
    assert [machine.machine.known(block.id) for block in loose[:2]] == [False, True]
    assert only(Prune, effects) == []


def test_it_is_asked_for_when_it_turns_out_to_be_certified_and_comes_back() -> None:
    machine, loose, _ = overfull()
    effects = machine.receive(Certificates(COMMITTEE.qc(loose[0]), COMMITTEE.tc(MAX_UNCERTIFIED + 1)))
    assert [request.qc.block for request in only(RequestBlocks, effects)] == [loose[0].id]
    machine.feed(machine.verifier.chain((loose[0],), COMMITTEE.qc(loose[0])))
    assert machine.machine.known(loose[0].id)


def test_it_is_pruned_once_a_newer_block_is_final() -> None:
    machine, loose, _ = overfull()
    child = COMMITTEE.block(loose[-1])
    machine.propose(child)
    effects = machine.receive(Certificates(COMMITTEE.qc(child), None))
    assert committed(effects) == [loose[-1]]
    pruned = [id_ for prune in only(Prune, effects) for id_ in prune.blocks]
    assert sorted(pruned) == sorted(block.id for block in loose[:-1])


def test_a_block_that_came_back_is_not_pruned_as_one_that_fell_out() -> None:
    machine, loose, _ = overfull()
    machine.feed(machine.verifier.chain((loose[0],), COMMITTEE.qc(loose[0])))
    child = COMMITTEE.block(loose[0], MAX_UNCERTIFIED + 2)
    grandchild = COMMITTEE.block(child)
    for block in (child, grandchild):
        machine.propose(block)
    effects = machine.receive(Certificates(COMMITTEE.qc(grandchild), None))
    assert committed(effects) == [loose[0], child]
    assert loose[0].id not in [id_ for prune in only(Prune, effects) for id_ in prune.blocks]


# -- divergence -----------------------------------------------------------------------------------------------------------


def diverged(index: int = 0) -> tuple[Solo, list[Effect]]:
    """A machine whose results for block 0 a quorum contradicts."""
    wrong = COMMITTEE.block(state_root=bytes(32))
    machine = solo(index, wrong)
    return machine, machine.receive(Certificates(COMMITTEE.qc(wrong), None))


def test_a_certified_contradiction_is_reported() -> None:
    wrong = COMMITTEE.block(state_root=bytes(32))
    assert only(Diverged, diverged()[1]) == [Diverged(0, wrong.id)]


def test_a_diverged_replica_votes_no_more() -> None:
    machine, _ = diverged()
    wrong = COMMITTEE.block(state_root=bytes(32))
    assert sent(Vote, machine.propose(COMMITTEE.block(wrong, 2))) == []


def test_a_diverged_leader_does_not_propose() -> None:
    machine, effects = diverged(2)
    assert machine.machine.view == 2
    assert only(RequestPayload, effects) == []


def test_a_leader_that_diverges_while_it_waits_does_not_propose() -> None:
    machine = solo(3)
    wrong = COMMITTEE.block(view=2, state_root=bytes(32))
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    machine.propose(wrong)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2)))
    machine.feed(Payload(3, ()))
    machine.receive(Certificates(COMMITTEE.qc(wrong), None))
    assert kinds(machine.feed(PayloadAvailable())) == [RequestWork]
    assert machine.feed(TimerFired(Heartbeat(3))) == []
    assert machine.feed(Payload(3, (batch(1),))) == []


def test_a_contradiction_found_by_later_execution_is_reported() -> None:
    machine = solo(0, B1, B2, B3, B4)
    machine.receive(Certificates(COMMITTEE.qc(B4), None))
    assert only(Diverged, machine.feed(Executed(1, roots_at(99)))) == [Diverged(1, B4.id)]


# -- collecting votes and timeouts ------------------------------------------------------------------------------------------


def test_a_qc_made_before_its_block_is_here_asks_for_the_block_and_then_goes_on() -> None:
    machine = solo(2)
    effects = [effect for signer in (0, 1, 3) for effect in machine.receive(COMMITTEE.vote(B1, signer))]
    assert [request.qc.block for request in only(RequestBlocks, effects)] == [B1.id]
    assert only(RequestPayload, effects) == []
    assert only(RequestPayload, machine.propose(B1)) == [RequestPayload(2, frozenset())]


def test_f_plus_1_timeouts_make_it_join_and_a_quorum_opens_the_next_view() -> None:
    machine = solo(0)
    assert machine.receive(COMMITTEE.timeout(1, 1)) == []
    effects = machine.receive(COMMITTEE.timeout(1, 2))
    assert sent(Timeout, effects) == [COMMITTEE.timeout(1, 0)]
    assert machine.machine.view == 2


def test_who_gave_up_already_does_not_echo() -> None:
    machine = Solo(Committee(7), 0)
    machine.time_out()
    effects = [
        effect for signer in (1, 2) for effect in machine.receive(machine.committee.timeout(1, signer))
    ]
    assert effects == []


def test_t11_a_timeout_is_sent_again_until_the_view_changes() -> None:
    machine = solo(0)
    first, again = machine.time_out(), machine.time_out()
    assert sent(Timeout, first) == sent(Timeout, again) == [COMMITTEE.timeout(1, 0)]
    assert kinds(first) == [PersistSafety, SetTimer, Broadcast]
    assert kinds(again) == [SetTimer, Broadcast]
    assert only(SetTimer, again) == [SetTimer(ViewTimer(1, 3), VIEW_TIMEOUT // 2)]


def test_a_timer_of_an_older_view_or_attempt_does_nothing() -> None:
    machine = solo(0, B1, B2)
    assert machine.feed(TimerFired(ViewTimer(1, 1))) == []
    assert machine.feed(TimerFired(ViewTimer(2, 1))) == []


def test_t15_a_timeout_brings_the_vote_of_the_view_to_everybody() -> None:
    machine = solo(0, B1)
    assert sent(Timeout, machine.time_out())[0].vote == COMMITTEE.vote(B1, 0)


def test_t15_votes_in_timeouts_make_a_qc_anywhere() -> None:
    machine = solo(0, B1)
    machine.time_out()
    machine.receive(COMMITTEE.timeout(1, 1, vote=COMMITTEE.vote(B1, 1)))
    effects = machine.receive(COMMITTEE.timeout(1, 3, vote=COMMITTEE.vote(B1, 3)))
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 1, 3))
    assert reasons(effects) == []


def test_a_vote_that_came_before_its_timeout_does_not_spoil_the_timeout() -> None:
    machine = solo(2, B1)
    machine.receive(COMMITTEE.vote(B1, 0))
    assert reasons(machine.receive(COMMITTEE.timeout(1, 0, vote=COMMITTEE.vote(B1, 0)))) == []
    machine.receive(COMMITTEE.timeout(1, 1))
    assert machine.machine.view == 2


def test_a_timeout_whose_certificates_are_newer_brings_the_replica_forward() -> None:
    machine = solo(0)
    machine.receive(COMMITTEE.timeout(9, 1, COMMITTEE.qc(B3)))
    assert machine.machine.view == 9
    assert machine.machine.high_qc.qc == COMMITTEE.qc(B3)


def test_a_timeout_that_went_stale_between_screening_and_handling_is_refused() -> None:
    machine = solo(0, B1, B2)
    before = machine.inside()
    assert reasons(machine.feed(machine.verifier.timeout(COMMITTEE.timeout(1, 1)))) == [Reason.STALE]
    assert machine.inside() == before


def test_t7_old_proposals_and_results_are_forgotten() -> None:
    """T7: memory is bounded by the window and by what headers to come can name."""
    machine = solo(0, B1, B2, B3, B4)
    machine.receive(Certificates(COMMITTEE.qc(B4), None))
    machine.receive(Certificates(COMMITTEE.qc(B4), COMMITTEE.tc(WINDOW + 3, 4)))
    assert {view for view, _ in machine.machine._proposals._first} == {4}
    machine = solo(0)
    for height in (1, 2, 3):
        machine.feed(Executed(height, roots_at(height)))
    machine.feed(
        machine.verifier.chain(
            tuple(COMMITTEE.chain(1, 2, 3, 4, 5)), COMMITTEE.qc(COMMITTEE.chain(1, 2, 3, 4, 5)[-1])
        )
    )
    assert (machine.machine.root.header.executed_height, machine.machine._results.at(0)) == (1, None)


def test_a_replica_whose_record_forbids_the_view_says_nothing_but_keeps_its_timer() -> None:
    machine = Solo(COMMITTEE, 0, state=replace(FRESH, highest_timeout_view=5))
    assert kinds(machine.time_out()) == [SetTimer]


# -- catching up ----------------------------------------------------------------------------------------------------------------


def test_t21_a_proposal_on_an_unknown_parent_is_parked_and_resumes_when_the_parent_is_fetched() -> None:
    machine = solo(0)
    effects = machine.propose(B2)
    assert [request.qc.block for request in only(RequestBlocks, effects)] == [B1.id]
    assert sent(Vote, effects) == []
    effects = machine.feed(machine.verifier.chain((B1,), COMMITTEE.qc(B1)))
    assert sent(Vote, effects) == [COMMITTEE.vote(B2, 0)]


def test_t21_or_when_the_parents_own_proposal_comes_late() -> None:
    machine = solo(0, B2)
    assert sent(Vote, machine.propose(B1)) == [COMMITTEE.vote(B2, 0)]


def test_t21_proposals_in_reverse_order_resume_when_what_they_need_is_fetched() -> None:
    machine = solo(0, B4, B3, B2)
    effects = machine.feed(machine.verifier.chain((B1, B2, B3), COMMITTEE.qc(B3)))
    assert committed(effects) == [B1, B2]
    assert set(reasons(effects)) == {Reason.REPLAYED}
    assert sent(Vote, machine.feed(Executed(1, roots_at(1)))) == [COMMITTEE.vote(B4, 0)]


def test_t21_a_parked_proposal_that_turns_out_bad_is_refused_then() -> None:
    machine = solo(0, COMMITTEE.block(B1, 2, height=7))
    assert reasons(machine.propose(B1)) == [Reason.BAD_HEIGHT]


def test_t21_one_parked_proposal_per_proposer() -> None:
    machine = solo(0, B2)
    newer = COMMITTEE.block(COMMITTEE.block(view=5), 6)
    assert reasons(machine.propose(newer)) == []
    assert reasons(machine.propose(B2)) == [Reason.REPLAYED]


def test_t21_a_fetched_chain_commits_what_it_certifies() -> None:
    machine = solo(0)
    effects = machine.feed(machine.verifier.chain((B1, B2, B3), COMMITTEE.qc(B3)))
    assert committed(effects) == [B1, B2]
    assert (machine.machine.view, machine.machine.root) == (4, B2)
    assert not any(store.sync for store in only(StoreBlock, effects))


def test_t21_a_fetched_chain_may_overlap_what_is_here() -> None:
    machine = solo(0, B1, B2)
    effects = machine.feed(machine.verifier.chain((B1, B2, B3), COMMITTEE.qc(B3)))
    assert [store.block for store in only(StoreBlock, effects)] == [B3]


def test_t21_a_fetched_chain_that_starts_nowhere_is_refused() -> None:
    machine = solo(0)
    before = machine.inside()
    effects = machine.feed(machine.verifier.chain((B2, B3), COMMITTEE.qc(B3)))
    assert reasons(effects) == [Reason.CONFLICT]
    assert machine.inside() == before


def test_an_answer_that_was_overtaken_by_commits_is_refused() -> None:
    machine = solo(0, B1, B2, B3, B4)
    effects = machine.feed(machine.verifier.chain((B1, B2), COMMITTEE.qc(B2)))
    assert reasons(effects) == [Reason.CONFLICT]


def test_t8_a_certified_chain_that_leaves_out_the_committed_block_stops_the_replica() -> None:
    machine = solo(0, B1, B2, B3)
    fork = COMMITTEE.chain(4, 5)
    with pytest.raises(SafetyViolation, match="More than f members"):
        machine.feed(machine.verifier.chain(tuple(COMMITTEE.chain(5, parent=fork[0])), COMMITTEE.qc(fork[1])))


def test_a_certified_branch_that_was_abandoned_before_the_committed_block_is_only_refused() -> None:
    """A slow member may still send it: it was certified in an earlier view, and nobody broke a rule."""
    abandoned = COMMITTEE.chain(2, 4, 6, parent=B1)
    final = COMMITTEE.chain(8, 9, 10, parent=B1)
    machine = solo(0)
    machine.feed(machine.verifier.chain((B1, *final), COMMITTEE.qc(final[-1])))
    assert abandoned[-1].height == machine.machine.root.height + 1
    effects = machine.feed(machine.verifier.chain((abandoned[-1],), COMMITTEE.qc(abandoned[-1])))
    assert reasons(effects) == [Reason.CONFLICT]


def test_a_certified_block_below_the_root_is_not_asked_for() -> None:
    machine = solo(0, B1, B2, B3, B4)
    assert machine.machine.root == B2
    abandoned = COMMITTEE.qc(COMMITTEE.block(time=77))
    effects = machine.receive(Certificates(abandoned, COMMITTEE.tc(9, 1)))
    assert machine.machine.view == 10
    assert only(RequestBlocks, effects) == []


def test_parked_proposals_below_the_root_are_forgotten() -> None:
    machine = solo(0, COMMITTEE.block(COMMITTEE.block(view=1, time=77), 2))
    machine.feed(machine.verifier.chain((B1, B2, B3, B4), COMMITTEE.qc(B4)))
    assert machine.machine._orphans == {}


# -- starting again -----------------------------------------------------------------------------------------------------------------


def test_a_fresh_replica_starts_in_view_1_with_a_timer() -> None:
    waiting = [SetTimer(ViewTimer(1, 1), HEARTBEAT + VIEW_TIMEOUT), RequestWork(1, frozenset())]
    assert Solo(COMMITTEE, 0).started == waiting
    assert Solo(COMMITTEE, 1).started == [*waiting, RequestPayload(1, frozenset())]


def test_t17_a_restart_sends_the_stored_vote_again() -> None:
    before = solo(0, B1)
    after = Solo(COMMITTEE, 0, state=before.safety.state, stored=[B1])
    assert sent(Vote, after.started) == [COMMITTEE.vote(B1, 0)]
    assert only(PersistSafety, after.started) == []


def test_t17_a_restart_sends_the_stored_timeout_again() -> None:
    before = solo(0, B1)
    before.time_out()
    after = Solo(COMMITTEE, 0, state=before.safety.state, stored=[B1])
    assert sent(Timeout, after.started) == [COMMITTEE.timeout(1, 0, vote=COMMITTEE.vote(B1, 0))]
    assert sent(Vote, after.started) == []


def test_t18_a_restart_sends_the_stored_proposal_again_in_its_view_only() -> None:
    fresh = initial_state(COMMITTEE.instance, 1, COMMITTEE.genesis_qc)
    proposed = replace(fresh, last_proposal=COMMITTEE.proposal(B1))
    assert sent(Proposal, Solo(COMMITTEE, 1, state=proposed, stored=[B1]).started) == [COMMITTEE.proposal(B1)]
    over = replace(proposed, high_qc=COMMITTEE.qc(B1))
    assert sent(Proposal, Solo(COMMITTEE, 1, state=over, stored=[B1]).started) == []


def test_t16_a_restart_comes_back_in_the_view_of_its_record() -> None:
    before = solo(0, B1, B2, B3)
    after = Solo(COMMITTEE, 0, state=before.safety.state, stored=[B3, B2, B1])
    assert (after.machine.view, after.machine.root) == (3, B1)
    assert committed(after.started) == [B1]


def test_a_restart_asks_for_the_certified_block_that_it_lacks() -> None:
    before = solo(0, B1, B2)
    after = Solo(COMMITTEE, 0, state=before.safety.state)
    assert [request.qc.block for request in only(RequestBlocks, after.started)] == [B1.id]


def test_a_restart_prunes_stored_blocks_that_are_committed_or_abandoned() -> None:
    lost = COMMITTEE.block(time=77)
    after = Solo(COMMITTEE, 0, stored=[lost, B1], history=[COMMITTEE.genesis, B1])
    assert {id_ for prune in only(Prune, after.started) for id_ in prune.blocks} == {lost.id, B1.id}


def test_a_restart_keeps_stored_blocks_whose_parents_are_missing() -> None:
    """They may have been certified somewhere; they go when a newer block is final."""
    after = Solo(COMMITTEE, 0, stored=[B3])
    assert only(Prune, after.started) == []
    assert not after.machine.known(B3.id)
    chain = tuple(COMMITTEE.chain(4, 5))
    effects = after.feed(after.verifier.chain(chain, COMMITTEE.qc(chain[-1])))
    assert only(Prune, effects) == [Prune((B3.id,))]


def test_a_restart_with_too_many_stored_blocks_keeps_the_newest_in_memory() -> None:
    stored = [COMMITTEE.block(view=view) for view in range(1, MAX_UNCERTIFIED + 3)]
    after = Solo(COMMITTEE, 0, stored=stored)
    assert only(Prune, after.started) == []
    assert not after.machine.known(stored[0].id)
    assert after.machine.known(stored[-1].id)


def test_a_restart_of_the_collector_counts_its_own_vote_again() -> None:
    before = solo(2, B1)
    after = Solo(COMMITTEE, 2, state=before.safety.state, stored=[B1])
    after.receive(COMMITTEE.vote(B1, 0))
    after.receive(COMMITTEE.vote(B1, 1))
    assert after.machine.high_qc.qc == COMMITTEE.qc(B1, (0, 1, 2))


@pytest.mark.parametrize("make", [Cwa, CwaPlus])
def test_a_restart_behind_its_own_chain_sends_its_vote_though_nobody_can_tell_the_collector(
    make: Callable[[int], LeaderScheme],
) -> None:
    """The chain was fetched and committed past the last vote; headers below the root are as few as they may be."""
    chain = [COMMITTEE.genesis, *COMMITTEE.chain(*range(1, 183))]
    voted, root = chain[-(make(4).memory // 2)], chain[-1]
    state = replace(
        FRESH,
        last_voted_view=voted.view,
        last_vote=COMMITTEE.vote(voted, 0),
        high_qc=voted.header.justify,
    )
    history = chain[-make(4).memory :]
    roots = {height: roots_at(height) for height in range(root.header.executed_height, root.height + 1)}
    after = Solo(COMMITTEE, 0, state=state, history=history, roots=roots, leaders=make(4))
    assert only(Send, after.started) == [Send((voted.view + 1) % 4, COMMITTEE.vote(voted, 0))]


# -- purity -------------------------------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), max_size=25))
def test_the_same_inputs_give_the_same_effects(script: list[int]) -> None:
    messages: list[Message] = [
        *(COMMITTEE.proposal(block) for block in (B1, B2, B3, FULL)),
        *(COMMITTEE.vote(B1, signer) for signer in (0, 1, 3)),
        *(COMMITTEE.timeout(1, signer) for signer in (0, 1, 3)),
        COMMITTEE.timeout(3, 1, COMMITTEE.qc(B1)),
        Certificates(COMMITTEE.qc(B2), None),
    ]
    one, two = solo(2), solo(2)
    for number in script:
        assert one.receive(messages[number]) == two.receive(messages[number])
        assert one.inside() == two.inside()


# -- refusals that need the chain ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (COMMITTEE.block(proposer=2), Reason.NOT_LEADER),
        (COMMITTEE.block(height=2), Reason.BAD_HEIGHT),
        (COMMITTEE.block(time=0), Reason.BAD_TIME),
        (COMMITTEE.block(time=MAX_AHEAD + 1), Reason.BAD_TIME),
        (COMMITTEE.block(executed_height=1), Reason.BAD_EXECUTED_HEIGHT),
    ],
)
def test_a_proposal_that_contradicts_the_chain_is_refused_and_changes_nothing(
    block: Block, expected: Reason
) -> None:
    machine = solo(0)
    before = machine.inside()
    effects = machine.propose(block)
    assert reasons(effects) == [expected]
    assert len(effects) == 1
    assert machine.inside() == before


def test_a_proposal_as_far_ahead_as_clocks_may_differ_is_accepted() -> None:
    assert sent(Vote, solo(0).propose(COMMITTEE.block(time=MAX_AHEAD))) != []


def test_t4_a_qc_of_another_view_than_its_blocks_is_refused_though_a_quorum_signed_it() -> None:
    machine = solo(0, B1)
    before = machine.inside()
    liar = COMMITTEE.block(B1, 6, justify=COMMITTEE.qc(B1, view=5), tc=None)
    assert reasons(machine.propose(liar)) == [Reason.BAD_CERTIFICATE]
    assert machine.inside() == before


def test_two_proposals_of_one_leader_in_a_view_are_reported() -> None:
    machine = solo(0, B1)
    before = machine.observable()
    effects = machine.propose(COMMITTEE.block(time=9))
    assert (len(only(ReportMisbehaviour, effects)), reasons(effects)) == (1, [Reason.EQUIVOCATION])
    assert machine.observable() == before


def test_two_votes_of_one_member_in_a_view_are_reported() -> None:
    machine = solo(2, B1)
    machine.receive(COMMITTEE.vote(B1, 0))
    before = machine.observable()
    other = COMMITTEE.block(time=9)
    effects = machine.receive(COMMITTEE.vote(other, 0))
    assert (len(only(ReportMisbehaviour, effects)), reasons(effects)) == (1, [Reason.EQUIVOCATION])
    assert machine.observable() == before
    again = machine.receive(COMMITTEE.vote(other, 0))
    assert (only(ReportMisbehaviour, again), reasons(again)) == ([], [Reason.EQUIVOCATION])


def test_a_second_vote_inside_a_timeout_is_reported() -> None:
    machine = solo(2, B1)
    machine.receive(COMMITTEE.vote(B1, 0))
    effects = machine.receive(COMMITTEE.timeout(1, 0, vote=COMMITTEE.vote(COMMITTEE.block(time=9), 0)))
    assert (len(only(ReportMisbehaviour, effects)), reasons(effects)) == (1, [Reason.EQUIVOCATION])


def test_two_timeouts_of_one_member_that_differ_are_reported() -> None:
    machine = solo(0, B1, B2)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2)))
    machine.receive(COMMITTEE.timeout(3, 3))
    before = machine.observable()
    effects = machine.receive(COMMITTEE.timeout(3, 3, COMMITTEE.qc(B1), COMMITTEE.tc(2)))
    assert (len(only(ReportMisbehaviour, effects)), reasons(effects)) == (1, [Reason.EQUIVOCATION])
    assert machine.observable() == before


@pytest.mark.parametrize("ahead", [0, 1, WINDOW])
def test_t7_votes_are_kept_for_a_bounded_window_of_views(ahead: int) -> None:
    machine = solo(0)
    assert machine.receive(COMMITTEE.vote(B1, 1, view=1 + ahead)) == []


def test_t7_votes_beyond_the_window_are_refused() -> None:
    machine = solo(0)
    before = machine.inside()
    assert reasons(machine.receive(COMMITTEE.vote(B1, 1, view=2 + WINDOW))) == [Reason.FUTURE]
    assert machine.inside() == before
