"""Where a replica stops: at a fork among final blocks, and at blocks larger than the others allow."""

from __future__ import annotations

from tests.replica.driver import Cluster, Committee, Member, MemoryStore
from tests.sync.branches import Branch
from tests.sync.laggard import Laggard

from parley.consensus.errors import Reason
from parley.consensus.events import ViewTimer
from parley.mempool.pool import Limits, batch_digest
from parley.replica import wire
from parley.replica.chain import StateView
from parley.replica.counter import Counter, encode_batch
from parley.replica.ports import Halt, Refused


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
    assert replica.submit(0, encode_batch(0, 0, b"")) == [halted]
    assert replica.fire(0, ViewTimer(replica.view, 1)) == [halted]
    assert laggard.member.committed() == before


def test_a_leader_whose_block_exceeds_the_limit_gets_no_votes_and_the_others_go_on() -> None:
    modest, greedy = Committee(limits=Limits(block_bytes=100)), Committee(limits=Limits(block_bytes=10_000))
    cluster = Cluster(modest)
    cluster.members[1] = Member(greedy, 1, Counter())
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


def test_the_application_sees_its_own_part_of_the_store_only() -> None:
    view = StateView(MemoryStore([(b"s/a", b"1"), (b"s/ab", b"2"), (b"c/a", b"3")]))
    assert (view.get(b"a"), view.get(b"b")) == (b"1", None)
    assert list(view.scan(b"")) == [(b"a", b"1"), (b"ab", b"2")]
    assert list(view.scan(b"ab")) == [(b"ab", b"2")]
