"""Looking after the store is done in small steps: none of them grows with what a client has put into one block."""

from __future__ import annotations

import pytest
from tests.application.world import ADMINS, ORGANISATIONS, registration
from tests.ledger.shard import ALICE, Shard
from tests.replica.care import care, copied, fire_next, passes
from tests.replica.driver import Member, MemoryStore
from tests.replica.test_backfill import is_filled, joined

from parley.ledger import layout
from parley.modules.topics.operations import CreateTopic, Policy

MANY = 150  # batches in one block
READS = 300  # of the store in one step, at most: some parts of a few dozen leaves


@pytest.fixture(scope="module")
def shard() -> Shard:
    """A client has sent many batches with a wrong sequence, each in a session of its own, and they were ordered twice."""
    shard = Shard()
    admin, make = ADMINS[ORGANISATIONS[0]], shard.maker
    shard.order(make.control(admin, registration(make.chain, ALICE)))
    shard.order(make.control(admin, CreateTopic("wards", 1, Policy(), "", "")))
    sessions = (number.to_bytes(16, "big") for number in range(MANY))
    shard.order(*(make.publication(ALICE, "wards", session=session, sequence=7) for session in sessions))
    ordered = [len(block.batches) for block in shard.cluster.members[0].blocks()]
    shard.cluster.run_until(
        lambda: all(sum(receipts(member)) >= 2 * MANY for member in shard.cluster.members)
    )
    shard.cluster.run_until(lambda: len({one.replica.executed_height for one in shard.cluster.members}) == 1)
    assert max(ordered) > MANY // 2
    return shard


def receipts(member: Member) -> list[int]:
    return [len(layout.decode_receipts(value)) for _, value in member.store.scan(b"e/")]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often stores were read since the first number was set to 0."""
    count = [0]
    get = MemoryStore.get

    def counted(store: MemoryStore, key: bytes) -> bytes | None:
        count[0] += 1
        return get(store, key)

    monkeypatch.setattr(MemoryStore, "get", counted)
    return count


def test_the_search_for_damage_looks_at_a_block_of_many_refused_batches_in_small_steps(
    shard: Shard, reads: list[int]
) -> None:
    cluster = shard.cluster
    member = cluster.members[0]
    done = passes(member, 2)
    most = 0
    cluster.outbox.messages.clear()
    while not done():
        reads[0] = 0
        fire_next(cluster, 0)
        most = max(most, reads[0])
    assert most <= READS
    assert not member.found


def test_a_block_of_many_refused_batches_is_filled_in_in_small_steps(shard: Shard, reads: list[int]) -> None:
    cluster = copied(shard)
    member = joined(cluster, bodies=True)
    counted: list[int] = []

    def filled() -> bool:
        counted.append(reads[0])
        reads[0] = 0
        return is_filled(member)

    care(cluster, 0, filled)
    assert max(counted[1:]) <= READS
