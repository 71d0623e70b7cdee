"""The batches that a block names and this broker lacks: who is asked, when all are there, what is too much."""

from __future__ import annotations

import pytest
from tests.mempool.pools import (
    ME,
    TIGHT,
    Disk,
    asked,
    block_of,
    body,
    declined,
    new_pool,
    refusal,
    submit,
    timer_of,
)

from parley.consensus.errors import Reason
from parley.consensus.events import SetTimer
from parley.consensus.types import MAX_BATCHES
from parley.mempool.fetch import FETCH_GRACE, FETCH_RETRY, MAX_DOUBLINGS, MAX_FETCHES
from parley.mempool.pool import (
    SLACK,
    BatchTimer,
    Intake,
    Limits,
    Pending,
    Pool,
    Ready,
    StoreBatch,
    TooLarge,
    batch_digest,
)

# -- fetching ----------------------------------------------------------------------------------------------------------


def test_a_block_whose_batches_are_here_is_ready_at_once() -> None:
    disk = Disk()
    pool, waiting, stored = new_pool(disk=disk), body(1), body(2)
    pool.receive(1, waiting, 0)
    disk.written[batch_digest(stored)] = len(stored)
    block = block_of(waiting, stored)
    assert pool.fetch(block, committed=False) == [Ready(block.id)]
    assert pool.fetch(block_of(), committed=False) == [Ready(block_of().id)]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(
    ("proposer", "order"), [(1, [1, 2, 3]), (2, [2, 3, 1]), (3, [3, 1, 2]), (ME, [1, 2, 3])]
)
def test_the_proposer_is_asked_first_and_then_each_other_member_in_turn_never_oneself(
    proposer: int, order: list[int], committed: bool
) -> None:
    pool = new_pool()
    block = block_of(body(1), proposer=proposer)
    effects = pool.fetch(block, committed=committed)
    if not committed:
        effects = pool.on_timer(timer_of(effects))
    peers: list[int] = []
    for attempt in range(6):
        ((peer, names),) = asked(effects)
        assert names == (batch_digest(body(1)),)
        assert effects[-1] == SetTimer(timer_of(effects), FETCH_RETRY * 2 ** min(attempt, MAX_DOUBLINGS))
        peers.append(peer)
        effects = pool.on_timer(timer_of(effects))
    assert peers == order + order


def test_only_what_is_missing_is_asked_for() -> None:
    pool = new_pool()
    bodies = [body(number) for number in range(MAX_BATCHES)]
    pool.receive(2, bodies[0], 0)
    effects = pool.on_timer(timer_of(pool.fetch(block_of(*bodies), committed=False)))
    names = tuple(batch_digest(data) for data in bodies)
    assert asked(effects) == [(1, names[1:])]
    for data in bodies[1:3]:
        pool.receive(1, data, 0)
    assert asked(pool.on_timer(timer_of(effects))) == [(2, names[3:])]


def test_a_block_that_is_only_voted_for_is_asked_for_after_a_grace_and_a_committed_one_at_once() -> None:
    pool = new_pool()
    voted, final = block_of(body(1), view=1), block_of(body(2), view=2)
    waits = pool.fetch(voted, committed=False)
    assert waits == [SetTimer(BatchTimer(voted.id, 0), FETCH_GRACE)]
    assert asked(pool.fetch(final, committed=True)) == [(1, (batch_digest(body(2)),))]
    assert asked(pool.on_timer(timer_of(waits))) == [(1, (batch_digest(body(1)),))]


def test_what_arrives_within_the_grace_is_not_asked_for() -> None:
    pool = new_pool()
    bodies = [body(number) for number in range(4)]
    some, all_ = block_of(*bodies, view=1), block_of(*bodies[:2], view=2)
    timers = [timer_of(pool.fetch(block, committed=False)) for block in (some, all_)]
    stores = [pool.receive(2, data, 0) for data in bodies[:2]]
    assert stores[1][1:] == [Ready(all_.id)]
    assert asked(pool.on_timer(timers[0])) == [(1, tuple(batch_digest(data) for data in bodies[2:]))]
    assert pool.on_timer(timers[1]) == []


def test_what_is_announced_within_the_grace_is_on_disk_before_the_vote_that_waits_for_it() -> None:
    pool, data = new_pool(), body(1)
    block = block_of(data)
    pool.fetch(block, committed=False)
    stored, ready = pool.receive(2, data, 0)
    assert isinstance(stored, StoreBatch)
    assert stored.sync
    assert ready == Ready(block.id)


