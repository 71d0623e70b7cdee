"""Retention: nothing goes too early, nothing stays for long, and no block has to do everything at once."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.world import ADMIN, World, actor, mount, tagged

from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.refusals import PermissionDenied
from parley.modules.retention import rules
from parley.modules.retention.deadlines import Deadlines
from parley.modules.retention.tables import AGES
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import UnknownPartition
from parley.modules.topics.tables import HEADS
from parley.store.memory import MemoryStore

ALICE = actor("alice")
HOUR = 3_600_000


def make(retention: int, partitions: int = 1) -> World:
    world = World()
    world.topic("orders", partitions=partitions, retention=retention)
    world.client("alice")
    return world


def publish(world: World, at: int, *, partition: int = 0) -> None:
    """One message at a time."""
    world.apply(world.publication(ALICE, "orders", partition=partition), time=at)


def log(world: World, partition: int = 0) -> tuple[int, int]:
    head = world.record(HEADS, "orders", partition)
    assert head is not None
    return head.log_start_offset, head.next_offset


def granules(world: World, partition: int = 0) -> tuple[tuple[int, int], ...]:
    record = world.record(AGES, "orders", partition)
    return () if record is None else record.granules


def alter(world: World, retention: int, at: int | None = None) -> None:
    batch = world.control(ADMIN, AlterTopic("orders", None, retention, None, None))
    world.apply(batch, time=at)


def test_without_a_retention_nothing_ends_and_nothing_is_remembered() -> None:
    world = make(0)
    publish(world, world.time + 1)
    world.apply(time=world.time + 1_000 * HOUR)
    assert log(world) == (0, 1)
    assert not world.table(AGES)


def test_a_message_stays_for_its_retention_and_goes_a_sixteenth_later() -> None:
    world = make(HOUR)
    at = world.time + 1
    publish(world, at)
    world.apply(time=at + HOUR + HOUR // 16 - 1)
    assert log(world) == (0, 1)
    world.apply(time=at + HOUR + HOUR // 16)
    assert log(world) == (1, 1)
    assert not world.table(AGES)
    publish(world, world.time + 1)
    assert log(world) == (1, 2)


def test_the_newest_of_a_granule_keeps_the_oldest() -> None:
    world = make(1_600)
    at = world.time + 1
    for delay in (0, 99, 100):  # the last one opens another granule
        publish(world, at + delay)
    world.apply(time=at + 1_699)
    assert log(world) == (0, 3)
    world.apply(time=at + 1_700)
    assert log(world) == (2, 3)
    world.apply(time=at + 1_800)
    assert log(world) == (3, 3)


def test_a_publication_changes_the_ages_only_when_a_granule_opens() -> None:
    world = make(HOUR)
    publish(world, world.time + 1)
    for _ in range(5):
        before = world.table(AGES)
        publish(world, world.time + 1)
        assert world.table(AGES) == before
        assert AGES.place("orders", 0) not in dict(world.outcomes[-1].writes)


@settings(max_examples=60, deadline=None)
@given(
    keep=st.integers(1, 2_000),
    gaps=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3)), min_size=1, max_size=60),
)
def test_nothing_younger_is_gone_and_nothing_much_older_is_there(
    keep: int, gaps: list[tuple[int, int]]
) -> None:
    """For any times of blocks, and any number of messages in each."""
    world = make(keep)
    times: list[int] = []
    for gap, count in gaps:
        time = world.time + gap
        batches = [world.publication(ALICE, "orders", session=bytes([i]) * 16) for i in range(count)]
        world.apply(*batches, time=time)
        times += [time] * count
        start, end = log(world)
        assert end == len(times)
        assert all(time - age > keep for age in times[:start])
        assert all(time - age < keep + keep / 16 + 1 for age in times[start:])
        assert len(granules(world)) <= 18


@settings(max_examples=20, deadline=None)
@given(
    first=st.integers(1, 400),
    growth=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    gap=st.integers(1, 60),
)
def test_a_growing_retention_keeps_its_promise_with_a_limited_record(
    first: int, growth: list[int], gap: int
) -> None:
    world = make(first)
    times: list[int] = []
    for keep in accumulate(growth, initial=first):
        alter(world, keep, world.time + gap)
        for _ in range(40):
            before, _ = log(world)
            publish(world, world.time + gap)
            times.append(world.time)
            start, _ = log(world)
            assert all(world.time - age > keep for age in times[before:start])
            assert all(world.time - age < keep + keep / 16 + 1 for age in times[start:])
            assert len(granules(world)) <= rules.MAX_GRANULES


def test_too_many_granules_are_joined_where_that_keeps_them_short() -> None:
    world = make(1_600)
    times: list[int] = []
    for _ in range(12):
        publish(world, world.time + 100)
        times.append(world.time)
    for _ in range(60):
        # Granules of a shorter retention, which is another again before anything has ended by it.
        world.apply(
            world.control(ADMIN, AlterTopic("orders", None, 16, None, None)),
            world.publication(ALICE, "orders"),
            world.control(ADMIN, AlterTopic("orders", None, 1_600, None, None)),
        )
        times.append(world.time)
    assert log(world) == (0, 72)
    assert len(granules(world)) == rules.MAX_GRANULES
    for first, end in granules(world):
        assert end - times[first] <= 100
    for (_, end), (first, _) in pairwise(granules(world)):
        assert times[first - 1] < end <= times[first]


def test_a_shorter_retention_ends_what_is_older_in_the_next_block() -> None:
    world = make(HOUR)
    at = world.time + 1
    for minutes in range(0, 60, 10):
        publish(world, at + minutes * 60_000)
    alter(world, 25 * 60_000)
    assert log(world) == (0, 6)
    world.apply()
    assert log(world) == (3, 6)  # those of 0, 10 and 20 minutes; that of 30 is 20 minutes old
    world.apply(time=at + 50 * 60_000 + HOUR // 2)
    assert log(world) == (6, 6)


def test_a_shorter_retention_does_not_wait_for_the_granule_that_was_open() -> None:
    world = make(16 * HOUR)
    publish(world, world.time + 1)
    alter(world, 1_000, world.time + 10)
    altered = world.time
    world.apply(time=altered + 1_000)
    assert log(world) == (0, 1)
    world.apply(time=altered + 1_001)
    assert log(world) == (1, 1)


def test_a_longer_retention_keeps_what_is_still_there() -> None:
    world = make(1_600)
    at = world.time + 1
    publish(world, at)
    alter(world, HOUR, at + 1_600)
    world.apply(time=at + HOUR)
    assert log(world) == (0, 1)
    world.apply(time=at + HOUR + 1_700)
    assert log(world) == (1, 1)


def test_what_had_no_retention_ages_from_the_moment_that_it_gets_one() -> None:
    world = make(0, partitions=3)
    publish(world, world.time + 1)
    publish(world, world.time + HOUR, partition=1)
    alter(world, 1_000, world.time + HOUR)
    altered = world.time
    assert world.table(AGES).keys() == {("orders", 0), ("orders", 1)}
    world.apply(time=altered + 1_000)
    assert [log(world, partition) for partition in range(3)] == [(0, 1), (0, 1), (0, 0)]
    world.apply(time=altered + 1_001)
    assert [log(world, partition) for partition in range(3)] == [(1, 1), (1, 1), (0, 0)]


def test_a_retention_that_is_taken_away_ends_nothing_any_more() -> None:
    world = make(1_000)
    publish(world, world.time + 1)
    alter(world, 0)
    assert not world.table(AGES)
    world.apply(time=world.time + HOUR)
    assert log(world) == (0, 1)
    alter(world, 1_000)
    world.apply(time=world.time + 1_000)
    assert log(world) == (0, 1)
    world.apply()
    assert log(world) == (1, 1)


def test_the_same_retention_again_changes_nothing() -> None:
    world = make(HOUR)
    publish(world, world.time + 1)
    before = world.table(AGES)
    alter(world, HOUR)
    assert world.table(AGES) == before


def test_a_retention_may_come_with_more_partitions() -> None:
    world = make(0)
    publish(world, world.time + 1)
    world.do(ADMIN, AlterTopic("orders", 2, 1_000, None, None))
    publish(world, world.time + 1, partition=1)
    world.apply(time=world.time + 2_000)
    assert (log(world, 0), log(world, 1)) == ((1, 1), (1, 1))


def test_the_longest_retention_of_all_is_no_trouble() -> None:
    world = make(2**62 - 1)
    publish(world, world.time + 1)
    mount(world.genesis)[0].apply(world.next_block([]), [], world.store)
    world.apply(time=world.time + HOUR)
    assert log(world) == (0, 1)


def test_the_deadlines_of_a_deleted_topic_do_not_reach_its_next_life() -> None:
    world = make(1_000, partitions=2)
    publish(world, world.time + 1)
    deadline = world.time + 1_063
    world.do(ADMIN, DeleteTopic("orders"))
    assert not world.table(AGES)
    world.wait(1)
    world.topic("orders", retention=100 * HOUR)
    publish(world, world.time + 1)
    assert log(world) == (1, 2)
    world.apply(time=deadline + 1_000)
    assert log(world) == (1, 2)
    world.apply(time=world.time + 200 * HOUR)
    assert log(world) == (2, 2)


def test_a_next_life_without_a_retention_ends_nothing() -> None:
    world = make(1_000)
    publish(world, world.time + 1)
    world.do(ADMIN, DeleteTopic("orders"))
    world.wait(1)
    world.topic("orders")
    publish(world, world.time + 1)
    world.apply(time=world.time + HOUR)
    assert log(world) == (1, 2)


def test_what_is_refused_leaves_no_age_behind() -> None:
    world = World()
    world.topic("orders", retention=HOUR, publish="role == 'nurse'")
    world.client("alice")
    assert world.publish(ALICE, "orders").code == PermissionDenied.code
    assert world.publish(ALICE, "orders", partition=1).code == UnknownPartition.code
    other = world.do(actor("alice"), AlterTopic("orders", None, 1, None, None))
    assert other.code == PermissionDenied.code
    assert not world.table(AGES)


def test_many_logs_that_end_at_once_are_worked_off_over_several_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "MAX_MOVED", 100)
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(4_096, 1_024))
    world = make(1_000, partitions=64)
    names = [f"t{i}" for i in range(4)]
    for name in names:
        world.topic(name, partitions=64, retention=1_000)
    batches = [
        world.publication(ALICE, name, partition=partition)
        for name in ("orders", *names)
        for partition in range(64)
    ]
    world.apply(*batches, time=world.time + 1)
    left = [len(world.table(AGES))]
    world.apply(time=world.time + 2_000)
    while left[-1]:
        # A broker that starts here does the same.
        fresh = mount(world.genesis)[0].apply(world.next_block([]), [], world.store)
        left.append(len(world.table(AGES)))
        world.apply()
        assert (fresh.state_root, fresh.writes) == (world.root, world.outcomes[-1].writes)
    assert left == [320, 220, 120, 20, 0]
    assert world.rebuilt_root() == world.root


def test_what_has_waited_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_MOVED", 1)
    world = make(1_000, partitions=3)
    for partition in (2, 0, 1):
        publish(world, world.time + 1, partition=partition)
    gone = []
    world.apply(time=world.time + HOUR)
    while world.table(AGES):
        gone.append([log(world, partition)[0] for partition in range(3)])
        world.apply()
    assert gone == [[0, 0, 1], [1, 0, 1]]


def test_a_log_that_waits_for_its_turn_takes_publications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_MOVED", 0)
    world = make(1)
    for _ in range(100):
        publish(world, world.time + 5)
    assert log(world) == (0, 100)
    assert len(granules(world)) == rules.MAX_GRANULES
    monkeypatch.setattr(rules, "MAX_MOVED", 1)
    world.apply(time=world.time + 5)
    assert log(world) == (100, 100)


def test_a_restart_in_the_middle_makes_no_difference() -> None:
    world = make(300, partitions=2)
    world.do(ADMIN, CreateTopic("other", 1, Policy(retention=50), "", ""))
    store = MemoryStore()
    machine, _ = mount(world.genesis)
    for turn in range(80):
        batches = [world.publication(ALICE, "orders", tagged(), partition=turn % 2)] * (turn % 3 > 0)
        batches += [world.publication(ALICE, "other")] * (turn % 7 == 0)
        if turn % 20 == 10:
            batches.append(world.control(ADMIN, AlterTopic("orders", None, 100 + turn, None, None)))
        world.apply(*batches, time=world.time + 1 + turn * 37 % 50)
    for (block, batches), expected in zip(world.blocks, world.outcomes, strict=True):
        if block.height % 9 == 0:
            machine, _ = mount(world.genesis)
        outcome = machine.apply(block, [(batch.digest, batch.body) for batch in batches], store)
        store.write(outcome.writes)
        assert outcome == expected
    assert log(world)[0] > 0


def test_deadlines_that_change_all_the_time_take_no_more_room() -> None:
    deadlines = Deadlines()
    for time in range(10_000):
        deadlines.set(("orders", time % 3), 10_000 - time)
    assert len(deadlines._queue) < 100
    assert deadlines.first(0) is None
    assert deadlines.first(3) == ("orders", 0)
    deadlines.remove(("orders", 0))
    assert deadlines.first(3) == ("orders", 2)
