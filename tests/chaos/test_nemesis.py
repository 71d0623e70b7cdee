"""The schedule of faults: it depends on the seed alone, hits everybody in every way, and never makes too many lie."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from parley.chaos.nemesis import ALL_KINDS, BYZANTINE, EXPENSIVE, KINDS, WAYS, Fault, plan

SEEDS = st.integers(0, 10_000)
SIZES = st.integers(4, 10)


def names(brokers: int) -> list[str]:
    return [f"broker-{number}" for number in range(brokers)]


@given(SEEDS, SIZES, st.sets(st.sampled_from(ALL_KINDS), min_size=1), st.floats(5, 600))
def test_the_same_seed_gives_the_same_faults(
    seed: int, brokers: int, kinds: set[str], seconds: float
) -> None:
    first = plan(seed, sorted(kinds), seconds, names(brokers))
    assert first == plan(seed, sorted(kinds, reverse=True), seconds, names(brokers))
    assert {fault.kind for fault in first} <= kinds
    assert all(0 <= fault.begin < fault.end <= seconds for fault in first)


@given(SEEDS, SIZES)
def test_at_most_f_brokers_lie_at_a_time(seed: int, brokers: int) -> None:
    faults = plan(seed, KINDS, 600, names(brokers))
    liars = [fault for fault in faults if fault.kind == BYZANTINE]
    assert len(liars) > 10
    assert all(1 <= len(set(fault.brokers)) <= (brokers - 1) // 3 for fault in liars)
    assert_apart(liars)


@given(SEEDS)
def test_other_faults_come_one_after_the_other_and_liars_meet_them(seed: int) -> None:
    faults = plan(seed, KINDS, 600, names(4))
    others = [fault for fault in faults if fault.kind != BYZANTINE]
    assert_apart(others)
    assert any(
        liar.begin < fault.end and fault.begin < liar.end
        for liar in faults
        if liar.kind == BYZANTINE
        for fault in others
    )


def test_different_seeds_give_different_faults() -> None:
    assert len({plan(seed, KINDS, 60, names(4)) for seed in range(20)}) == 20


def test_a_long_run_sees_every_fault_in_every_way() -> None:
    seen = {(fault.kind, fault.way) for fault in plan(0, ALL_KINDS, 900, names(4))}
    assert seen == {(kind, way) for kind, ways in WAYS.items() for way in ways}


def test_a_short_run_of_one_kind_has_some_of_its_ways() -> None:
    for kind in KINDS:
        for seed in range(20):
            faults = plan(seed, [kind], 13, names(4))
            assert len({fault.way for fault in faults}) >= min(2, len(WAYS[kind])), (kind, seed)


@given(SEEDS)
def test_attacks_change_nothing_of_what_else_comes(seed: int) -> None:
    faults = plan(seed, ALL_KINDS, 60, names(4))
    assert tuple(fault for fault in faults if fault.kind != EXPENSIVE) == plan(seed, KINDS, 60, names(4))


@given(SEEDS, st.floats(30, 300))
def test_every_attack_comes_as_often_as_any_other(seed: int, seconds: float) -> None:
    attacks = [fault.way for fault in plan(seed, [EXPENSIVE], seconds, names(4))]
    assert sorted(attacks) == sorted(WAYS[EXPENSIVE])


@given(SEEDS)
def test_a_single_way_of_a_kind_can_be_chosen(seed: int) -> None:
    faults = plan(seed, ["partition:ring", "expensive:alter", "expensive:busy"], 300, names(4))
    assert {(fault.kind, fault.way) for fault in faults} == {
        ("partition", "ring"),
        ("expensive", "alter"),
        ("expensive", "busy"),
    }


def assert_apart(faults: list[Fault]) -> None:
    assert all(first.end < second.begin for first, second in pairwise(faults))
