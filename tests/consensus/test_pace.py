"""Blocks with batches that follow each other keep a pace; whatever else a leader proposes, it proposes at once (P2)."""

from itertools import pairwise

import pytest
from tests.consensus.chains import Committee, batch, roots_at
from tests.consensus.world import HEARTBEAT, LATENCY, Cluster, Solo, kinds, only, sent

from parley.consensus.events import (
    Executed,
    Heartbeat,
    PaceOver,
    Payload,
    PayloadAvailable,
    PersistSafety,
    RequestBlocks,
    RequestPayload,
    RequestWork,
    SetTimer,
    TimerFired,
)
from parley.consensus.machine import MAX_AHEAD
from parley.consensus.proposer import BUSY
from parley.consensus.types import Block, Certificates, Proposal

PACE = 25
COMMITTEE = Committee()
MANY = tuple(map(batch, range(100, 100 + BUSY)))
FULL = COMMITTEE.block(batches=MANY, time=1_000)
EMPTY = COMMITTEE.block(time=1_000)
NEW, MORE = batch(7), batch(8)


def leading(parent: Block, now: int, *, pace: int = PACE) -> Solo:
    """Member 2 leads view 2 on this block of view 1, and has asked for a payload."""
    machine = Solo(COMMITTEE, 2, pace=pace, now=now)
    machine.propose(parent)
    effects = machine.receive(Certificates(COMMITTEE.qc(parent), None))
    assert only(RequestPayload, effects) == [RequestPayload(2, frozenset(parent.batches))]
    return machine


def proposed(machine: Solo, *batches: bytes) -> list[tuple[bytes, ...]]:
    return [proposal.batches for proposal in sent(Proposal, machine.feed(Payload(2, batches)))]


def test_a_leader_waits_while_the_parent_with_batches_is_young_and_proposes_all_that_came_in_one_block() -> (
    None
):
    machine = leading(FULL, now=1_010)
    assert only(SetTimer, machine.feed(Payload(2, (NEW,)))) == [SetTimer(PaceOver(2), 15)]
    assert machine.feed(PayloadAvailable()) == []  # no further timer, no second question
    machine.now = 1_025
    assert machine.feed(TimerFired(PaceOver(2))) == [RequestPayload(2, frozenset(FULL.batches))]
    assert proposed(machine, NEW, MORE) == [(NEW, MORE)]


@pytest.mark.parametrize(("now", "wait"), [(1_000, 25), (1_001, 24), (1_024, 1)])
def test_it_waits_until_the_parent_is_as_old_as_the_pace(now: int, wait: int) -> None:
    assert only(SetTimer, leading(FULL, now).feed(Payload(2, (NEW,)))) == [SetTimer(PaceOver(2), wait)]


@pytest.mark.parametrize("now", [1_025, 1_026, 50_000])
def test_it_does_not_wait_once_the_parent_is_as_old_as_the_pace(now: int) -> None:
    assert proposed(leading(FULL, now), NEW) == [(NEW,)]


@pytest.mark.parametrize("ahead", [1, 100, MAX_AHEAD])
def test_a_proposer_whose_clock_is_ahead_makes_nobody_wait_longer_than_the_pace(ahead: int) -> None:
    parent = COMMITTEE.block(batches=MANY, time=5_000 + ahead)
    machine = leading(parent, now=5_000)
    assert only(SetTimer, machine.feed(Payload(2, (NEW,)))) == [SetTimer(PaceOver(2), PACE)]
    machine.now += PACE
    machine.feed(TimerFired(PaceOver(2)))
    assert proposed(machine, NEW) == [(NEW,)]


