"""The pool keeps what it promised, shares a block fairly, and never grows past its limits."""

from __future__ import annotations

import pytest
from tests.mempool.pools import (
    ME,
    ROOMY,
    SIZE,
    TIGHT,
    Disk,
    block_of,
    body,
    declined,
    new_pool,
    refusal,
    submit,
)

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Broadcast
from parley.consensus.types import MAX_BATCHES
from parley.ledger.application import AdmittedBatch
from parley.mempool import pool as pool_module
from parley.mempool.messages import MAX_BATCH_BYTES, BatchMessage
from parley.mempool.pool import (
    SLACK,
    Intake,
    Limits,
    Pending,
    Pool,
    Ready,
    StoreBatch,
    batch_digest,
)
from parley.mempool.turns import FIRST_HOLD
from parley.model.refusals import BadSignature, Oversized, Unsupported

# -- taking in -----------------------------------------------------------------------------------------------------


def test_a_batch_of_a_client_is_stored_and_synced_before_it_is_announced_t20() -> None:
    data = body(1)
    effects = submit(new_pool(), data, 7)
    assert effects == [
        StoreBatch(batch_digest(data), Pending(ME, 7, data), sync=True, waits=True),
        Broadcast(BatchMessage(data)),
    ]


def test_a_submitted_batch_that_a_block_waits_for_is_stored_then_ready_then_announced_t20() -> None:
    pool, data = new_pool(), body(1)
    block = block_of(data)
    pool.fetch(block, committed=False)
    kinds = [type(effect) for effect in submit(pool, data)]
    assert kinds == [StoreBatch, Ready, Broadcast]


def test_an_announced_batch_is_stored_without_waiting_for_the_disk() -> None:
    data = body(1)
    assert new_pool().receive(2, data, 3) == [
        StoreBatch(batch_digest(data), Pending(2, 3, data), sync=False, waits=True)
    ]


def test_a_batch_that_a_vote_waits_for_is_synced_before_the_block_is_ready_t20() -> None:
    pool, data = new_pool(), body(1)
    block = block_of(data)
    pool.fetch(block, committed=False)
    assert pool.receive(1, data, 0) == [
        StoreBatch(batch_digest(data), Pending(1, 0, data), sync=True, waits=False),
        Ready(block.id),
    ]


@pytest.mark.parametrize("size", [0, MAX_BATCH_BYTES + 1])
def test_empty_and_oversized_batches_are_refused_and_leave_nothing(size: int) -> None:
    pool = new_pool()
    assert refusal(pool, 1, bytes(size)) is Reason.OVERSIZED
    with pytest.raises(Oversized):
        submit(pool, bytes(size))
    assert pool.payload(()) == ()


def test_the_largest_batch_is_taken() -> None:
    assert submit(new_pool(), bytes(MAX_BATCH_BYTES))


def test_a_batch_that_waits_is_refused_as_replayed_whoever_brings_it() -> None:
    pool, data = new_pool(), body(1)
    submit(pool, data)
    assert refusal(pool, 2, data) is Reason.REPLAYED
    assert declined(pool, data) is Intake.KNOWN
    assert pool.payload(()) == (batch_digest(data),)


def test_a_settled_batch_is_refused_and_an_unsettled_one_waits_on_for_a_while_t14() -> None:
    pool, done, early = new_pool(), body(1), body(2)
    pool.receive(1, done, 0)
    pool.receive(1, early, 0)
    names = batch_digest(done), batch_digest(early)
    assert pool.settle(names, {names[0]}, 1) == names[:1]
    assert refusal(pool, 1, done) is Reason.REPLAYED
    assert pool.payload(()) == ()
    pool.settle((), (), 1 + FIRST_HOLD)
    assert pool.payload(()) == names[1:]


def test_a_batch_that_is_ordered_too_early_again_and_again_waits_twice_as_long_each_time() -> None:
    pool, early = new_pool(), body(2)
    name = batch_digest(early)
    pool.receive(1, early, 0)
    proposed = []
    for height in range(1, 40):
        chosen = pool.payload(())
        proposed += [height] if chosen else []
        pool.settle(chosen, (), height)
    assert proposed == [1, 4, 9, 18, 35]
    assert pool.settle((name,), {name}, 40) == (name,)


