"""A broker that started from a snapshot gets all older records from others, whoever lies, and goes on after a restart."""

from __future__ import annotations

import msgspec
import pytest
from tests.replica.care import audit, care, carry, copied, fire_next, flipped, names
from tests.replica.driver import Cluster, Member
from tests.replica.test_caretaker import lie, tampering
from tests.replica.test_erasure import retained

from parley.application.keeping import Keeper
from parley.application.machine import Machine
from parley.applications import DATA_SHARD
from parley.consensus.types import Block
from parley.crypto import merkle
from parley.crypto.encoding import u64
from parley.ledger import layout
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.replica import backfill, wire
from parley.replica.chain import Mark
from parley.replica.ports import Mounted
from parley.replica.records import Sound
from parley.sync.messages import Records, RecordsRequest

KEPT = 8  # blocks below the snapshot that consensus needs


def joined(cluster: Cluster, *, bodies: bool = False) -> Member:
    """The first member as if it had just fetched the state of its last height."""
    member = cluster.members[0]
    entries, height = member.store.entries, member.replica.executed_height
    gone = [layout.committed(h) for h in range(1, height - KEPT)]
    gone += [layout.roots(h) for h in range(1, height - KEPT)]
    gone += [key for kind in (b"e/", b"h/", layout.INDEX) for key in entries if key.startswith(kind)]
    gone += [] if bodies else [key for key in entries if key.startswith(b"b/")]
    for key in gone:
        del entries[key]
    entries[layout.BACKFILL] = u64(height + 1)
    member.boot()
    cluster.start()
    cluster.outbox.messages.clear()
    return member


def is_filled(member: Member) -> bool:
    return layout.BACKFILL not in member.store.entries


def differs(member: Member, before: dict[bytes, bytes]) -> set[bytes]:
    after = member.store.entries
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.mark.parametrize("bodies", [False, True])
def test_everything_below_a_snapshot_comes_back(bodies: bool) -> None:
    cluster = copied()
    before = dict(cluster.members[0].store.entries)
    member = joined(cluster, bodies=bodies)
    care(cluster, 0, lambda: is_filled(member))
    # What no header names nobody can give back, and nobody needs.
    assert {key[:2] for key in differs(member, before)} <= {b"r/"}
    assert audit(member).first_fault is None
    assert not member.found


def test_it_goes_on_where_it_was_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.replica.records.MAX_ANSWER", 40 * 1024)  # some four records
    cluster = copied()
    member = joined(cluster, bodies=True)
    asked: list[int] = []
    allowed, answers = 3, 0

    def carries(sender: int, _to: int, data: bytes) -> bool:
        nonlocal answers
        message = wire.decode(data)
        if sender == 0 and isinstance(message, RecordsRequest):
            asked.extend(message.heights)
        answers += isinstance(message, Records)
        return not isinstance(message, Records) or answers <= allowed

    cluster.outbox.carries = carries
    care(cluster, 0, lambda: answers >= allowed)
    caretaker_steps(cluster, 1)
    reached = int.from_bytes(member.store.entries[layout.BACKFILL], "big")
    assert 1 < reached < member.replica.executed_height - 4
    asked.clear()
    allowed = 1_000
    cluster.restart(0)
    cluster.outbox.messages.clear()
    care(cluster, 0, lambda: is_filled(member))
    assert max(asked) == reached - 1
    assert audit(member).first_fault is None


@pytest.mark.parametrize("value", [b"", u64(0), u64(2**40), b"longer than a height"])
def test_a_damaged_mark_makes_it_look_at_everything(value: bytes) -> None:
    cluster = copied()
    member = joined(cluster)
    member.store.entries[layout.BACKFILL] = value
    cluster.restart(0)
    cluster.outbox.messages.clear()
    care(cluster, 0, lambda: is_filled(member))
    assert audit(member).first_fault is None


def test_what_was_left_of_an_older_life_is_replaced_if_it_is_wrong() -> None:
    cluster = copied()
    member = cluster.members[0]
    wrong = {key: flipped(value, -1) for key, value in member.store.scan(b"e/")}
    joined(cluster)
    member.store.entries.update(wrong)
    care(cluster, 0, lambda: is_filled(member))
    assert audit(member).first_fault is None


