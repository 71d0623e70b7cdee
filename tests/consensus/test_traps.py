"""Where HotStuff code bases lost safety or liveness: traps that span modules, played through; none is left untested."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.consensus.chains import Committee
from tests.consensus.world import LONGEST_TIMEOUT, VIEW_TIMEOUT, Cluster, Seat, Solo, only, reasons, sent

from parley.consensus.errors import Reason
from parley.consensus.events import Commit, Message, RequestPayload
from parley.consensus.types import Block, Certificates, Proposal, Timeout, Vote

TESTS = Path(__file__).parent.parent


# -- checks that every run must pass ------------------------------------------------------------------------------------------


def chains_agree(cluster: Cluster) -> bool:
    chains = [[block.id for block in seat.committed] for seat in cluster.seats]
    longest = max(chains, key=len)
    return all(chain == longest[: len(chain)] for chain in chains)


def signed_once(seat: Seat) -> bool:
    """However often something was sent: per view one vote, one timeout, one proposal."""
    votes = {(vote.view, vote.block) for vote in seat.votes}
    votes |= {(t.vote.view, t.vote.block) for t in seat.timeouts if t.vote is not None}
    timeouts = {(timeout.view, timeout.high_qc.view) for timeout in seat.timeouts}
    proposals = {(proposal.header.view, proposal.header.id()) for proposal in seat.proposals}
    return all(len({view for view, _ in kind}) == len(kind) for kind in (votes, timeouts, proposals))


def healthy(cluster: Cluster) -> bool:
    return chains_agree(cluster) and all(signed_once(seat) and not seat.evidence for seat in cluster.seats)


def committed(cluster: Cluster) -> int:
    """The least that any live member has committed."""
    return min(len(seat.committed) - 1 for seat in cluster.alive)


# -- the meta-test --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 26))
def test_every_trap_is_named_by_a_test(number: int) -> None:
    name = re.compile(rf"def test_(?:t\d+_)*t{number}_|\"\"\"[^\"]*\bT{number}\b[^\"]*\"\"\"")
    assert any(name.search(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py")))


# -- T1, T2: commit and vote rule -----------------------------------------------------------------------------------------------


def commits_by_parents(line: list[Block], depth: int) -> Block | None:
    """The broken rule: `depth` certified blocks, each the parent of the next, whatever their views."""
    return line[-depth] if len(line) >= depth else None


@pytest.mark.parametrize("depth", [2, 3])
def test_t1_two_interleaved_branches_commit_nothing_where_the_parent_rule_commits_both(depth: int) -> None:
    """T1: the fork of relab/hotstuff issue 249. Certified blocks of odd views on one branch, of even views on the other."""
    committee = Committee(depth=depth)
    odd, even = committee.chain(1, 3, 5), committee.chain(2, 4, 6)
    first, second = commits_by_parents(odd, depth), commits_by_parents(even, depth)
    assert first is not None
    assert second is not None
    assert first.height == second.height
    assert first != second
    for branch in (odd, even):
        machine = Solo(committee, 0)
        effects = [effect for block in branch for effect in machine.propose(block)]
        effects += machine.receive(Certificates(committee.qc(branch[-1]), None))
        assert only(Commit, effects) == []
        assert machine.machine.root == committee.genesis


@pytest.mark.parametrize(
    "entitlement",
    ["its TC saw the final block", "the TC of an older view", "a QC alone", "a TC of liars that shows less"],
)
def test_t2_a_fork_below_a_final_block_gets_no_vote(entitlement: str) -> None:
    """T2: Fast-HotStuff's first rule. Block 1 is final for one replica only; the leader of view 4 forks below it."""
    committee = Committee()
    b1, b2 = committee.chain(1, 2)
    informed = Solo(committee, 3)
    for block in (b1, b2):
        informed.propose(block)
    assert only(Commit, informed.receive(Certificates(committee.qc(b2), None))) != []
    voter = Solo(committee, 1)
    for block in (b1, b2):
        voter.propose(block)
    voter.receive(Certificates(committee.qc(b1), committee.tc(3, (1, 1, 1))))
    assert voter.machine.view == 4
    tc = {
        "its TC saw the final block": committee.tc(3, (0, 0, 1)),
        "the TC of an older view": committee.tc(1),
        "a QC alone": None,
        "a TC of liars that shows less": committee.tc(3, (0, 0), (0, 2)),
    }[entitlement]
    effects = voter.propose(committee.block(view=4, tc=tc))
    assert sent(Vote, effects) == []
    assert reasons(effects)[0] in (Reason.NOT_ENTITLED, Reason.TOO_FEW_SIGNERS)


def test_t2_no_timeout_quorum_can_hide_a_final_block() -> None:
    """T2: q voted for the child of a final block, and none of them signs a timeout with an older QC."""
    committee = Committee()
    b1, b2 = committee.chain(1, 2)
    for index in range(committee.quorum):
        voter = Solo(committee, index)
        voter.propose(b1)
        voter.propose(b2)
        shown = [timeout.high_qc.view for timeout in sent(Timeout, voter.time_out())]
        assert shown == [1]