def test_a_client_that_sends_a_held_batch_again_ends_its_hold() -> None:
    pool, early = new_pool(), body(2)
    pool.receive(1, early, 0)
    pool.settle((batch_digest(early),), (), 1)
    assert pool.payload(()) == ()
    assert declined(pool, early, 1) is Intake.KNOWN
    assert pool.payload(()) == (batch_digest(early),)


def test_a_settled_batch_is_taken_again_when_a_block_needs_it() -> None:
    pool, data = new_pool(), body(1)
    name = batch_digest(data)
    pool.settle((name,), {name}, 1)
    pool.fetch(block_of(data), committed=False)
    assert Ready(block_of(data).id) in pool.receive(3, data, 1)


def test_only_so_many_settled_digests_are_remembered_the_oldest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "REMEMBERED", 2)
    pool = new_pool()
    bodies = [body(number) for number in range(3)]
    for data in bodies:
        pool.settle((batch_digest(data),), {batch_digest(data)}, 1)
    pool.receive(1, bodies[0], 1)
    assert refusal(pool, 1, bodies[1]) is Reason.REPLAYED
    assert refusal(pool, 1, bodies[2]) is Reason.REPLAYED


# -- quotas ----------------------------------------------------------------------------------------------------------


def test_an_entry_broker_may_have_so_many_batches_waiting_and_the_others_are_not_hurt() -> None:
    pool = new_pool(TIGHT)
    for number in range(SLACK * 3):
        pool.receive(1, body(number), 0)
    assert refusal(pool, 1, body(10)) is Reason.QUOTA
    pool.receive(2, body(10), 0)
    submit(pool, body(11))


def test_an_entry_broker_may_have_so_many_bytes_waiting() -> None:
    pool = new_pool(TIGHT)
    pool.receive(1, body(0, SLACK * 100 - 10), 0)
    assert refusal(pool, 1, body(1, 11)) is Reason.QUOTA
    pool.receive(1, body(2, 10), 0)


def test_what_this_broker_takes_from_its_clients_is_within_half_of_what_the_others_take_from_it() -> None:
    """What left their pools a moment ago may still wait in others: nobody refuses there what was promised here."""
    others = new_pool(TIGHT)
    for round_ in range(SLACK):
        mine = new_pool(TIGHT)
        for number in range(3):
            data = body(10 * round_ + number)
            submit(mine, data)
            assert others.receive(1, data, 0)
        assert declined(mine, body(10 * round_ + 9)) is Intake.FULL
    assert refusal(others, 1, body(99)) is Reason.QUOTA


def test_clients_of_this_broker_may_have_so_many_bytes_waiting() -> None:
    pool = new_pool(TIGHT)
    submit(pool, body(0, 90))
    assert declined(pool, body(1, 11)) is Intake.FULL
    submit(pool, body(2, 10))


def test_ordering_and_expiry_give_the_quota_back() -> None:
    pool = new_pool(TIGHT)
    for number in range(3):
        pool.receive(1, body(number, 30 * SLACK), height=number)
    pool.settle((batch_digest(body(2, 30 * SLACK)),), {batch_digest(body(2, 30 * SLACK))}, 3)
    pool.receive(1, body(3, 40 * SLACK), 3)
    assert refusal(pool, 1, body(4)) is Reason.QUOTA
    assert pool.settle((), (), 6) == (batch_digest(body(0, 30 * SLACK)),)
    pool.receive(1, body(4, 30 * SLACK), 6)


@pytest.mark.parametrize("filler", [[body(number) for number in range(SLACK * 3)], [body(0, SLACK * 100)]])
def test_a_wanted_batch_is_taken_in_spite_of_both_quotas(filler: list[bytes]) -> None:
    pool, data = new_pool(TIGHT), body(99)
    for waiting in filler:
        pool.receive(1, waiting, 0)
    assert refusal(pool, 1, data) is Reason.QUOTA
    block = block_of(data)
    pool.fetch(block, committed=False)
    assert Ready(block.id) in pool.receive(1, data, 0)