def test_receipts_of_an_older_life_are_compared_with_the_history() -> None:
    """All else of it is here, and they can be read, but they are other ones."""
    cluster = copied()
    member = cluster.members[0]
    rest = {**dict(member.store.scan(b"c/")), **dict(member.store.scan(b"h/"))}
    right = dict(member.store.scan(b"e/"))
    joined(cluster, bodies=True)
    wrong = [layout.decode_receipts(value) for value in right.values()]
    forged = [layout.encode(tuple(leaf + b"\0" for leaf in leaves)) for leaves in wrong]
    member.store.entries.update(rest)
    member.store.entries.update(zip(right, forged, strict=True))
    filling = member.replica._caretaker._backfill
    trusted = member.replica._caretaker._memory.trusted()
    list(filling.found_here(trusted))
    highest = max(
        height
        for height in range(1, trusted.size + 1)
        if layout.decode_receipts(right[layout.receipts(height)])
    )
    assert filling.heights()[0] == highest


def test_a_record_that_an_answer_leaves_out_is_asked_for_again() -> None:
    cluster = copied()
    before = dict(cluster.members[0].store.entries)
    member = joined(cluster, bodies=True)

    def gap(message: object) -> object:
        assert isinstance(message, Records)
        return Records(message.size, message.records[:1] + message.records[2:])

    tampering(cluster, {1, 2, 3}, gap)
    care(cluster, 0, lambda: is_filled(member), steps=2_000)
    assert not differs(member, before) - {key for key in before if key.startswith(b"r/")}


def without_bodies(cluster: Cluster) -> set[bytes]:
    """No batch reaches anybody; returns which were asked for."""
    asked: set[bytes] = set()

    def carries(_sender: int, _to: int, data: bytes) -> bool:
        message = wire.decode(data)
        if isinstance(message, BatchesRequest):
            asked.update(message.digests)
        return not isinstance(message, BatchMessage)

    cluster.outbox.carries = carries
    return asked


def test_it_is_not_done_and_its_mark_stays_above_a_block_whose_bodies_are_missing() -> None:
    cluster = copied()
    before = dict(cluster.members[0].store.entries)
    member = joined(cluster)
    without_bodies(cluster)
    caretaker_steps(cluster, 100)
    mark = int.from_bytes(member.store.entries[layout.BACKFILL], "big")
    blocks = {block.height: block for block in cluster.members[1].blocks()}
    assert mark == 1 + max(height for height, block in blocks.items() if block.batches)
    cluster.outbox.carries = lambda _sender, _to, _data: True
    cluster.restart(0)
    cluster.outbox.messages.clear()
    care(cluster, 0, lambda: is_filled(member))
    assert {key[:2] for key in differs(member, before)} <= {b"r/"}


def test_a_batch_that_came_again_is_not_awaited_with_the_block_that_repeats_it() -> None:
    """It had its place in an earlier block, whose time is over: nobody has its body any more."""
    shard, over, _ = retained()
    cluster, key = shard.cluster, layout.batch(over.digest)
    cluster.members[1].store.entries.update(
        {
            key: over.body,
            layout.waiting(over.digest): msgspec.msgpack.encode(Mark(1, 10**6, b"")),
        }
    )
    cluster.restart(1)
    cluster.run_until(lambda: sum(over.digest in b.batches for b in cluster.members[0].blocks()) == 2)
    cluster.run_until(lambda: not any(key in member.store.entries for member in cluster.members))
    filling = copied(shard)
    member = joined(filling)
    care(filling, 0, lambda: is_filled(member))
    assert key not in member.store.entries


def test_bodies_that_did_not_come_are_asked_for_again() -> None:
    cluster = copied()
    member = joined(cluster)
    asked = without_bodies(cluster)
    caretaker_steps(cluster, 100)
    assert asked
    caretaker = member.replica._caretaker
    list(caretaker._backfill.settling())
    assert not [block for block in caretaker._backfill.settling() if isinstance(block, Block)]
    list(caretaker._backfill.ask_again())
    again = [block for block in caretaker._backfill.settling() if isinstance(block, Block)]
    assert {name for block in again for name in block.batches} <= asked
    assert again


