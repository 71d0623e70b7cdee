"""What a member waits for in a view, and when it gives up (P29)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from tests.consensus.chains import Committee, batch
from tests.consensus.world import HEARTBEAT, VIEW_TIMEOUT, Cluster, Solo, TwoLeaders, kinds, only, sent

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import (
    Broadcast,
    Connection,
    Effect,
    OfferWork,
    PayloadAvailable,
    RequestWork,
    Send,
    SetTimer,
    TimerFired,
    ViewFailed,
    ViewTimer,
    WorkPending,
)
from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.machine import Config
from parley.consensus.types import Certificates, Timeout, Vote

COMMITTEE = Committee()
B1 = COMMITTEE.block(batches=(batch(1),))
FLOOR = Config(COMMITTEE.instance, 0).shortest_timeout


def waits(effects: Iterable[Effect]) -> list[int]:
    return [effect.delay for effect in effects if isinstance(effect, SetTimer)]


def test_a_member_asks_whether_there_is_work_when_a_view_begins_and_when_a_batch_comes() -> None:
    machine = Solo(COMMITTEE, 0)
    assert only(RequestWork, machine.started) == [RequestWork(1, frozenset())]
    assert machine.feed(PayloadAvailable()) == [RequestWork(1, frozenset())]


def test_the_wait_runs_from_the_arrival_of_the_work() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.now = 100
    assert machine.feed(WorkPending(1)) == [SetTimer(ViewTimer(1, 2), VIEW_TIMEOUT)]
    assert machine.feed(PayloadAvailable()) == []  # it is known already
    assert machine.feed(WorkPending(1)) == []


def test_work_that_comes_late_does_not_lengthen_the_wait() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.now = HEARTBEAT + 1
    assert machine.feed(WorkPending(1)) == []
    assert sent(
        Timeout, machine.time_out()
    )  # nor does the leader get a second chance: it was silent for that long


def test_work_of_another_view_is_no_news() -> None:
    machine = Solo(COMMITTEE, 0)
    assert machine.feed(WorkPending(2)) == []
    assert waits(machine.feed(WorkPending(1))) == [VIEW_TIMEOUT]


def test_a_block_that_is_not_covered_is_work_and_nothing_has_to_be_asked() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.propose(B1)
    entered = machine.receive(Certificates(COMMITTEE.qc(B1), None))
    assert waits(entered) == [VIEW_TIMEOUT]
    assert only(RequestWork, entered) == []


def test_a_proposal_with_batches_is_work() -> None:
    machine = Solo(COMMITTEE, 0)
    assert VIEW_TIMEOUT in waits(machine.propose(B1))


def test_the_leader_is_offered_the_only_batch_there_is_and_gets_as_much_time_again() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.feed(WorkPending(1))
    assert machine.time_out() == [SetTimer(ViewTimer(1, 3), VIEW_TIMEOUT), OfferWork(1, frozenset())]
    assert sent(Timeout, machine.time_out())


def test_a_leader_offers_itself_nothing() -> None:
    machine = Solo(COMMITTEE, 1)
    machine.feed(WorkPending(1))
    assert kinds(machine.time_out()) == [SetTimer]
    assert sent(Timeout, machine.time_out())


def test_a_leader_that_has_proposed_gets_no_second_chance() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.propose(B1)
    assert machine.feed(WorkPending(1)) == []
    assert sent(Timeout, machine.time_out())


def test_who_was_made_to_give_up_by_others_offers_nothing_any_more() -> None:
    committee = Committee(7)
    machine = Solo(committee, 0)
    machine.feed(WorkPending(1))
    for signer in (2, 3, 4):
        machine.receive(committee.timeout(1, signer))
    again = machine.time_out()
    assert kinds(again) == [SetTimer, Broadcast]
    assert machine.feed(PayloadAvailable()) == []


def test_work_that_comes_after_giving_up_changes_nothing() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.time_out()
    assert machine.feed(WorkPending(1)) == []
    assert machine.feed(Connection(1, up=False)) == []


def test_without_a_connection_to_the_leader_the_wait_is_short_from_when_that_is_known() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.feed(WorkPending(1))
    assert waits(machine.feed(Connection(1, up=False))) == [FLOOR]


def test_an_idle_leader_that_cannot_be_reached_is_given_its_heartbeat() -> None:
    """It may be alive and wait for work: who gives up earlier ends its view together with f liars."""
    machine = Solo(COMMITTEE, 0)
    assert waits(machine.feed(Connection(1, up=False))) == [HEARTBEAT + FLOOR]


def test_a_connection_to_somebody_else_changes_nothing() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.feed(WorkPending(1))
    assert machine.feed(Connection(2, up=False)) == []
    assert machine.feed(Connection(2, up=True)) == []


def test_views_of_leaders_that_cannot_be_reached_do_not_lengthen_the_wait_for_others() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.feed(Connection(1, up=False))
    machine.feed(Connection(2, up=False))
    machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    entered = machine.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2)))
    assert waits(entered) == [HEARTBEAT + VIEW_TIMEOUT]
    reachable = Solo(COMMITTEE, 0)
    reachable.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(1)))
    entered = reachable.receive(Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2)))
    assert waits(entered)[0] > HEARTBEAT + VIEW_TIMEOUT


def test_old_timers_of_the_same_view_do_nothing() -> None:
    machine = Solo(COMMITTEE, 0)
    machine.feed(WorkPending(1))
    assert machine.feed(TimerFired(ViewTimer(1, 1))) == []


@pytest.mark.parametrize("payload", [True, False])
def test_a_healthy_network_gives_up_on_no_view_and_comes_to_wait_for_the_floor(payload: bool) -> None:
    cluster = Cluster(COMMITTEE, payload=payload)
    cluster.run(20_000)
    assert not any(seat.timeouts or seat.offers for seat in cluster.seats)
    cluster.kill(cluster.seats[0].running.view % COMMITTEE.size)
    alive = cluster.alive[0]
    before = cluster.now
    while not alive.timeouts:
        cluster.run(cluster.now + 1)
    # Of its own view, or of the one before, whose votes it collects.
    assert cluster.now - before <= 2 * (FLOOR + HEARTBEAT)


def test_who_collects_votes_in_the_place_of_the_next_leader_shows_it_the_certificate() -> None:
    """A leader to whom the proposer has no connection cannot vote, nor form the QC that it needs."""
    block = COMMITTEE.block()
    machine = Solo(COMMITTEE, 3, leaders=TwoLeaders())  # member 2 leads next, or member 3 if the view fails
    machine.propose(block)
    effects = [effect for signer in (0, 1, 3) for effect in machine.receive(COMMITTEE.vote(block, signer))]
    qc = machine.machine.high_qc.qc
    assert only(Send, effects) == [Send(2, Certificates(qc, None))]


def test_if_the_next_leader_is_gone_all_are_shown_the_certificate_and_enter_its_view() -> None:
    block = COMMITTEE.block()
    shown = {}
    for index in (0, 3):
        machine = Solo(COMMITTEE, index, leaders=TwoLeaders())
        machine.feed(Connection(2, up=False))
        machine.propose(block)
        effects = [
            effect for signer in (0, 1, 3) for effect in machine.receive(COMMITTEE.vote(block, signer))
        ]
        assert machine.machine.view == 2
        shown[index] = sent(Certificates, effects)
    assert shown == {0: [], 3: [Certificates(COMMITTEE.qc(block, (0, 1, 3)), None)]}, (
        "one that collects is enough"
    )


def votes_to(effects: Iterable[Effect]) -> list[int]:
    return [effect.to for effect in only(Send, effects) if isinstance(effect.message, Vote)]


@pytest.mark.parametrize("gone", range(1, 4))
def test_votes_go_to_all_if_one_that_should_collect_them_cannot_be_reached(gone: int) -> None:
    leaders = TwoLeaders()
    collectors = {leaders.leader(2, entered_by, ()) for entered_by in EnteredBy}
    machine = Solo(COMMITTEE, 0, leaders=leaders)
    machine.feed(Connection(gone, up=False))
    effects = machine.propose(COMMITTEE.block(proposer=leaders.leader(1, EnteredBy.QC, ())))
    assert set(votes_to(effects)) == ({1, 2, 3} if gone in collectors else collectors - {0})


def relayed(effects: Iterable[Effect], vote: Vote) -> list[Send]:
    """What a member sends besides its own vote, because it has got this one."""
    own = [
        effect
        for effect in only(Send, effects)
        if isinstance(effect.message, Vote) and effect.message != vote
    ]
    return [effect for effect in only(Send, effects) if effect not in own]


def test_a_vote_that_others_collect_is_passed_on_to_them() -> None:
    """Member 3 cannot reach member 2, who leads next."""
    machine = Solo(COMMITTEE, 0)
    machine.propose(B1)
    vote = COMMITTEE.vote(B1, 3)
    assert machine.receive(vote) == [Send(2, vote)]
    assert only(Send, machine.receive(vote)) == []  # once is enough


def test_the_proposers_vote_is_passed_on_with_its_proposal() -> None:
    """Member 1 leads and cannot reach member 2, who collects the votes: that one has not got the block."""
    vote, proposal = COMMITTEE.vote(B1, 1), COMMITTEE.proposal(B1)
    for order in ((proposal, vote), (vote, proposal)):
        machine = Solo(COMMITTEE, 3)
        effects = [effect for message in order for effect in machine.receive(message)]
        assert relayed(effects, vote) == [Send(2, proposal), Send(2, vote)]


def test_one_more_than_the_faulty_pass_a_vote_on_and_no_one_else() -> None:
    committee = Committee(7)
    block = committee.block()
    passing = []
    for index in range(7):
        machine = Solo(committee, index)
        machine.propose(block)
        vote = committee.vote(block, 1)
        if relayed(machine.receive(vote), vote):
            passing.append(index)
    assert passing == [3, 4, 5], "member 1 has signed it and member 2 collects it"


def test_votes_are_not_passed_on_to_who_cannot_be_reached_nor_for_a_block_that_has_not_come() -> None:
    vote = COMMITTEE.vote(B1, 3)
    machine = Solo(COMMITTEE, 0)
    machine.propose(B1)
    machine.feed(Connection(2, up=False))
    assert only(Send, machine.receive(vote)) == []
    machine = Solo(COMMITTEE, 0)
    assert only(Send, machine.receive(vote)) == []


def test_a_vote_for_a_block_of_another_view_is_not_passed_on() -> None:
    """Or a liar could have its old proposal sent around in every view."""
    machine = Solo(COMMITTEE, 3)
    machine.propose(B1)
    machine.receive(Certificates(COMMITTEE.qc(B1), None))
    assert only(Send, machine.receive(COMMITTEE.vote(B1, 1, view=2))) == []


def test_what_was_passed_on_twice_is_refused_before_its_signature_is_checked() -> None:
    machine = Solo(COMMITTEE, 2)
    vote, proposal = COMMITTEE.vote(B1, 0), COMMITTEE.proposal(B1)
    for message in (proposal, vote):
        machine.machine.screen(message)
        machine.receive(message)
        with pytest.raises(Refused) as refused:
            machine.machine.screen(message)
        assert refused.value.reason is Reason.REPLAYED
        machine.machine.screen(
            replace(message, signature=b"another")
        )  # that is for the check of the signature


class ByChain(TwoLeaders):
    """Who leads after a QC depends on the chain, as in cwa+."""

    memory = 1


def test_a_leader_that_is_not_known_yet_is_neither_named_nor_given_up_early() -> None:
    """The newest certified block has not come, and it decides who leads."""
    machine = Solo(COMMITTEE, 0, leaders=ByChain())
    for other in (1, 2, 3):
        machine.feed(Connection(other, up=False))
    effects = machine.receive(Certificates(COMMITTEE.qc(B1), None))
    assert waits(effects) == [VIEW_TIMEOUT + HEARTBEAT]
    effects = machine.receive(Certificates(COMMITTEE.qc(B1), COMMITTEE.tc(2, 1)))
    assert machine.machine.view == 3
    assert only(ViewFailed, effects) == []


def test_who_cannot_know_the_next_leader_offers_and_shows_it_nothing() -> None:
    machine = Solo(COMMITTEE, 3, leaders=ByChain())
    votes = [COMMITTEE.vote(B1, signer) for signer in (0, 1, 2)]  # for a block that has not come
    effects = [effect for vote in votes for effect in machine.receive(vote)]
    assert machine.machine.view == 2
    assert sent(Certificates, effects) == []
    machine.feed(WorkPending(2))
    assert only(OfferWork, machine.time_out()) == []
