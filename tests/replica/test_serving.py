"""What a replica gives to others: batches and blocks that it has, within limits, and nothing else."""

from __future__ import annotations

from tests.replica.driver import Cluster, Committee, Member, batches

from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.mempool.pool import Limits, batch_digest
from parley.replica import wire
from parley.replica.ports import Effect, Send
from parley.sim.counter import encode_batch
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse


def ask(member: Member, message: wire.WireMessage) -> list[wire.WireMessage]:
    effects: list[Effect] = member.replica.receive(0, 2, wire.encode(message))
    sent = [effect for effect in effects if isinstance(effect, Send)]
    assert sent == effects
    assert all(effect.to == 2 for effect in sent)
    return [wire.decode(effect.data) for effect in sent]


def blocks_of(member: Member, target: bytes, above: int) -> tuple[list[int], bytes | None]:
    """The heights in an answer, and what its certificate is of."""
    (response,) = ask(member, BlocksRequest(target, above))
    assert isinstance(response, BlocksResponse)
    assert response.target == target
    qc = None if response.qc is None else response.qc.block
    return [stored.header.height for stored in response.blocks], qc


def test_batches_are_sent_whether_they_wait_or_are_ordered_and_unknown_ones_are_passed_over() -> None:
    cluster = Cluster().start()
    ordered, waiting = batches(author=0, count=1)[0], batches(author=1, count=1)[0]
    cluster.submit(0, ordered)
    cluster.run(100)
    cluster.absent = {0}
    cluster.submit(0, waiting)
    names = (bytes(32), batch_digest(ordered), batch_digest(waiting))
    assert ask(cluster.members[0], BatchesRequest(names)) == [BatchMessage(ordered), BatchMessage(waiting)]
    assert ask(cluster.members[0], BatchesRequest((bytes(32),))) == []


def test_one_answer_holds_no_more_than_a_block_may() -> None:
    cluster = Cluster(Committee(limits=Limits(block_bytes=100))).start()
    held = [encode_batch(0, sequence, bytes(28)) for sequence in range(5)]
    for batch in held:
        cluster.submit(0, batch)
    member = cluster.members[0]
    assert ask(member, BatchesRequest(tuple(map(batch_digest, held)))) == list(map(BatchMessage, held[:2]))


def test_blocks_are_sent_from_the_height_asked_for_up_to_the_target() -> None:
    cluster = Cluster().start().run(400)
    member = cluster.members[0]
    height = member.replica.committed_height
    chain = member.committed()
    heights, certified = blocks_of(member, chain[-1], 5)
    assert heights[0] == 6
    assert heights[-1] >= height
    assert certified is not None
    high = member.replica._machine.high_qc.block
    heights, certified = blocks_of(member, high, height)
    assert heights[0] == height + 1
    assert certified is None


def test_an_asker_that_is_ahead_gets_no_blocks() -> None:
    member = Cluster().start().run(100).members[0]
    assert blocks_of(member, bytes(32), 2**62 - 1) == ([], None)


def test_an_unknown_target_gets_what_there_is_with_a_certificate() -> None:
    member = Cluster().start().run(100).members[0]
    heights, certified = blocks_of(member, bytes(32), 0)
    assert heights == list(range(1, len(heights) + 1))
    assert certified == member.replica._machine.high_qc.block


def test_a_long_chain_is_sent_in_parts() -> None:
    cluster = Cluster().start()
    for sequence in range(100):
        cluster.submit(0, encode_batch(0, sequence, b""))
        cluster.run(2)
    member = cluster.members[0]
    heights, certified = blocks_of(member, bytes(32), 0)
    assert heights == list(range(1, MAX_BLOCKS))
    assert certified == member.committed()[MAX_BLOCKS - 1]


def test_committed_blocks_that_wait_for_their_batches_are_sent_too() -> None:
    cluster = Cluster().start()
    cluster.outbox.carries = lambda _sender, to, data: (
        not (to == 3 and isinstance(wire.decode(data), BatchMessage))
    )
    for sequence in range(10):
        cluster.submit(0, encode_batch(0, sequence, b""))
        cluster.run(3)
    member = cluster.members[3]
    assert member.replica.executed_height < member.replica.committed_height
    heights, _ = blocks_of(member, bytes(32), 0)
    assert heights[: member.replica.committed_height] == list(range(1, member.replica.committed_height + 1))