def test_a_block_that_is_committed_within_its_grace_is_asked_for_at_once_and_only_once() -> None:
    pool = new_pool()
    block = block_of(body(1))
    grace = timer_of(pool.fetch(block, committed=False))
    effects = pool.fetch(block, committed=True)
    assert asked(effects) == [(1, (batch_digest(body(1)),))]
    assert pool.on_timer(grace) == []
    assert pool.fetch(block, committed=True) == []
    assert asked(pool.on_timer(timer_of(effects))) == [(2, (batch_digest(body(1)),))]


def test_a_block_is_ready_only_when_its_last_batch_is_stored() -> None:
    pool = new_pool()
    bodies = [body(number) for number in range(3)]
    block = block_of(*bodies)
    pool.fetch(block, committed=False)
    ready = [[effect for effect in pool.receive(2, data, 0) if isinstance(effect, Ready)] for data in bodies]
    assert ready == [[], [], [Ready(block.id)]]


def test_one_batch_can_complete_several_blocks() -> None:
    pool, shared, other = new_pool(), body(1), body(2)
    first, second, third = block_of(shared, view=1), block_of(shared, view=2), block_of(shared, other, view=3)
    for block in (first, second, third):
        pool.fetch(block, committed=False)
    effects = pool.receive(1, shared, 0)
    assert effects[1:] == [Ready(first.id), Ready(second.id)]
    assert pool.receive(1, other, 0)[1:] == [Ready(third.id)]


@pytest.mark.parametrize("committed", [False, True])
def test_a_block_that_is_being_fetched_is_not_asked_for_again(committed: bool) -> None:
    pool = new_pool()
    pool.on_timer(timer_of(pool.fetch(block_of(body(1)), committed=False)))
    assert pool.fetch(block_of(body(1)), committed=committed) == []


def test_timers_of_an_older_attempt_of_a_finished_or_unknown_fetch_do_nothing() -> None:
    pool, data = new_pool(), body(1)
    block = block_of(data)
    first = timer_of(pool.fetch(block, committed=False))
    second = timer_of(pool.on_timer(first))
    assert pool.on_timer(first) == []
    pool.receive(1, data, 0)
    assert pool.on_timer(second) == []
    assert pool.on_timer(BatchTimer(bytes(32), 1)) == []


def test_an_abandoned_block_is_no_longer_fetched_and_its_batches_no_longer_wanted() -> None:
    pool, shared, own = new_pool(TIGHT), body(1), body(2)
    gone, kept = block_of(shared, own, view=1), block_of(shared, view=2)
    timer = timer_of(pool.fetch(gone, committed=False))
    pool.fetch(kept, committed=False)
    pool.abandon(gone.id)
    pool.abandon(gone.id)
    pool.abandon(bytes(32))
    assert pool.on_timer(timer) == []
    for number in range(SLACK * 3):
        pool.receive(1, body(10 + number), 0)
    assert refusal(pool, 1, own) is Reason.QUOTA
    assert Ready(kept.id) in pool.receive(1, shared, 0)


@pytest.mark.parametrize("committed", [False, True])
def test_fetches_are_bounded_and_the_oldest_gives_way(committed: bool) -> None:
    pool = new_pool()
    blocks = [block_of(body(number), view=number) for number in range(MAX_FETCHES + 1)]
    timers = [timer_of(pool.fetch(block, committed=committed)) for block in blocks]
    assert pool.on_timer(timers[0]) == []
    assert all(asked(pool.on_timer(timer)) for timer in timers[1:])
    assert pool.fetch(blocks[0], committed=committed)


def test_what_execution_waits_for_does_not_give_way_to_what_votes_wait_for() -> None:
    pool = new_pool()
    needed = timer_of(pool.fetch(block_of(body(0)), committed=True))
    blocks = [block_of(body(number), view=number) for number in range(1, MAX_FETCHES + 1)]
    timers = [timer_of(pool.fetch(block, committed=False)) for block in blocks]
    assert pool.on_timer(timers[0]) == []
    assert asked(pool.on_timer(needed))


# -- batches that only a block needs -----------------------------------------------------------------------------------


def test_a_fetched_batch_takes_no_place_in_the_pool_and_is_charged_to_nobody() -> None:
    disk = Disk()
    pool, data = new_pool(TIGHT, disk), body(1)
    pool.fetch(block_of(data), committed=False)
    disk.write(pool.receive(1, data, 0))
    assert pool.payload(()) == ()
    for number in range(SLACK * 3):
        pool.receive(1, body(10 + number), 0)
    assert refusal(pool, 1, body(99)) is Reason.QUOTA


