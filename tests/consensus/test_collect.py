"""Votes and timeouts become certificates that verify; every outcome has a name (T5, T11)."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import Committee

from parley.consensus.collect import Outcome, Proposals, Timeouts, VoteResult, Votes
from parley.consensus.events import DoubleProposal, DoubleTimeout, DoubleVote
from parley.consensus.types import Block

COMMITTEE = Committee(7)
B1, OTHER = COMMITTEE.block(), COMMITTEE.block(time=99)
VERIFIER = COMMITTEE.verifier()


def votes() -> Votes:
    return Votes(COMMITTEE.instance, COMMITTEE.scheme)


def timeouts() -> Timeouts:
    return Timeouts(COMMITTEE.instance, COMMITTEE.scheme)


def add_vote(collected: Votes, signer: int, block: Block = B1) -> VoteResult:
    return collected.add(VERIFIER.vote(COMMITTEE.vote(block, signer)))


@pytest.mark.parametrize("signers", list(combinations(range(7), 5)))
def test_a_quorum_of_votes_makes_a_qc_that_verifies(signers: tuple[int, ...]) -> None:
    collected = votes()
    results = [add_vote(collected, signer) for signer in signers]
    assert [result.outcome for result in results] == [Outcome.ADDED] * 4 + [Outcome.QUORUM]
    assert results[-1].qc is not None
    assert COMMITTEE.verifier().qc(results[-1].qc.qc).block == B1.id


def test_a_patient_collector_makes_the_qc_of_all_votes() -> None:
    collected = Votes(COMMITTEE.instance, COMMITTEE.scheme, patient=True)
    results = [add_vote(collected, signer) for signer in range(7)]
    assert [result.outcome for result in results] == [
        *[Outcome.ADDED] * 4,
        Outcome.ENOUGH,
        Outcome.ADDED,
        Outcome.QUORUM,
    ]
    assert results[-1].qc is not None
    assert COMMITTEE.verifier().qc(results[-1].qc.qc).qc == COMMITTEE.qc(B1, range(7))


def test_or_of_those_that_are_here_when_its_patience_ends() -> None:
    collected = Votes(COMMITTEE.instance, COMMITTEE.scheme, patient=True)
    for signer in range(4):
        add_vote(collected, signer)
    assert collected.close(1, B1.id) is None
    for signer in (5, 6):
        add_vote(collected, signer)
    closed = collected.close(1, B1.id)
    assert closed is not None
    assert closed.qc == COMMITTEE.qc(B1, (0, 1, 2, 3, 5, 6))
    assert collected.close(1, OTHER.id) is None
    collected.forget_below(2)
    assert collected.close(1, B1.id) is None


def test_where_a_quorum_is_everybody_nobody_waits() -> None:
    committee = Committee(2)
    block = committee.block()
    collected = Votes(committee.instance, committee.scheme, patient=True)
    outcomes = [
        collected.add(committee.verifier().vote(committee.vote(block, signer))).outcome for signer in range(2)
    ]
    assert outcomes == [Outcome.ADDED, Outcome.QUORUM]


def test_a_qc_is_made_once() -> None:
    collected = votes()
    outcomes = [add_vote(collected, signer).outcome for signer in range(7)]
    assert outcomes.count(Outcome.QUORUM) == 1


def test_t5_a_vote_counts_once_however_often_it_comes() -> None:
    """T5, and its mirror: duplicates do not keep the QC from being made."""
    collected = votes()
    outcomes = [add_vote(collected, signer).outcome for signer in (0, 0, 0, 0, 0, 1, 2, 3, 0, 4)]
    assert outcomes == [
        Outcome.ADDED,
        *[Outcome.DUPLICATE] * 4,
        *[Outcome.ADDED] * 3,
        Outcome.DUPLICATE,
        Outcome.QUORUM,
    ]


def test_a_second_vote_in_one_view_is_evidence_and_does_not_count() -> None:
    collected = votes()
    for signer in range(4):
        add_vote(collected, signer)
    for signer in (4, 5, 6):
        add_vote(collected, signer, OTHER)
    result = add_vote(collected, 4)
    assert result.outcome is Outcome.EQUIVOCATION
    assert result.evidence == DoubleVote(COMMITTEE.vote(OTHER, 4), COMMITTEE.vote(B1, 4))


def test_a_member_is_accused_once_per_view() -> None:
    collected = votes()
    add_vote(collected, 4, OTHER)
    add_vote(collected, 4)
    again = add_vote(collected, 4)
    assert (again.outcome, again.evidence) == (Outcome.EQUIVOCATION, None)


def test_votes_for_different_blocks_make_no_qc_together() -> None:
    collected = votes()
    outcomes = [add_vote(collected, signer, B1 if signer < 4 else OTHER).outcome for signer in range(7)]
    assert outcomes == [Outcome.ADDED] * 7


def test_votes_of_different_views_do_not_meet() -> None:
    collected = votes()
    for signer in range(4):
        collected.add(VERIFIER.vote(COMMITTEE.vote(B1, signer, view=1)))
    assert collected.add(VERIFIER.vote(COMMITTEE.vote(B1, 4, view=2))).outcome is Outcome.ADDED


def test_forgotten_votes_and_accusations_start_anew() -> None:
    collected = votes()
    add_vote(collected, 0)
    add_vote(collected, 0, OTHER)
    collected.forget_below(2)
    assert add_vote(collected, 0, OTHER).outcome is Outcome.ADDED
    collected.forget_below(1)
    assert add_vote(collected, 0).evidence is not None


def test_a_quorum_of_timeouts_makes_a_tc_that_verifies() -> None:
    high = COMMITTEE.qc(B1)
    collected = timeouts()
    early = [COMMITTEE.timeout(3, signer) for signer in (6, 0, 3, 1)]
    outcomes = [collected.add(VERIFIER.timeout(timeout)).outcome for timeout in early]
    result = collected.add(VERIFIER.timeout(COMMITTEE.timeout(3, 2, high, COMMITTEE.tc(2, 0))))
    assert outcomes == [Outcome.ADDED, Outcome.ADDED, Outcome.ECHO, Outcome.ADDED]
    assert result.outcome is Outcome.QUORUM
    assert result.tc is not None
    assert result.tc.tc.qc_views == (0, 0, 1, 0, 0)
    assert COMMITTEE.verifier().tc(result.tc.tc).view == 3


def test_t11_f_plus_1_timeouts_call_for_an_echo_once() -> None:
    collected = timeouts()
    results = [collected.add(VERIFIER.timeout(COMMITTEE.timeout(1, signer))).outcome for signer in range(5)]
    assert results == [Outcome.ADDED, Outcome.ADDED, Outcome.ECHO, Outcome.ADDED, Outcome.QUORUM]


def test_t5_a_timeout_counts_once_however_often_it_comes() -> None:
    collected = timeouts()
    timeout = VERIFIER.timeout(COMMITTEE.timeout(1, 0))
    outcomes = [collected.add(timeout).outcome for _ in range(7)]
    assert outcomes == [Outcome.ADDED] + [Outcome.DUPLICATE] * 6


def test_two_timeouts_that_show_different_qcs_are_evidence_once() -> None:
    collected = timeouts()
    first = COMMITTEE.timeout(3, 0)
    second = COMMITTEE.timeout(3, 0, COMMITTEE.qc(B1), COMMITTEE.tc(2, 0))
    collected.add(VERIFIER.timeout(first))
    result = collected.add(VERIFIER.timeout(second))
    again = collected.add(VERIFIER.timeout(second))
    assert (result.outcome, result.evidence) == (Outcome.EQUIVOCATION, DoubleTimeout(first, second))
    assert (again.outcome, again.evidence) == (Outcome.EQUIVOCATION, None)


def test_a_new_view_starts_without_timeouts() -> None:
    collected = timeouts()
    for signer in range(4):
        collected.add(VERIFIER.timeout(COMMITTEE.timeout(1, signer)))
    collected.clear()
    assert collected.add(VERIFIER.timeout(COMMITTEE.timeout(2, 4))).outcome is Outcome.ADDED


def test_a_second_proposal_in_one_view_is_evidence_once() -> None:
    collected = Proposals()
    first, second = COMMITTEE.proposal(B1), COMMITTEE.proposal(OTHER)
    outcomes = [collected.add(proposal) for proposal in (first, first, second, second)]
    assert [result.outcome for result in outcomes] == [
        Outcome.ADDED,
        Outcome.DUPLICATE,
        Outcome.EQUIVOCATION,
        Outcome.EQUIVOCATION,
    ]
    assert [result.evidence for result in outcomes[2:]] == [DoubleProposal(first, second), None]


def test_two_proposers_in_one_view_do_not_contradict_each_other() -> None:
    """P8: one may be entitled by the QC of the view before, the other by its TC."""
    collected = Proposals()
    collected.add(COMMITTEE.proposal(B1))
    assert collected.add(COMMITTEE.proposal(COMMITTEE.block(proposer=2))).outcome is Outcome.ADDED


def test_forgotten_proposals_and_accusations_start_anew() -> None:
    collected = Proposals()
    collected.add(COMMITTEE.proposal(B1))
    collected.forget_below(1)
    assert collected.add(COMMITTEE.proposal(OTHER)).evidence is not None
    collected.forget_below(2)
    assert collected.add(COMMITTEE.proposal(OTHER)).outcome is Outcome.ADDED
    assert collected.add(COMMITTEE.proposal(B1)).evidence is not None


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=40))
def test_a_qc_has_exactly_the_members_whose_first_vote_was_for_it(sequence: list[tuple[int, bool]]) -> None:
    collected = votes()
    first: dict[int, Block] = {}
    for signer, other in sequence:
        block = OTHER if other else B1
        result = add_vote(collected, signer, block)
        first.setdefault(signer, block)
        supporters = [member for member, choice in first.items() if choice is block]
        if result.qc is not None:
            assert result.qc.qc == COMMITTEE.qc(block, supporters)
            assert len(supporters) == COMMITTEE.quorum
