"""When a leader proposes and what (P2, T18)."""

from tests.consensus.chains import Committee, batch, roots_at
from tests.consensus.world import HEARTBEAT, Solo, committed, kinds, only, sent

from parley.consensus.events import (
    Broadcast,
    Executed,
    Heartbeat,
    Payload,
    PayloadAvailable,
    PersistSafety,
    RequestBatches,
    RequestBlocks,
    RequestPayload,
    RequestWork,
    SetTimer,
    StoreBlock,
    TimerFired,
)
from parley.consensus.types import Block, Certificates, Proposal

COMMITTEE = Committee()
B1, B2, B3, B4 = COMMITTEE.chain(1, 2, 3, 4)
FULL = COMMITTEE.block(batches=(batch(1), batch(2)))


def solo(index: int = 0, *blocks: Block) -> Solo:
    """A machine that has received these proposals."""
    machine = Solo(COMMITTEE, index)
    for block in blocks:
        machine.propose(block)
    return machine


def leading() -> Solo:
    """Member 2 leads view 2 on block 1, whose QC it made itself."""
    machine = solo(2, B1)
    machine.receive(COMMITTEE.vote(B1, 0))
    effects = machine.receive(COMMITTEE.vote(B1, 1))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset())]
    return machine


def test_a_leader_proposes_what_it_is_given() -> None:
    machine = leading()
    machine.now = 500
    effects = machine.feed(Payload(2, (batch(7),)))
    expected = COMMITTEE.block(B1, 2, (batch(7),), time=500, justify=COMMITTEE.qc(B1, (0, 1, 2)))
    assert sent(Proposal, effects) == [COMMITTEE.proposal(expected)]
    assert kinds(effects) == [StoreBlock, PersistSafety, Broadcast, RequestBatches]
    assert solo(0, B1).propose(expected) != []


def test_a_leader_names_the_version_of_the_application_p24() -> None:
    newer = Committee(version=7)
    machine = Solo(newer, 2)
    first = newer.block()
    machine.propose(first)
    for voter in (0, 1):
        machine.receive(newer.vote(first, voter))
    (proposal,) = sent(Proposal, machine.feed(Payload(2, (batch(7),))))
    assert proposal.header.version == newer.genesis.header.version == 7


def test_a_leader_whose_clock_is_behind_still_moves_time_forward() -> None:
    machine = leading()
    proposal = sent(Proposal, machine.feed(Payload(2, (batch(7),))))[0]
    assert proposal.header.time == B1.header.time + 1


def test_a_proposal_after_a_tc_carries_it() -> None:
    machine = solo(2)
    effects = machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset())]
    proposal = sent(Proposal, machine.feed(Payload(2, (batch(1),))))[0]
    assert proposal.header.tc == COMMITTEE.tc(1)


def test_a_leader_with_nothing_to_propose_shows_its_qc_and_waits() -> None:
    effects = leading().feed(Payload(2, ()))
    assert effects == [
        SetTimer(Heartbeat(2), HEARTBEAT),
        Broadcast(Certificates(COMMITTEE.qc(B1, (0, 1, 2)), None)),
    ]


def test_a_leader_that_was_shown_the_qc_shows_it_to_all() -> None:
    """Who collected the votes in its place shows it to the leader alone."""
    machine = solo(2, B1)
    machine.receive(Certificates(COMMITTEE.qc(B1), None))
    assert sent(Certificates, machine.feed(Payload(2, ()))) == [Certificates(COMMITTEE.qc(B1), None)]


def test_a_leader_after_a_failed_view_only_waits() -> None:
    """All who are in this view know the TC that opened it."""
    machine = solo(2)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    assert machine.feed(Payload(2, ())) == [SetTimer(Heartbeat(2), HEARTBEAT)]


def test_a_waiting_leader_proposes_as_soon_as_there_is_something() -> None:
    machine = leading()
    machine.feed(Payload(2, ()))
    assert only(RequestPayload, machine.feed(PayloadAvailable())) == [RequestPayload(2, frozenset())]
    assert machine.feed(Payload(2, ())) == []
    machine.feed(PayloadAvailable())
    assert len(sent(Proposal, machine.feed(Payload(2, (batch(1),))))) == 1