def test_blocks_that_come_to_nothing_leave_nothing_in_the_pool() -> None:
    pool = new_pool(TIGHT)
    for view in range(20):
        bodies = [body(100 * view + number) for number in range(3)]
        block = block_of(*bodies, view=view)
        pool.fetch(block, committed=False)
        for data in bodies:
            pool.receive(1, data, 0)
        pool.abandon(block.id)
    assert pool.payload(()) == ()
    assert pool.settle((), (), 100) == ()


def test_the_wait_for_an_answer_doubles_up_to_a_limit_so_that_a_slow_link_is_not_filled_with_copies() -> None:
    pool = new_pool()
    effects = pool.fetch(block_of(body(1)), committed=True)
    for _ in range(20):
        effects = pool.on_timer(timer_of(effects))
    assert effects[-1] == SetTimer(timer_of(effects), FETCH_RETRY * 2**MAX_DOUBLINGS)


def test_after_the_proposer_those_who_answered_last_are_asked_first() -> None:
    pool = new_pool()
    for number, member in ((1, 1), (2, 3)):
        pool.fetch(block_of(body(number)), committed=True)
        pool.receive(member, body(number), 0)
    effects = pool.fetch(block_of(body(9), proposer=2), committed=True)
    peers = []
    for _ in range(3):
        ((peer, _),) = asked(effects)
        peers.append(peer)
        effects = pool.on_timer(timer_of(effects))
    assert peers == [2, 3, 1]


def test_a_single_broker_that_misses_a_batch_asks_nobody() -> None:
    pool = Pool(0, 1, Limits(), lambda _: None)
    assert pool.fetch(block_of(body(1), proposer=0), committed=True) == []


def test_a_second_answer_with_a_fetched_batch_is_not_charged_to_its_sender() -> None:
    pool, data = new_pool(), body(1)
    pool.fetch(block_of(data), committed=False)
    pool.receive(1, data, 0)
    assert refusal(pool, 2, data) is Reason.REPLAYED
    assert pool.payload(()) == ()


def test_a_fetched_batch_that_a_client_submits_afterwards_waits_like_any_other() -> None:
    pool, data = new_pool(), body(1)
    pool.fetch(block_of(data), committed=False)
    pool.receive(1, data, 0)
    submit(pool, data)
    assert pool.payload(()) == (batch_digest(data),)


def test_a_block_that_exceeds_its_bytes_is_too_large_as_soon_as_that_is_known() -> None:
    disk = Disk()
    pool = new_pool(TIGHT, disk)
    large = [body(number, 30) for number in range(3)]
    block, twin = block_of(*large, view=1), block_of(*large[:2], view=2)
    timer = timer_of(pool.fetch(block, committed=False))
    pool.fetch(twin, committed=False)
    effects = [pool.receive(1, data, 0) for data in large]
    for step in effects:
        disk.write(step)
    assert [step[1:] for step in effects] == [[], [Ready(twin.id)], [TooLarge(block.id)]]
    assert pool.on_timer(timer) == []
    assert pool.fetch(block, committed=False) == [TooLarge(block.id)]


def test_the_rest_of_a_block_that_is_too_large_is_no_longer_wanted() -> None:
    pool = new_pool(TIGHT)
    large = [body(number, 50) for number in range(3)]
    block = block_of(*large)
    pool.fetch(block, committed=False)
    pool.receive(1, large[0], 0)
    assert pool.receive(1, large[1], 0)[1:] == [TooLarge(block.id)]
    (store,) = pool.receive(1, large[2], 0)
    assert store == StoreBatch(batch_digest(large[2]), Pending(1, 0, large[2]), sync=False, waits=True)


def test_what_is_committed_is_fetched_whatever_its_size() -> None:
    pool = new_pool(TIGHT)
    large = [body(number, 50) for number in range(3)]
    block = block_of(*large)
    pool.fetch(block, committed=False)
    pool.fetch(block, committed=True)
    assert [pool.receive(1, data, 0)[1:] for data in large] == [[], [], [Ready(block.id)]]


def test_a_client_meets_its_quota_even_with_a_batch_that_a_block_needs() -> None:
    pool = new_pool(TIGHT)
    for number in range(3):
        submit(pool, body(number))
    block = block_of(body(9))
    pool.fetch(block, committed=False)
    assert declined(pool, body(9)) is Intake.FULL
    assert Ready(block.id) in pool.receive(1, body(9), 0)