# -- T9-T15: liveness -----------------------------------------------------------------------------------------------------------


class Forgetful(Cluster):
    """Timeouts arrive without the vote in them, as in code bases that send votes to the next leader only."""

    def receive(self, seat: Seat, message: Message) -> None:
        stripped = replace(message, vote=None) if isinstance(message, Timeout) else message
        super().receive(seat, stripped)


@pytest.mark.parametrize("dead", range(4))
def test_t9_three_chain_commits_with_one_crash_among_four(dead: int) -> None:
    """T9: the last vote before the dead collector travels in the timeouts, so three views in a row are certified."""
    cluster = Cluster(Committee(4, depth=3), dead=[dead])
    cluster.run(30 * VIEW_TIMEOUT)
    assert committed(cluster) >= 20
    assert healthy(cluster)


@pytest.mark.parametrize("dead", range(4))
def test_t9_without_votes_in_timeouts_it_never_would(dead: int) -> None:
    cluster = Forgetful(Committee(4, depth=3), dead=[dead])
    cluster.run(30 * VIEW_TIMEOUT)
    assert committed(cluster) == 0


@pytest.mark.parametrize(("size", "dead"), [(4, [2]), (7, [1, 2]), (7, [1, 4]), (10, [0, 1, 2])])
@pytest.mark.parametrize("depth", [2, 3])
def test_t9_progress_with_f_crashed(size: int, dead: list[int], depth: int) -> None:
    cluster = Cluster(Committee(size, depth=depth), dead=dead)
    cluster.run(30 * VIEW_TIMEOUT)
    assert committed(cluster) >= 10
    assert healthy(cluster)


def test_t10_a_leader_that_does_not_know_the_highest_qc_still_gets_every_vote() -> None:
    """T10, hidden lock: member 0 alone holds the QC of view 1; the others left the view by a TC that did not see it."""
    committee = Committee()
    b1 = committee.block()
    locked, leader = Solo(committee, 0), Solo(committee, 2)
    locked.propose(b1)
    locked.receive(Certificates(committee.qc(b1), None))
    leader.receive(Certificates(committee.genesis_qc, committee.tc(1, 0, (1, 2, 3))))
    assert (locked.machine.view, leader.machine.view) == (2, 2)
    assert (locked.machine.high_qc.view, leader.machine.high_qc.view) == (1, 0)
    block = committee.block(view=2, tc=committee.tc(1, 0, (1, 2, 3)))
    assert sent(Vote, locked.propose(block)) == [committee.vote(block, 0)]


def test_t10_a_timeout_brings_the_hidden_qc_to_the_leader() -> None:
    """T10: and whoever times out shows its highest QC to all."""
    committee = Committee()
    b1 = committee.block()
    leader = Solo(committee, 3)
    leader.propose(b1)
    for signer in (0, 1, 2):
        leader.receive(committee.timeout(2, signer, committee.qc(b1)))
    assert leader.machine.high_qc.qc == committee.qc(b1)
    assert leader.machine.view == 3


def test_t11_views_go_on_although_every_first_timeout_is_lost() -> None:
    """T11: a timeout is sent again until the view changes."""
    seen: set[tuple[int, int, int]] = set()

    def first_timeouts(sender: int, to: int, message: Message) -> bool:
        key = (sender, to, message.view if isinstance(message, Timeout) else -1)
        fresh = key not in seen
        seen.add(key)
        return isinstance(message, Timeout) and fresh

    cluster = Cluster(Committee(4), dead=[1], lost=first_timeouts)
    cluster.run(30 * VIEW_TIMEOUT)
    assert committed(cluster) >= 10


def test_t11_a_timer_alone_opens_no_view() -> None:
    """T11: a replica that is cut off stays in its view however long it waits."""
    cluster = Cluster(Committee(4), lost=lambda _sender, _to, _message: True)
    cluster.run(100 * VIEW_TIMEOUT)
    assert [seat.running.view for seat in cluster.seats] == [1, 1, 1, 1]


def test_t12_a_laggard_jumps_to_the_view_of_the_others() -> None:
    cluster = Cluster(Committee(4), dead=[3])
    cluster.run(30 * VIEW_TIMEOUT)
    ahead = cluster.seats[0].running.view
    assert ahead > 10
    cluster.boot(3)
    cluster.run(cluster.now + LONGEST_TIMEOUT)
    returned = cluster.seats[3]
    entered = sorted(set(returned.views))
    assert entered[0] == 1
    assert entered[1] >= ahead
    assert committed(cluster) > ahead // 2
    assert healthy(cluster)


