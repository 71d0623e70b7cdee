"""A machine tells those who watch how many views it had to give up on."""

from __future__ import annotations

from tests.consensus.chains import Committee
from tests.consensus.world import Cluster


def test_a_dead_leader_costs_views_and_a_whole_committee_none() -> None:
    whole, without = Cluster(Committee()), Cluster(Committee(), dead=[1])
    for cluster in (whole, without):
        cluster.run(20_000)
    assert [seat.running.given_up for seat in whole.alive] == [0] * 4
    assert all(seat.running.given_up > 0 for seat in without.alive)


def test_a_failed_view_is_charged_to_the_member_that_should_have_proposed_in_it() -> None:
    without = Cluster(Committee(), dead=[1])
    without.run(20_000)
    assert all({failed.leader for failed in seat.failed_views} == {1} for seat in without.alive)