def test_a_fetched_batch_is_had_from_memory_until_its_block_is_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = body(1), body(2), body(3)
    monkeypatch.setattr(pool_module, "FETCHED_BYTES", len(first) + len(second))
    pool = new_pool()
    pool.fetch(block_of(first, second, third), committed=False)
    for data in (first, second):
        pool.receive(1, data, 0)
    assert [pool.body(batch_digest(data)) for data in (first, second)] == [first, second]
    pool.receive(1, third, 0)  # the oldest makes room
    assert [pool.body(batch_digest(data)) for data in (first, second, third)] == [None, second, third]
    assert len(pool) == pool.size == 0
    pool.settle([batch_digest(second)], [batch_digest(second)], 1)
    assert [pool.body(batch_digest(data)) for data in (second, third)] == [None, third]
    pool.settle([batch_digest(third)], [], 2)
    assert pool.body(batch_digest(third)) is None
    pool.fetch(block_of(body(4)), committed=True)  # it may be an old one, whose body is erased soon
    pool.receive(1, body(4), 2)
    assert pool.body(batch_digest(body(4))) is None


# -- proposing -----------------------------------------------------------------------------------------------------------


def test_a_block_takes_one_batch_of_each_entry_broker_in_turn_oldest_first() -> None:
    pool = new_pool()
    for entry, count in ((1, 50), (2, 3), (3, 1)):
        for number in range(count):
            pool.receive(entry, body(entry * 100 + number), 0)
    entries = [int.from_bytes(data[:4], "big") for data in bodies_of(pool, pool.payload(()))]
    assert sorted(entries[:3]) == [100, 200, 300]
    assert sorted(entries[3:5]) == [101, 201]
    assert sorted(entries[5:7]) == [102, 202]
    assert entries[7:] == [100 + number for number in range(3, 50)]


def test_a_payload_has_no_more_batches_than_a_block_may() -> None:
    pool = new_pool(Limits(block_batches=3))
    for number in range(5):
        pool.receive(1, body(number), 0)
    assert len(pool.payload(())) == 3


def test_the_entry_broker_that_comes_first_changes_from_block_to_block() -> None:
    pool = new_pool(Limits(block_bytes=10))
    submit(pool, body(0))
    for entry in (1, 2, 3):
        pool.receive(entry, body(entry), 0)
    chosen = [bodies_of(pool, pool.payload(())) for _ in range(2 * SIZE)]
    assert sorted(chosen[:SIZE]) == sorted([data] for data in map(body, range(SIZE)))
    assert chosen[:SIZE] == chosen[SIZE:]


def test_a_flood_of_one_entry_broker_does_not_keep_the_others_out_of_a_full_block() -> None:
    pool = new_pool(Limits(block_bytes=100))
    for number in range(1_000):
        pool.receive(1, body(number), 0)
    pool.receive(3, body(5_000), 0)
    assert body(5_000) in bodies_of(pool, pool.payload(()))


def test_batches_that_are_in_the_chain_already_are_left_out() -> None:
    pool = new_pool()
    for number in range(4):
        pool.receive(1 + number % 2, body(number), 0)
    exclude = frozenset({batch_digest(body(0)), batch_digest(body(3))})
    assert set(bodies_of(pool, pool.payload(exclude))) == {body(1), body(2)}
    assert len(pool.payload(())) == 4


def test_a_block_holds_at_most_its_number_of_batches() -> None:
    pool = new_pool()
    for number in range(MAX_BATCHES + 10):
        pool.receive(1, body(number), 0)
    assert len(pool.payload(())) == MAX_BATCHES


def test_a_block_holds_at_most_its_number_of_bytes() -> None:
    pool = new_pool(Limits(block_bytes=100))
    for number in range(20):
        pool.receive(1, body(number, 30), 0)
    assert bodies_of(pool, pool.payload(())) == [body(number, 30) for number in range(3)]


def bodies_of(pool: Pool, names: tuple[bytes, ...]) -> list[bytes]:
    found = [pool.body(name) for name in names]
    return [data for data in found if data is not None]


# -- growing old and starting again --------------------------------------------------------------------------------------


def test_a_batch_expires_after_its_heights_and_may_come_again() -> None:
    pool = new_pool(TIGHT)
    pool.receive(1, body(1), height=2)
    name = batch_digest(body(1))
    assert pool.settle((), (), 7) == ()
    assert pool.settle((), (), 8) == (name,)
    assert pool.body(name) is None
    pool.receive(1, body(1), 8)


