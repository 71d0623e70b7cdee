"""Replicas of one instance execute the same batches in the same order with the same results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.replica.driver import Cluster, Committee, agree, batches, counting, done, ordered, submitted

from parley.consensus.errors import Reason
from parley.consensus.types import Block, Proposal, Vote
from parley.mempool.messages import BatchMessage
from parley.mempool.pool import batch_digest
from parley.replica import wire
from parley.replica.ports import Broadcast, Intake, Refused, Results, Send
from parley.sim.counter import Counter, encode_batch
from parley.store.interface import KeyValue


@pytest.mark.parametrize(("size", "depth"), [(1, 2), (2, 2), (4, 2), (4, 3), (7, 2)])
def test_replicas_apply_every_submitted_batch_once_in_one_order_with_equal_roots(
    size: int, depth: int
) -> None:
    cluster = Cluster(Committee(size, depth)).start()
    names = submitted(cluster)
    cluster.run_until(lambda: done(cluster, names))
    assert agree(cluster.members)
    for member in cluster.members:
        assert sorted(ordered(member)) == sorted(names)
        receipts = [receipt for applied in member.applied for receipt in applied.receipts]
        assert sorted(receipt.position for receipt in receipts) == list(range(1, len(names) + 1))
        assert {receipt.code for receipt in receipts} == {"ok"}
        assert [applied.block.height for applied in member.applied] == list(range(1, len(member.applied) + 1))
        assert not member.halts


def test_an_idle_network_stays_alive_by_heartbeats() -> None:
    cluster = Cluster().start().run(300)
    assert min(cluster.heights()) > 10
    assert agree(cluster.members)


def test_one_silent_member_does_not_stop_the_others() -> None:
    cluster = Cluster().start()
    cluster.absent = {2}
    names = submitted(cluster)
    cluster.run_until(lambda: done(cluster, names - {batch_digest(b) for b in batches(2, 6)}, 0, 1, 3))
    assert agree(cluster.members)


def test_a_batch_that_waits_or_is_settled_is_refused_as_replayed() -> None:
    cluster = Cluster().start()
    (batch,) = batches(0, 1)
    cluster.submit(0, batch)
    refused = cluster.submit(0, batch)
    assert [type(effect) for effect in refused] == [Refused]
    cluster.run_until(lambda: done(cluster, {batch_digest(batch)}))
    for member in cluster.members:
        submission = member.submit(cluster.now, batch)
        assert submission.intake is Intake.KNOWN
        (effect,) = submission.effects
        assert isinstance(effect, Refused)
        assert (effect.sender, effect.reason) == (None, Reason.REPLAYED)


def test_a_batch_out_of_sequence_may_be_ordered_again_p3() -> None:
    cluster = Cluster().start()
    first, second = batches(0, 2)
    cluster.submit(0, second)
    cluster.run_until(lambda: done(cluster, {batch_digest(second)}))
    cluster.submit(1, first)
    cluster.submit(2, second)
    cluster.run_until(
        lambda: all(ordered(member).count(batch_digest(second)) == 2 for member in cluster.members)
    )
    codes = [receipt.code for applied in cluster.members[3].applied for receipt in applied.receipts]
    assert codes == ["out_of_sequence", "ok", "ok"]
    assert agree(cluster.members)


# -- coming back ---------------------------------------------------------------------------------------------------------


def test_a_member_that_was_away_catches_up_with_blocks_and_batches() -> None:
    cluster = Cluster().start()
    cluster.absent = {3}
    names = submitted(cluster, count=1) - {batch_digest(batch) for batch in batches(3, 1)}
    for sequence in range(1, 100):
        for author in range(3):
            cluster.submit(author, encode_batch(author, sequence, b""))
        cluster.round()
    cluster.run_until(lambda: done(cluster, names, 0, 1, 2) and cluster.heights()[0] > 70)
    assert cluster.heights()[3] == 0
    cluster.absent = set()
    behind = cluster.heights()[0]
    cluster.run_until(lambda: cluster.heights()[3] > behind)
    assert agree(cluster.members)
    cluster.run_until(
        lambda: sum(applied.block.header.proposer == 3 for applied in cluster.members[0].applied) > 2
    )


def test_a_member_catches_up_while_the_others_go_on_under_load() -> None:
    cluster = Cluster(Committee(7)).start()
    cluster.absent = {6}
    sequence = 0

    def load() -> None:
        nonlocal sequence
        for author in range(6):
            cluster.submit(author, encode_batch(author, sequence, b""))
        sequence += 1
        cluster.round()

    while cluster.heights()[0] < 60:
        load()
    cluster.absent = set()
    for _ in range(300):
        if cluster.heights()[6] >= cluster.heights()[0] - 3:
            break
        load()
    assert cluster.heights()[6] >= cluster.heights()[0] - 3
    assert agree(cluster.members)


def test_batches_whose_announcement_was_lost_are_fetched_before_the_vote_t20() -> None:
    cluster = Cluster().start()
    announced: list[bytes] = []

    def carries(_sender: int, _to: int, data: bytes) -> bool:
        message = wire.decode(data)
        lost = isinstance(message, BatchMessage) and message.data not in announced
        if isinstance(message, BatchMessage):
            announced.append(message.data)
        return not lost

    cluster.outbox.carries = carries
    names = submitted(cluster, count=3)
    cluster.run_until(lambda: done(cluster, names))
    assert agree(cluster.members)


# -- abandoned blocks ------------------------------------------------------------------------------------------------------


def test_batches_of_abandoned_blocks_are_ordered_later_t14() -> None:
    cluster = Cluster().start().run(20)
    abandoned: list[Block] = []

    def carries(sender: int, to: int, data: bytes) -> bool:
        """Each proposal of member 1 reaches nobody but member 2, so it is never certified."""
        message = wire.decode(data)
        if not isinstance(message, Proposal) or sender != 1:
            return True
        if message.batches and to == 2:
            abandoned.append(Block(message.header, message.batches))
        return to == 2

    cluster.outbox.carries = carries
    names = submitted(cluster)
    for sequence in range(6, 30):
        names.add(batch_digest(encode_batch(1, sequence, b"")))
        cluster.submit(1, encode_batch(1, sequence, b""))
        cluster.run(5)
    cluster.run_until(lambda: done(cluster, names))
    lost = {name for block in abandoned for name in block.batches}
    assert lost
    assert all(block.id not in cluster.members[0].committed() for block in abandoned)
    for member in cluster.members:
        assert all(ordered(member).count(name) == 1 for name in lost)
        assert not dict(member.store.scan(b"p/"))
    assert agree(cluster.members)


def test_abandoned_blocks_leave_the_store() -> None:
    cluster = Cluster().start()
    cluster.outbox.carries = lambda sender, to, data: (
        sender != 1 or to == 2 or not isinstance(wire.decode(data), Proposal)
    )
    cluster.run(600)
    for member in cluster.members:
        assert len(list(member.store.scan(b"u/"))) < 10


# -- divergence ------------------------------------------------------------------------------------------------------------


class Miscounting(Counter):
    """Computes another state from the third block with batches on."""

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        outcome = super().apply(block, batches, state)
        if block.height < 5:
            return outcome
        return Results(outcome.writes, bytes(32), outcome.receipts, outcome.settled)


def test_a_replica_that_computes_another_state_stops_voting_and_reports_while_the_others_go_on_p2() -> None:
    cluster = Cluster(applications={3: counting(Miscounting())}).start()
    wrong = cluster.members[3]
    cluster.run_until(lambda: bool(wrong.halts))
    assert "state is wrong" in wrong.halts[0].why
    assert "snapshot" in wrong.halts[0].why
    view, seen = wrong.replica.view, len(wrong.history)
    last_vote = wrong.record()[1].last_voted_view
    names = submitted(cluster)
    cluster.run_until(lambda: done(cluster, names, 0, 1, 2))
    assert len(wrong.halts) == 1
    assert wrong.record()[1].last_voted_view == last_vote
    assert wrong.replica.view > view
    sent = [wire.decode(e.data) for e in wrong.history[seen:] if isinstance(e, Send | Broadcast)]
    assert not any(isinstance(message, Vote | Proposal) for message in sent)
    assert agree(cluster.members[:3])
    assert not any(member.halts for member in cluster.members[:3])


def test_a_diverged_replica_says_so_again_after_a_restart_and_still_does_not_vote() -> None:
    cluster = Cluster(applications={3: counting(Miscounting())}).start()
    wrong = cluster.members[3]
    cluster.run_until(lambda: bool(wrong.halts))
    cluster.restart(3)
    last_vote = wrong.record()[1].last_voted_view
    cluster.run_until(lambda: len(wrong.halts) > 1)
    assert wrong.record()[1].last_voted_view == last_vote