@pytest.mark.parametrize(
    ("batches", "wait"), [(1, 1), (BUSY // 2, 12), (BUSY - 1, 23), (BUSY, 25), (3 * BUSY, 25)]
)
def test_the_fuller_the_parent_the_longer_it_waits_up_to_the_pace(batches: int, wait: int) -> None:
    parent = COMMITTEE.block(batches=tuple(map(batch, range(100, 100 + batches))), time=1_000)
    assert only(SetTimer, leading(parent, now=1_000).feed(Payload(2, (NEW,)))) == [
        SetTimer(PaceOver(2), wait)
    ]


def test_a_leader_that_waits_tells_the_others_of_the_certificate_that_it_has_formed() -> None:
    """They go on from it meanwhile: commit, execute, and certify what was executed."""
    machine = Solo(COMMITTEE, 2, pace=PACE, now=1_010)
    machine.propose(FULL)
    for signer in (0, 1, 3):
        machine.receive(COMMITTEE.vote(FULL, signer))
    effects = machine.feed(Payload(2, (NEW,)))
    assert only(SetTimer, effects) == [SetTimer(PaceOver(2), 15)]
    (news,) = sent(Certificates, effects)
    assert (news.qc.view, news.qc.block) == (1, FULL.id)


def test_without_a_pace_a_leader_never_waits() -> None:
    for now in (0, 1_000, 1_010):
        assert proposed(leading(FULL, now, pace=0), NEW) == [(NEW,)]


def test_on_an_empty_parent_it_proposes_at_once_however_young_that_is() -> None:
    assert proposed(leading(EMPTY, now=1_000), NEW) == [(NEW,)]


def test_an_empty_block_that_certifies_is_never_delayed() -> None:
    assert proposed(leading(FULL, now=1_000)) == [()]


def test_a_leader_that_waited_for_something_to_propose_proposes_it_at_once() -> None:
    b2, b3, b4 = COMMITTEE.chain(2, 3, 4, parent=FULL)
    machine = Solo(COMMITTEE, 1, pace=PACE, now=1_003)
    for block in (FULL, b2, b3, b4):
        machine.propose(block)
    for height in (1, 2):
        machine.feed(Executed(height, roots_at(height)))
    machine.receive(Certificates(COMMITTEE.qc(b4), None))
    assert only(SetTimer, machine.feed(Payload(5, ()))) == [SetTimer(Heartbeat(5), HEARTBEAT)]
    assert only(RequestPayload, machine.feed(PayloadAvailable())) == [RequestPayload(5, frozenset())]
    assert [block.batches for block in sent(Proposal, machine.feed(Payload(5, (NEW,))))] == [(NEW,)]


def test_a_timer_of_another_view_does_nothing() -> None:
    machine = leading(FULL, now=1_010)
    machine.feed(Payload(2, (NEW,)))
    before = machine.inside()
    for view in (1, 3):
        assert machine.feed(TimerFired(PaceOver(view))) == []
    assert machine.inside() == before
    assert machine.feed(TimerFired(PaceOver(2))) == [RequestPayload(2, frozenset(FULL.batches))]


def test_a_timer_that_comes_twice_asks_once_and_there_is_one_proposal() -> None:
    machine = leading(FULL, now=1_010)
    machine.feed(Payload(2, (NEW,)))
    assert kinds(machine.feed(TimerFired(PaceOver(2)))) == [RequestPayload]
    assert machine.feed(TimerFired(PaceOver(2))) == []
    assert proposed(machine, NEW) == [(NEW,)]
    assert machine.feed(TimerFired(PaceOver(2))) == []


def test_a_leader_that_waited_proposes_an_empty_block_if_the_batches_are_gone() -> None:
    machine = leading(FULL, now=1_010)
    machine.feed(Payload(2, (NEW,)))
    machine.feed(TimerFired(PaceOver(2)))
    assert proposed(machine) == [()]


def test_a_view_that_ends_while_its_leader_waits_has_no_proposal_of_it() -> None:
    machine = leading(FULL, now=1_010)
    machine.feed(Payload(2, (NEW,)))
    machine.receive(Certificates(COMMITTEE.qc(FULL), COMMITTEE.tc(2, 1)))
    assert machine.machine.view == 3
    assert machine.feed(TimerFired(PaceOver(2))) == []
    assert machine.feed(Payload(2, (NEW,))) == []
    assert not any(timer == PaceOver(3) for timer in machine.timers)


def test_a_leader_that_gave_the_view_up_while_it_waited_may_still_propose_in_it() -> None:
    """Others may not have: a timeout of one binds nobody, and it signs no vote."""
    machine = leading(FULL, now=1_010)
    machine.feed(Payload(2, (NEW,)))
    machine.time_out()
    assert kinds(machine.feed(TimerFired(PaceOver(2)))) == [RequestPayload]
    assert proposed(machine, NEW) == [(NEW,)]


def test_a_higher_qc_of_an_unknown_block_while_it_waits_stops_the_proposal_until_that_is_fetched() -> None:
    machine = Solo(COMMITTEE, 3, pace=PACE, now=1_010)
    machine.propose(FULL)
    machine.receive(Certificates(COMMITTEE.qc(FULL), COMMITTEE.tc(2, 1)))
    assert only(SetTimer, machine.feed(Payload(3, (NEW,)))) == [SetTimer(PaceOver(3), 15)]
    second = COMMITTEE.block(FULL, batches=(batch(9),))
    assert kinds(machine.receive(Certificates(COMMITTEE.qc(second), None))) == [RequestBlocks]
    assert machine.feed(TimerFired(PaceOver(3))) == []
    effects = machine.feed(machine.verifier.chain((second,), COMMITTEE.qc(second)))
    assert only(RequestPayload, effects) == [RequestPayload(3, frozenset(second.batches))]
    (proposal,) = sent(Proposal, machine.feed(Payload(3, (NEW,))))
    assert (proposal.header.parent, proposal.batches) == (second.id, (NEW,))


def test_a_leader_that_waited_for_anything_and_then_for_the_pace_sets_one_timer() -> None:
    """A higher QC in the same view: its block holds batches, the one before did not."""
    machine = Solo(COMMITTEE, 3, pace=PACE, now=1_010)
    machine.propose(EMPTY)
    machine.receive(Certificates(COMMITTEE.qc(EMPTY), COMMITTEE.tc(2, 1)))
    assert only(SetTimer, machine.feed(Payload(3, ()))) == [SetTimer(Heartbeat(3), HEARTBEAT)]
    full = COMMITTEE.block(EMPTY, batches=MANY)
    machine.receive(Certificates(COMMITTEE.qc(full), None))
    machine.feed(machine.verifier.chain((full,), COMMITTEE.qc(full)))
    machine.feed(PayloadAvailable())
    assert only(SetTimer, machine.feed(Payload(3, (NEW,)))) == [SetTimer(PaceOver(3), 16)]
    assert kinds(machine.feed(PayloadAvailable())) == [RequestWork]
    assert machine.feed(TimerFired(Heartbeat(3))) == []
    assert kinds(machine.feed(TimerFired(PaceOver(3)))) == [RequestPayload]
    assert [proposal.batches for proposal in sent(Proposal, machine.feed(Payload(3, (NEW,))))] == [(NEW,)]


def test_a_restart_while_it_waits_proposes_nothing_by_itself() -> None:
    before = leading(FULL, now=1_010)
    before.feed(Payload(2, (NEW,)))
    after = Solo(COMMITTEE, 2, state=before.safety.state, stored=[FULL], pace=PACE, now=1_012)
    assert sent(Proposal, after.started) == []
    assert only(PersistSafety, after.started) == []


def test_under_load_blocks_keep_the_pace_and_a_committee_still_commits_without_timeouts() -> None:
    pace = 5 * LATENCY  # for blocks of one batch, as they are here
    cluster = Cluster(COMMITTEE, pace=BUSY * pace)
    cluster.run(4_000)
    for seat in cluster.seats:
        times = [block.header.time for block in seat.committed[1:]]
        assert len(times) > 4_000 // pace - 5
        assert all(later - earlier >= pace for earlier, later in pairwise(times))
        assert seat.timeouts == []
    chains = [[block.id for block in seat.committed] for seat in cluster.seats]
    shortest = min(map(len, chains))
    assert len({tuple(chain[:shortest]) for chain in chains}) == 1


def test_a_slow_committee_does_not_wait_for_the_pace_on_top() -> None:
    """A view takes two latencies: a pace below that changes nothing."""
    slow, quick = (Cluster(COMMITTEE, pace=pace) for pace in (0, LATENCY))
    for cluster in (slow, quick):
        cluster.run(1_000)
    assert [b.id for b in slow.seats[0].committed] == [b.id for b in quick.seats[0].committed]


def test_an_idle_committee_is_not_paced() -> None:
    with_pace, without = (Cluster(COMMITTEE, pace=pace, payload=False) for pace in (500, 0))
    for cluster in (with_pace, without):
        cluster.run(3_000)
    assert [b.id for b in with_pace.seats[1].committed] == [b.id for b in without.seats[1].committed]
    assert len(with_pace.seats[1].committed) > 2
