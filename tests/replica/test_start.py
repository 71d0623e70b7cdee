"""A replica starts only from its own record and a sound store; otherwise it says what to do."""

from __future__ import annotations

import msgspec
import pytest
from tests.replica.driver import Cluster, Committee, Member, MemoryStore, batches, counting

from parley.consensus.errors import SafetyRecordError
from parley.ledger import layout
from parley.ledger.layout import Head, StoredBlock
from parley.replica.beginning import provision
from parley.replica.chain import Chain, StoreError, Unusable
from parley.replica.ports import Results
from parley.replica.replica import Replica
from parley.sim.counter import Counter, mounted


def after_a_run() -> Member:
    """A member with a chain, uncommitted blocks and a batch that waits."""
    cluster = Cluster().start()
    for batch in batches(author=0, count=10):
        cluster.submit(0, batch)
    cluster.run(60)
    cluster.absent = {0, 1, 2}
    cluster.submit(3, batches(author=3, count=1)[0])
    return cluster.members[3]


def boot_with_record_of(other: Member, *, into: Member) -> Replica:
    committee = into.committee
    return Replica(
        committee.config(into.index),
        committee.authority.signer(into.index),
        committee.authority.scheme(),
        mounted(),
        record=other.record(),
        store=into.store,
    )


@pytest.mark.parametrize(
    "other",
    [
        Member(Committee(), 2, mounted()),
        Member(Committee(chain=bytes(32)), 3, mounted()),
        Member(Committee(epoch=1), 3, mounted()),
    ],
    ids=["member", "chain", "epoch"],
)
def test_a_record_of_another_member_chain_or_epoch_is_refused_with_advice(other: Member) -> None:
    own = Member(Committee(), 3, mounted())
    with pytest.raises(SafetyRecordError, match="its own data directory"):
        boot_with_record_of(other, into=own)


class OtherGenesis(Counter):
    def genesis(self) -> Results:
        outcome = super().genesis()
        return Results(outcome.writes, bytes(32), outcome.receipts, outcome.settled)


def test_a_record_of_another_genesis_is_refused_with_advice() -> None:
    own = Member(Committee(), 3, counting(OtherGenesis()))
    with pytest.raises((SafetyRecordError, StoreError)):
        boot_with_record_of(own, into=Member(Committee(), 3, mounted()))


def test_a_store_of_another_chain_is_refused_with_advice() -> None:
    own, other = Member(Committee(), 3, mounted()), Member(Committee(chain=bytes(32)), 3, mounted())
    own.store = other.store
    with pytest.raises(StoreError):
        own.boot()


def test_a_first_block_that_names_another_chain_is_damage_if_the_last_one_does_not() -> None:
    member = after_a_run()
    foreign = Member(Committee(chain=bytes(32)), 3, mounted())
    member.store.entries[layout.committed(0)] = foreign.store.entries[layout.committed(0)]
    with pytest.raises(Unusable, match="is not the block of the genesis file"):
        member.boot()


def test_an_empty_store_is_refused_with_advice() -> None:
    member = after_a_run()
    member.store.entries.clear()
    with pytest.raises(StoreError, match="Repair the disk"):
        member.boot()


@pytest.mark.parametrize("prefix", [b"m/head", b"c/", b"r/"])
def test_a_missing_entry_is_refused_with_advice(prefix: bytes) -> None:
    member = after_a_run()
    chain = Chain(member.store)
    key = {
        b"m/head": b"m/head",
        b"c/": b"c/" + chain.head().height.to_bytes(8, "big"),
        b"r/": b"r/" + chain.head().height.to_bytes(8, "big"),
    }[prefix]
    del member.store.entries[key]
    with pytest.raises(StoreError, match="Repair the disk") as error:
        member.boot()
    assert prefix.decode() in str(error.value)


@pytest.mark.parametrize("prefix", [b"m/", b"c/", b"r/"])
@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x90", b"\x93\x01\x01\x01"])
def test_a_damaged_entry_is_refused_with_advice(prefix: bytes, damage: bytes) -> None:
    member = after_a_run()
    assert list(member.store.scan(prefix))
    for key, _ in list(member.store.scan(prefix)):
        member.store.entries[key] = damage
    with pytest.raises(StoreError, match="Repair the disk"):
        boot_and_start(member)


@pytest.mark.parametrize("prefix", [b"u/", b"p/", b"b/"])
@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x90", b"\x93\x01\x01\x01"])
def test_what_others_have_or_the_caretaker_mends_does_not_keep_a_broker_from_starting(
    prefix: bytes, damage: bytes
) -> None:
    member = after_a_run()
    assert list(member.store.scan(prefix))
    for key, _ in list(member.store.scan(prefix)):
        member.store.entries[key] = damage
    boot_and_start(member)
    taken_up = bool(member.replica._pool.payload(()))
    assert taken_up is (prefix == b"u/"), "a batch that waits is taken up if it is whole"


def test_an_uncommitted_block_with_other_batches_than_its_header_commits_to_is_none() -> None:
    """Its id is the header's alone: it would be executed as it is."""
    member = after_a_run()
    block = Chain(member.store).uncommitted()[-1]
    other = StoredBlock(block.header, (*block.batches, bytes(32)))
    member.store.entries[layout.uncommitted(block.id)] = msgspec.msgpack.encode(other)
    assert Chain(member.store).uncommitted_block(block.id) is None
    boot_and_start(member)
    assert member.replica._machine.block(block.id) is None


def test_a_head_whose_history_is_damaged_is_refused_with_advice() -> None:
    member = after_a_run()
    head = Chain(member.store).head()
    member.store.entries[b"m/head"] = msgspec.msgpack.encode(Head(head.height, head.history[:-1]))
    with pytest.raises(StoreError, match="Repair the disk"):
        member.boot()


def boot_and_start(member: Member) -> None:
    member.boot()
    member.replica.start(0)


def test_a_new_broker_has_a_record_per_slot_and_the_genesis_block() -> None:
    committee = Committee()
    records, write = provision(committee.config(0), Counter())
    store = MemoryStore()
    store.write(write.entries)
    assert write.sync
    assert len(set(records)) == 2
    chain = Chain(store)
    assert chain.head().height == 0
    genesis = chain.block(0)
    assert genesis is not None
    assert genesis.header.state_root == Counter().genesis().state_root
    assert chain.block(1) is None
    assert dict(store.scan(b"s/")) == {b"s/" + key: value for key, value in Counter().genesis().writes}


def test_what_was_stored_is_what_is_loaded() -> None:
    member = after_a_run()
    chain = Chain(member.store)
    height = chain.head().height
    assert height == member.replica.executed_height
    assert [block.height for block in chain.history(2, 0)][-1] == height
    assert set(chain.roots()) <= set(range(height + 1))
    (waiting,) = chain.waiting()
    assert chain.batch(waiting[0]) == waiting[1].data == batches(author=3, count=1)[0]
    assert waiting[1].entry == 3
    assert all(block.height > height for block in chain.uncommitted())
    assert chain.batch(bytes(32)) is None


def test_an_older_store_with_a_newer_record_catches_up_again() -> None:
    cluster = Cluster().start().run(50)
    member = cluster.members[1]
    old = dict(member.store.entries)
    height = member.replica.executed_height
    cluster.run(200)
    member.store = MemoryStore(old.items())
    cluster.restart(1)
    assert member.replica.executed_height < height + 3
    cluster.run_until(lambda: cluster.heights()[1] >= height + 10)
    assert member.committed()[: height + 10] == cluster.members[0].committed()[: height + 10]