def test_few_blocks_wait_for_their_bodies_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "WINDOW", 6)
    cluster = copied()
    member = joined(cluster)
    without_bodies(cluster)
    caretaker_steps(cluster, 200)
    assert 0 < len(member.replica._caretaker._backfill._waiting) <= 6


def test_bodies_of_few_blocks_are_asked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "FETCHES", 2)
    cluster = copied()
    joined(cluster)
    asked = without_bodies(cluster)
    caretaker_steps(cluster, 200)
    newest = [block for block in cluster.members[1].blocks() if block.batches][::-1]
    assert len(newest) > 4
    assert asked
    assert asked <= {name for block in newest[:2] for name in block.batches}


def test_nothing_is_asked_for_before_the_last_answer_is_taken() -> None:
    cluster = copied()
    member = joined(cluster)
    filling = member.replica._caretaker._backfill
    assert filling.heights()
    block = member.blocks()[-1]
    filling.arrived([Sound(block, (), merkle.Proof(0, 1, ()), b"")])
    assert filling.heights() == ()


def test_liars_are_passed_over() -> None:
    cluster = copied()
    member = joined(cluster)
    tampering(cluster, {1, 2}, lie)
    care(cluster, 0, lambda: is_filled(member))
    assert audit(member).first_fault is None
    assert {refused.sender for refused in member.refused} == {1, 2}


def test_bodies_that_are_not_kept_any_more_are_not_asked_for() -> None:
    class Forgetful(Keeper):
        def keeps(self, leaf: bytes, state: object) -> bool:
            del leaf, state
            return False

    cluster = copied()
    machine, _ = cluster.members[0].application
    assert isinstance(machine, Machine)
    cluster.members[0].application = Mounted(machine, Forgetful(DATA_SHARD, machine))
    member = joined(cluster)
    care(cluster, 0, lambda: is_filled(member))
    assert not list(member.store.scan(b"b/"))


def test_one_that_has_no_old_records_itself_shows_none() -> None:
    cluster = copied()
    member = joined(cluster)
    size = member.replica.executed_height
    answer, found = member.replica._caretaker.answer_records(RecordsRequest(size, (1, 2, size), 0))
    assert answer == Records(size, ())
    assert not found


def test_receipts_that_do_not_fit_a_message_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "parley.replica.records.MAX_ANSWER", 8 * 1024 + 360
    )  # a header, a path, and little more
    monkeypatch.setattr("parley.replica.records.MIN_PART", 1)
    cluster = copied()
    before = dict(cluster.members[0].store.entries)
    member = joined(cluster)
    parts: set[int] = set()

    def carries(_sender: int, _to: int, data: bytes) -> bool:
        message = wire.decode(data)
        parts.update(record.first for record in message.records) if isinstance(message, Records) else None
        return True

    cluster.outbox.carries = carries
    care(cluster, 0, lambda: is_filled(member), steps=2_000)
    assert parts != {0}
    assert not differs(member, before) - {key for key in before if key.startswith(b"r/")}


def test_parts_that_bring_next_to_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.replica.records.MAX_ANSWER", 9 * 1024)
    cluster = copied()
    member = joined(cluster)

    def short(message: object) -> object:
        assert isinstance(message, Records)
        record = message.records[0]
        part = b"".join(record.receipts)[:1] if record.count > 1 else b"\x90"
        return Records(message.size, (msgspec.structs.replace(record, receipts=(part,)),))

    tampering(cluster, {1}, short)
    cluster.absent = {2, 3}
    caretaker_steps(cluster, 20)
    assert {refused.sender for refused in member.refused} == {1}
    assert not is_filled(member)
    assert not names(member, mended=True)


def caretaker_steps(cluster: Cluster, count: int) -> None:
    """And all that follows at once."""
    while (count := count - fire_next(cluster, 0)) >= 0:
        continue
    carry(cluster)