def test_a_waiting_leader_proposes_an_empty_block_after_the_heartbeat() -> None:
    machine = leading()
    machine.feed(Payload(2, ()))
    assert machine.feed(TimerFired(Heartbeat(1))) == []
    assert machine.feed(TimerFired(Heartbeat(2))) == [RequestPayload(2, frozenset())]
    assert sent(Proposal, machine.feed(Payload(2, ())))[0].batches == ()


def test_who_does_not_wait_ignores_payload_and_heartbeat() -> None:
    machine = solo(0)
    assert kinds(machine.feed(PayloadAvailable())) == [RequestWork]
    assert machine.feed(TimerFired(Heartbeat(1))) == []


def test_a_leader_proposes_at_once_while_a_payload_is_not_covered() -> None:
    machine = solo(2, FULL)
    machine.receive(Certificates(COMMITTEE.qc(FULL), None))
    assert sent(Proposal, machine.feed(Payload(2, ())))[0].batches == ()


def test_a_leader_waits_once_every_payload_is_covered() -> None:
    b2, b3, b4 = COMMITTEE.chain(2, 3, 4, parent=FULL)
    machine = solo(1, FULL, b2, b3, b4)
    for height in (1, 2):
        machine.feed(Executed(height, roots_at(height)))
    machine.receive(Certificates(COMMITTEE.qc(b4), None))
    assert b4.header.executed_height == FULL.height
    assert only(SetTimer, machine.feed(Payload(5, ()))) == [SetTimer(Heartbeat(5), HEARTBEAT)]


def test_a_payload_that_comes_while_the_parent_is_missing_is_asked_for_again() -> None:
    machine = solo(2)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    machine.receive(Certificates(COMMITTEE.qc(B1), None))
    assert machine.feed(Payload(2, (batch(1),))) == []
    effects = machine.feed(machine.verifier.chain((B1,), COMMITTEE.qc(B1)))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset())]


def test_a_payload_for_a_view_that_is_over_is_not_proposed() -> None:
    machine = leading()
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2)))
    assert machine.feed(Payload(2, (batch(1),))) == []


def test_who_does_not_lead_does_not_propose() -> None:
    assert sent(Proposal, solo(0).feed(Payload(1, (batch(1),)))) == []


def test_a_leader_asks_only_once_execution_has_caught_up() -> None:
    leader = solo(1, B1, B2, B3, B4)
    assert only(RequestPayload, leader.receive(Certificates(COMMITTEE.qc(B4), None))) == []
    assert only(RequestPayload, leader.feed(Executed(1, roots_at(1)))) == []
    assert only(RequestPayload, leader.feed(Executed(2, roots_at(2)))) == [RequestPayload(5, frozenset())]


def test_a_higher_qc_of_an_unknown_block_while_waiting_stops_the_proposal_until_it_is_fetched() -> None:
    machine = solo(2)
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    machine.feed(Payload(2, ()))
    assert kinds(machine.receive(Certificates(COMMITTEE.qc(B1), None))) == [RequestBlocks]
    assert kinds(machine.feed(PayloadAvailable())) == [RequestWork]
    effects = machine.feed(machine.verifier.chain((B1,), COMMITTEE.qc(B1)))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset())]


def test_a_committee_of_one_commits_alone() -> None:
    committee = Committee(1)
    machine = Solo(committee, 0)
    final: list[Block] = []
    for view in range(1, 5):
        machine.feed(Payload(view, ()))
        machine.feed(TimerFired(Heartbeat(view)))
        effects = machine.feed(Payload(view, ()))
        final += committed(effects)
        for block in committed(effects):
            machine.feed(Executed(block.height, roots_at(block.height)))
    assert [block.height for block in final] == [1, 2, 3]


def test_t18_a_restart_sends_the_stored_proposal_again_and_makes_no_other() -> None:
    before = leading()
    proposal = sent(Proposal, before.feed(Payload(2, (batch(1),))))
    block = Block(proposal[0].header, proposal[0].batches)
    after = Solo(COMMITTEE, 2, state=before.safety.state, stored=[B1, block])
    assert sent(Proposal, after.started) == proposal
    assert sent(Proposal, after.feed(Payload(2, (batch(2),)))) == []
