"""Where a replica stops: at a fork among final blocks, and at blocks larger than the others allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.ledger.shard import ALICE, Shard
from tests.replica.care import flipped
from tests.replica.driver import Cluster, Committee, Member, MemoryStore
from tests.sync.branches import Branch
from tests.sync.laggard import Laggard

from parley.consensus.errors import Reason
from parley.consensus.events import ViewTimer
from parley.ledger import layout
from parley.ledger.layout import StateView
from parley.mempool.messages import BatchMessage
from parley.mempool.pool import Limits, batch_digest
from parley.model.refusals import BadSignature
from parley.replica import wire
from parley.replica.ports import Halt, Intake, Refused, SetTimer, Submission, Write
from parley.sim.counter import encode_batch, mounted


def test_two_final_branches_stop_the_replica_for_good_with_advice() -> None:
    laggard = Laggard()
    final, fork = Branch(20, step=1), Branch(25, step=1, skipped=100)
    final.show(laggard, 20)
    laggard.ask(final.answer)
    assert laggard.height == 19
    before = laggard.member.committed()
    fork.show(laggard, 25)
    laggard.ask(fork.answer)
    (halt,) = [effect for effect in laggard.effects if isinstance(effect, Halt)]
    assert "this replica stops" in halt.why
    replica = laggard.member.replica
    halted = Refused(None, Reason.HALTED, "")
    assert replica.receive(0, 1, b"") == [Refused(1, Reason.HALTED, "")]
    submission = laggard.member.submit(0, encode_batch(0, 0, b""))
    assert submission == Submission(Intake.HALTED, [halted])
    assert replica.fire(0, ViewTimer(replica.view, 1)) == [halted]
    assert laggard.member.committed() == before


def test_a_leader_whose_block_exceeds_the_limit_gets_no_votes_and_the_others_go_on() -> None:
    modest, greedy = Committee(limits=Limits(block_bytes=100)), Committee(limits=Limits(block_bytes=10_000))
    cluster = Cluster(modest)
    cluster.members[1] = Member(greedy, 1, mounted())
    cluster.start()
    bodies = [encode_batch(author, sequence, bytes(30)) for author in range(4) for sequence in range(20)]
    for body in bodies:
        cluster.submit(0, body)
    names = {batch_digest(body) for body in bodies}
    cluster.run_until(
        lambda: all(
            names <= {name for block in member.blocks() for name in block.batches}
            for member in cluster.members
        )
    )
    for member in (cluster.members[0], cluster.members[2], cluster.members[3]):
        assert member.replica.counters[Reason.OVERSIZED] > 0
        assert all(42 * len(block.batches) <= 100 for block in member.blocks())


def test_a_message_larger_than_any_is_refused_before_it_is_read() -> None:
    cluster = Cluster().start()
    (refused,) = cluster.deliver(1, 0, bytes(wire.MAX_MESSAGE + 1))
    assert refused == cluster.members[0].refused[-1]
    assert cluster.members[0].replica.counters == {Reason.OVERSIZED: 1}


def test_a_batch_that_another_broker_announces_is_opened_and_refused_with_its_code() -> None:
    shard = Shard()
    cluster, member = shard.cluster, shard.cluster.members[0]
    batch = shard.maker.publication(ALICE, "wards")
    forged = wire.encode(BatchMessage(flipped(batch.body, -1)))
    (refused,) = cluster.deliver(1, 0, forged)
    assert refused == Refused(1, Reason.BAD_SIGNATURE, BadSignature.code)
    assert member.replica.counters[Reason.BAD_SIGNATURE] == 1
    assert not list(member.store.scan(b"b/"))
    write, timer = cluster.deliver(1, 0, wire.encode(BatchMessage(batch.body)))
    assert isinstance(write, Write)
    assert isinstance(timer, SetTimer), "there is something to wait for now"
    assert member.store.get(layout.batch(batch.digest)) == batch.body


@pytest.mark.parametrize(
    ("limits", "intake"),
    [
        (Limits(pending_batches=2), Intake.FULL),
        (Limits(pending_bytes=2 * 14), Intake.FULL),
        (Limits(pending_of_author=2), Intake.TAKEN),  # the counter's batches have no authors
    ],
    ids=["batches", "bytes", "author"],
)
def test_what_became_of_a_clients_batch_is_named(limits: Limits, intake: Intake) -> None:
    cluster = Cluster(Committee(limits=limits)).start()
    cluster.absent = {1, 2, 3}
    member = cluster.members[0]
    first, second, third = (encode_batch(0, sequence, b"ab") for sequence in range(3))
    assert member.submit(0, first).intake is Intake.TAKEN
    again = member.submit(0, first)
    assert (again.intake, again.effects) == (
        Intake.KNOWN,
        [Refused(None, Reason.REPLAYED, Intake.KNOWN.value)],
    )
    assert member.submit(0, second).intake is Intake.TAKEN
    last = member.submit(0, third)
    assert last.intake is intake
    if intake is not Intake.TAKEN:
        assert last.effects == [Refused(None, Reason.QUOTA, intake.value)]


def test_an_author_that_fills_its_part_is_named() -> None:
    shard = Shard()
    committee = replace(shard.cluster.committee, limits=Limits(pending_of_author=1))
    member = Member(committee, 0, shard.cluster.members[0].application)
    first, second = (shard.maker.publication(ALICE, "wards") for _ in range(2))
    assert member.submit(0, first.body).intake is Intake.TAKEN
    refused = member.submit(0, second.body)
    assert refused.intake is Intake.AUTHOR_FULL
    assert refused.effects == [Refused(None, Reason.QUOTA, Intake.AUTHOR_FULL.value)]


def test_the_application_sees_its_own_part_of_the_store_only() -> None:
    view = StateView(MemoryStore([(b"s/a", b"1"), (b"s/ab", b"2"), (b"c/a", b"3")]))
    assert (view.get(b"a"), view.get(b"b")) == (b"1", None)
    assert list(view.scan(b"")) == [(b"a", b"1"), (b"ab", b"2")]
    assert list(view.scan(b"ab")) == [(b"ab", b"2")]
