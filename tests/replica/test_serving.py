"""What a replica gives to others: batches and blocks that it has, within limits, and nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.replica.driver import Cluster, Committee, Member, batches

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Block
from parley.ledger import layout
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.mempool.pool import Limits, batch_digest
from parley.replica import serving, wire
from parley.replica.chain import Chain
from parley.replica.ports import Effect, Send
from parley.replica.serving import BATCHES_QUESTION, BLOCKS_QUESTION, BURST, RATE, Budget
from parley.sim.counter import encode_batch
from parley.sync.messages import (
    MAX_BLOCKS,
    BlocksRequest,
    BlocksResponse,
    EntriesRequest,
    RecordsRequest,
    SnapshotEntries,
    SnapshotRequest,
)


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


def test_an_asker_that_has_some_of_the_uncommitted_blocks_gets_the_others() -> None:
    cluster = Cluster().start().run(400)
    member = cluster.members[0]
    known = Chain(member.store).uncommitted
    cluster.run_until(lambda: len(known()) == 2)
    newest = max(known(), key=lambda block: block.view)
    assert newest.height == member.replica.committed_height + 2
    assert blocks_of(member, newest.id, newest.height - 1) == ([newest.height], None)


def test_an_uncommitted_block_that_is_on_disk_only_is_sent() -> None:
    """Memory holds a limited number of them; one that is not there may turn out to be certified."""
    member = Cluster().start().run(400).members[0]
    newest = max(Chain(member.store).uncommitted(), key=lambda block: block.view)
    other = Block(replace(newest.header, time=newest.header.time + 1), newest.batches)
    assert blocks_of(member, other.id, newest.height - 1)[1] is not None
    member.store.entries[layout.uncommitted(other.id)] = layout.encode(layout.StoredBlock.of(other))
    assert blocks_of(member, other.id, newest.height - 1) == ([newest.height], None)


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
    above = member.replica.executed_height + 1
    assert above < member.replica.committed_height
    assert blocks_of(member, bytes(32), above)[0] == heights[above:]


# -- what it costs ---------------------------------------------------------------------------------------------------------


def may_ask(budget: Budget, member: int = 2, now: int = 0) -> bool:
    try:
        budget.require(member, now)
    except Refused:
        return False
    return True


def test_who_has_used_up_its_budget_may_ask_again_when_there_is_some() -> None:
    budget = Budget(4)
    budget.charge(2, BURST - 1)
    assert may_ask(budget)
    budget.charge(2, 1)
    assert not may_ask(budget)
    assert may_ask(budget, member=1)
    assert may_ask(budget, now=1)
    budget.charge(2, 3 * RATE)
    assert not may_ask(budget, now=3)
    assert may_ask(budget, now=4)


def test_a_budget_grows_to_its_size_and_no_further() -> None:
    budget = Budget(4)
    assert may_ask(budget, now=10 * BURST)
    budget.charge(2, BURST)
    assert not may_ask(budget, now=10 * BURST)


def test_a_clock_that_goes_back_takes_nothing_from_a_budget_and_gives_nothing() -> None:
    budget = Budget(4)
    assert may_ask(budget, now=1_000)
    budget.charge(2, BURST - 1)
    assert may_ask(budget, now=0)
    budget.charge(2, 1)
    assert not may_ask(budget, now=1_000)


def answers_until_refused(member: Member, message: wire.WireMessage) -> list[list[wire.WireMessage]]:
    """What it says until the asker has used up its budget; no time passes."""
    found: list[list[wire.WireMessage]] = []
    while not member.replica.counters[Reason.QUOTA]:
        assert len(found) < 1_000, "it costs nothing"
        effects: list[Effect] = member.replica.receive(0, 2, wire.encode(message))
        found.append([wire.decode(effect.data) for effect in effects if isinstance(effect, Send)])
    return found


@pytest.fixture
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "BURST", 1024 * 1024)


@pytest.mark.usefixtures("small_budgets")
@pytest.mark.parametrize("size", [0, 300_000])
def test_batches_cost_the_question_and_their_bytes(size: int) -> None:
    cluster = Cluster().start()
    body = encode_batch(0, 0, bytes(size))
    cluster.submit(0, body)
    named = (batch_digest(body),) if size else (bytes(32),)
    *answered, refused = answers_until_refused(cluster.members[0], BatchesRequest(named))
    cost = BATCHES_QUESTION + (len(body) if size else 0)
    assert serving.BURST - cost <= len(answered) * cost < serving.BURST + cost
    assert all(answer == ([BatchMessage(body)] if size else []) for answer in answered)
    assert refused == []


@pytest.mark.usefixtures("small_budgets")
def test_an_answer_of_batches_ends_where_the_askers_budget_does() -> None:
    cluster = Cluster().start()
    held = [encode_batch(0, sequence, bytes(300_000)) for sequence in range(6)]
    for body in held:
        cluster.submit(0, body)
    (answer,) = answers_until_refused(cluster.members[0], BatchesRequest(tuple(map(batch_digest, held))))
    assert answer == list(map(BatchMessage, held[:4]))


def test_a_question_that_names_a_batch_twice_is_refused() -> None:
    cluster = Cluster().start()
    body = batches(author=0, count=1)[0]
    cluster.submit(0, body)
    (refused,) = cluster.deliver(2, 0, wire.encode(BatchesRequest((batch_digest(body),) * 2)))
    assert cluster.members[0].refused == [refused]
    assert cluster.members[0].refused[0].reason is Reason.MALFORMED


@pytest.mark.usefixtures("small_budgets")
@pytest.mark.parametrize(
    "question", [BlocksRequest(bytes(32), 0), RecordsRequest(5, (1, 2), 0), SnapshotRequest(2**40)]
)
def test_blocks_records_and_snapshots_cost_the_question_and_their_bytes(question: wire.WireMessage) -> None:
    member = Cluster().start().run(100).members[0]
    *answered, refused = answers_until_refused(member, question)
    cost = BLOCKS_QUESTION + sum(len(wire.encode(message)) for message in answered[0])
    assert len(answered) == -(-serving.BURST // cost)
    assert all(answer == answered[0] for answer in answered)
    assert bool(answered[0]) != isinstance(question, SnapshotRequest)
    assert refused == []


@pytest.mark.usefixtures("small_budgets")
def test_entries_of_a_snapshot_cost_their_bytes() -> None:
    cluster = Cluster().start()
    for author in range(1_500):
        cluster.submit(author % 4, encode_batch(author, 0, b""))
        if author % 100 == 0:
            cluster.round()
    member = cluster.members[0]
    cluster.deliver(3, 0, wire.encode(SnapshotRequest(0)))
    cluster.run_until(lambda: bool(member.replica._snapshots._ready))
    (height,) = member.replica._snapshots._ready
    *answered, _ = answers_until_refused(member, EntriesRequest(height, b""))
    (entries,) = answered[0]
    assert isinstance(entries, SnapshotEntries)
    size = len(wire.encode(entries))
    assert len(answered) == -(-serving.BURST // (BLOCKS_QUESTION + size))
    assert len(answered) < -(-serving.BURST // BLOCKS_QUESTION)
