"""The disk forgets and tears as real ones do, and no more than that."""

from random import Random

import pytest

from parley.consensus.record import SafetyState, encode_record, recover_record
from parley.consensus.safety import initial_state
from parley.consensus.types import Instance, genesis_block, genesis_qc
from parley.replica.ports import PersistSafety, Write
from parley.sim.disk import Disk

INSTANCE = Instance(bytes(32), 0, 0, 4, 1)
STATE: SafetyState = initial_state(INSTANCE, 0, genesis_qc(INSTANCE, genesis_block(INSTANCE, bytes(32), 0)))


def new_disk() -> Disk:
    return Disk((encode_record(0, STATE), encode_record(1, STATE)), Write(((b"genesis", b"0"),), sync=False))


def put(key: bytes, value: bytes | None, *, sync: bool = False) -> Write:
    return Write(((key, value),), sync)


def entries(disk: Disk) -> dict[bytes, bytes]:
    return dict(disk.scan(b""))


def test_reads_see_every_write_at_once() -> None:
    disk = new_disk()
    disk.write(put(b"a", b"1"))
    disk.write(put(b"a", b"2"))
    disk.write(put(b"b", b"3"))
    disk.write(put(b"b", None))
    assert (disk.get(b"a"), disk.get(b"b")) == (b"2", None)
    assert entries(disk) == {b"a": b"2", b"genesis": b"0"}


def test_scan_returns_one_prefix_in_key_order() -> None:
    disk = new_disk()
    for key in (b"p3", b"q", b"p1", b"o", b"p2", b"p"):
        disk.write(put(key, key))
    assert [key for key, _ in disk.scan(b"p")] == [b"p", b"p1", b"p2", b"p3"]


def test_deleting_what_is_not_there_is_nothing() -> None:
    disk = new_disk()
    disk.write(put(b"x", None, sync=True))
    assert entries(disk) == {b"genesis": b"0"}


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_keeps_all_synced_writes_and_a_prefix_of_the_rest(seed: int) -> None:
    disk = new_disk()
    disk.write(put(b"0", b""))
    disk.write(put(b"1", b"", sync=True))
    for key in (b"2", b"3", b"4"):
        disk.write(put(key, b""))
    disk.crash(Random(seed))
    assert b"".join(sorted(entries(disk))).removesuffix(b"genesis") in {b"01", b"012", b"0123", b"01234"}


def test_every_prefix_can_survive() -> None:
    survivors = set()
    for seed in range(50):
        disk = new_disk()
        disk.write(put(b"1", b""))
        disk.write(put(b"2", b""))
        disk.crash(Random(seed))
        survivors.add(tuple(entries(disk)))
    assert survivors == {(b"genesis",), (b"1", b"genesis"), (b"1", b"2", b"genesis")}


def test_a_write_that_a_crash_interrupts_is_kept_or_lost_as_a_whole() -> None:
    outcomes = set()
    for seed in range(50):
        disk = new_disk()
        disk.crash(Random(seed), Write(((b"1", b""), (b"2", b""), (b"genesis", None)), sync=True))
        outcomes.add(tuple(entries(disk)))
    assert outcomes == {(b"genesis",), (b"1", b"2")}


def test_what_a_crash_undid_stays_undone() -> None:
    disk = new_disk()
    disk.write(put(b"lost", b""))
    while disk.get(b"lost") is not None:
        disk = new_disk()
        disk.write(put(b"lost", b""))
        disk.crash(Random(1))
    disk.write(put(b"next", b"", sync=True))
    disk.crash(Random(2))
    assert entries(disk) == {b"genesis": b"0", b"next": b""}


@pytest.mark.parametrize("seed", range(100))
def test_a_torn_record_is_the_new_one_or_the_one_before(seed: int) -> None:
    disk = new_disk()
    disk.persist(PersistSafety(0, encode_record(2, STATE)))
    disk.crash(Random(seed), PersistSafety(1, encode_record(3, STATE)))
    sequence, _ = recover_record(disk.slots, "here")
    assert sequence in {2, 3}


def test_tearing_leaves_every_kind_of_damage() -> None:
    old, new = encode_record(1, STATE), encode_record(3, STATE)
    kinds = set()
    for seed in range(200):
        disk = new_disk()
        disk.crash(Random(seed), PersistSafety(1, new))
        kinds |= {_damage(copy, old, new) for copy in disk.slots[1]}
    assert kinds == {"old", "new", "cut", "damaged"}


@pytest.mark.parametrize("seed", range(50))
def test_a_crash_tears_one_copy_at_most_since_they_are_written_one_after_the_other(seed: int) -> None:
    old, new = encode_record(1, STATE), encode_record(3, STATE)
    disk = new_disk()
    disk.crash(Random(seed), PersistSafety(1, new))
    first, second = disk.slots[1]
    assert second == old or first == new
    assert sum(copy not in (old, new) for copy in (first, second)) <= 1


def test_a_flipped_bit_stays_flipped_and_all_else_as_it_was() -> None:
    disk = new_disk()
    disk.write(put(b"a", b"value", sync=True))
    assert disk.flip(b"a", Random(1))
    damaged = disk.get(b"a")
    assert damaged is not None
    assert sum((x ^ y).bit_count() for x, y in zip(damaged, b"value", strict=True)) == 1
    disk.crash(Random(1))
    assert entries(disk) == {b"a": damaged, b"genesis": b"0"}


def test_only_what_lies_on_the_disk_is_flipped() -> None:
    disk = new_disk()
    disk.write(put(b"on its way", b"1"))
    disk.write(put(b"genesis", b"1"))
    assert not disk.flip(b"on its way", Random(1))
    assert not disk.flip(b"genesis", Random(1))
    assert not disk.flip(b"nothing", Random(1))


def _damage(copy: bytes, old: bytes, new: bytes) -> str:
    if copy in (old, new):
        return "old" if copy == old else "new"
    return "cut" if len(copy) < len(new) else "damaged"