def test_a_batch_of_an_abandoned_block_waits_on_t14() -> None:
    pool = new_pool()
    pool.receive(1, body(1), 0)
    block = block_of(body(1))
    assert pool.fetch(block, committed=False) == [Ready(block.id)]
    pool.abandon(block.id)
    assert pool.payload(()) == block.batches


def test_settling_tells_once_which_batches_no_longer_wait() -> None:
    pool = new_pool()
    pool.receive(1, body(1), 0)
    unknown, name = batch_digest(body(2)), batch_digest(body(1))
    assert pool.settle((unknown, name), {name}, 1) == (name,)
    assert pool.settle((unknown, name), {name}, 1) == ()


def test_what_waited_before_a_restart_waits_again_in_its_share_and_order() -> None:
    stores = []
    pool = new_pool(TIGHT)
    for number in range(SLACK * 3):
        stores += pool.receive(1, body(number), number)
    stores += pool.receive(2, body(7), 0)
    again = new_pool(TIGHT)
    again.restore((store.digest, store.pending) for store in stores if isinstance(store, StoreBatch))
    assert set(again.payload(())) == set(pool.payload(()))
    assert refusal(again, 1, body(9)) is Reason.QUOTA
    assert refusal(again, 2, body(7)) is Reason.REPLAYED
    assert again.settle((), (), 6) == pool.settle((), (), 6)


def named_after_its_author(data: bytes) -> AdmittedBatch:
    return AdmittedBatch(batch_digest(data), data[:1], data)


def test_one_author_fills_no_more_than_its_part_of_a_brokers_share() -> None:
    pool = Pool(ME, SIZE, Limits(pending_of_author=2), Disk().written.get, named_after_its_author)
    *bodies, last = (bytes([7, number]) for number in range(SLACK * 2 + 1))
    for data in bodies:
        pool.receive(3, data, 0)
    assert refusal(pool, 3, last) is Reason.QUOTA
    pool.receive(3, bytes([8, 0]), 0)  # another author's
    pool.settle((batch_digest(bodies[0]),), {batch_digest(bodies[0])}, 1)
    assert pool.receive(3, last, 1)


def test_one_author_fills_no_more_than_its_part_of_what_this_broker_takes_from_clients() -> None:
    pool = Pool(ME, SIZE, Limits(pending_of_author=2), Disk().written.get, named_after_its_author)
    for number in range(2):
        submit(pool, bytes([7, number]), admit=named_after_its_author)
    assert declined(pool, bytes([7, 2]), admit=named_after_its_author) is Intake.AUTHOR_FULL
    assert submit(pool, bytes([8, 0]), admit=named_after_its_author)


def test_a_broker_that_announces_a_clients_batches_leaves_its_quota_elsewhere_alone() -> None:
    pool = Pool(ME, SIZE, Limits(pending_of_author=2), Disk().written.get, named_after_its_author)
    for number in range(SLACK * 2):
        pool.receive(3, bytes([7, number]), 0)
    assert refusal(pool, 3, bytes([7, 10])) is Reason.QUOTA
    assert submit(pool, bytes([7, 10]), admit=named_after_its_author)
    assert pool.receive(1, bytes([7, 11]), 0)


def test_a_refusal_without_a_reason_of_its_name_is_counted_as_inadmissible() -> None:
    def admit(data: bytes) -> AdmittedBatch:
        raise Unsupported("batch", digest=data)

    pool = Pool(ME, SIZE, ROOMY, Disk().written.get, admit)
    with pytest.raises(Refused) as refused:
        pool.receive(1, body(1), 0)
    assert (refused.value.reason, refused.value.detail) == (Reason.INADMISSIBLE, Unsupported.code)


def test_a_batch_that_the_application_does_not_admit_is_not_stored() -> None:
    def admit(data: bytes) -> AdmittedBatch:
        raise BadSignature("batch", digest=data)

    pool = Pool(ME, SIZE, ROOMY, Disk().written.get, admit)
    with pytest.raises(Refused) as refused:
        pool.receive(1, body(1), 0)
    assert (refused.value.reason, refused.value.detail) == (Reason.BAD_SIGNATURE, BadSignature.code)
    with pytest.raises(BadSignature):
        submit(pool, body(1), admit=admit)
    assert pool.payload(()) == ()