def test_t14_a_block_that_loses_its_collector_is_certified_by_its_resent_votes() -> None:
    """T14, T15: the crashed next leader drops nothing, for every voter sends its vote again with its timeout."""
    cluster = Cluster(Committee(4), dead=[2])
    cluster.run(20 * VIEW_TIMEOUT)
    final = cluster.seats[0].committed
    proposed = [proposal for seat in cluster.seats for proposal in seat.proposals]
    lost = [
        p for p in proposed if p.header.view <= final[-1].view and p.header.id() not in {b.id for b in final}
    ]
    assert lost == []


def test_t15_the_votes_of_a_dead_collectors_view_are_resent_to_all() -> None:
    cluster = Cluster(Committee(4), dead=[2])
    cluster.run(5 * VIEW_TIMEOUT)
    resent = [timeout for seat in cluster.alive for timeout in seat.timeouts if timeout.vote is not None]
    assert resent != []
    assert all(timeout.vote is not None and timeout.vote.view % 4 == 1 for timeout in resent)


def test_an_idle_network_goes_on_by_heartbeats_and_times_nobody_out() -> None:
    cluster = Cluster(Committee(4), payload=False)
    cluster.run(20 * VIEW_TIMEOUT)
    assert committed(cluster) > 20
    assert [timeout for seat in cluster.seats for timeout in seat.timeouts] == []


# -- T16-T19: restarts ------------------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    depth=st.sampled_from([2, 3]),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    crashes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(1, 300)), max_size=6),
)
def test_t16_t17_t18_whatever_crashes_nothing_is_signed_twice_and_work_goes_on(
    depth: int, seed: int, loss: float, crashes: list[tuple[int, int, int]]
) -> None:
    """T16-T18: members die at any moment and come back from their record; then the network heals."""
    chance = random.Random(seed)
    cluster = Cluster(Committee(4, depth=depth), lost=lambda _sender, _to, _message: chance.random() < loss)
    for member, alive, dead in crashes:
        cluster.run(cluster.now + alive)
        cluster.kill(member)
        cluster.run(cluster.now + dead)
        cluster.boot(member)
    cluster.lost = lambda _sender, _to, _message: False
    cluster.payload = False
    before = committed(cluster)
    cluster.run(cluster.now + 2 * LONGEST_TIMEOUT)
    assert healthy(cluster)
    assert committed(cluster) > before


def test_t16_a_member_that_restarts_at_every_step_signs_nothing_twice() -> None:
    cluster = Cluster(Committee(4))
    for _ in range(100):
        cluster.run(cluster.now + 7)
        cluster.kill(1)
        cluster.boot(1)
    cluster.payload = False
    cluster.run(cluster.now + LONGEST_TIMEOUT)
    assert healthy(cluster)
    assert committed(cluster) > 10


def test_t17_restarting_all_at_once_again_and_again_keeps_them_in_step() -> None:
    """T17: what was signed may be sent again, so members that come back in different views find together."""
    cluster = Cluster(Committee(4))
    for pause in (13, 29, 41, 57, 73) * 4:
        cluster.run(cluster.now + pause)
        for index in range(4):
            cluster.kill(index)
        for index in range(4):
            cluster.boot(index)
    cluster.payload = False
    before = committed(cluster)
    cluster.run(cluster.now + 2 * LONGEST_TIMEOUT)
    assert committed(cluster) > before
    assert healthy(cluster)


def test_t19_a_member_whose_last_record_was_torn_comes_back_from_the_one_before() -> None:
    """T19: nothing signed under the torn write has left, so the one before it tells the truth."""
    cluster = Cluster(Committee(4))
    cluster.run(VIEW_TIMEOUT)
    cluster.kill(1)
    seat = cluster.seats[1]
    seat.slots[(seat.sequence + 1) % 2][0] = b"torn"
    cluster.boot(1)
    cluster.run(cluster.now + VIEW_TIMEOUT)
    assert healthy(cluster)


def test_t21_members_that_missed_half_of_all_proposals_catch_up() -> None:
    """T21: unknown parents are fetched outside the rules, and parked proposals resume."""
    chance = random.Random(7)

    def unlucky(_sender: int, to: int, message: Message) -> bool:
        return to == 3 and isinstance(message, Proposal) and chance.random() < 0.5

    cluster = Cluster(Committee(4), lost=unlucky)
    cluster.run(2 * VIEW_TIMEOUT)
    assert committed(cluster) > 10
    assert healthy(cluster)


def test_t14_every_batch_of_an_abandoned_block_may_be_proposed_again() -> None:
    """T14: what a later proposal must leave out is what its own branch holds, nothing else."""
    committee = Committee()
    kept = committee.block(view=2, batches=(bytes([2]) * 32,))
    lost = committee.block(batches=(bytes([1]) * 32,))
    machine = Solo(committee, 3)
    machine.propose(lost)
    machine.propose(kept)
    effects = machine.receive(Certificates(committee.qc(kept), None))
    assert only(RequestPayload, effects) == [RequestPayload(3, frozenset(kept.batches))]
