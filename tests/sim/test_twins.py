"""Twins: campaigns are clean, kept scenarios hold, and every broken rule is caught."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.consensus import events
from parley.consensus.committee import faults, quorum
from parley.consensus.events import VerifiedQC, VerifiedTC
from parley.consensus.machine import Machine
from parley.consensus.safety import SafetyRules
from parley.consensus.types import Block, Proposal, Vote
from parley.sim.twins import executor
from parley.sim.twins.campaign import Campaign, regressions, run
from parley.sim.twins.executor import Verdict, execute, recovery_views
from parley.sim.twins.generator import Shape, exhaustive, partitions, sample
from parley.sim.twins.mutants import MUTANTS
from parley.sim.twins.scenario import Scenario, ScenarioError, View, load, name, normal, save, whole
from parley.sim.twins.shrink import shrink

LONG = bool(os.environ.get("PARLEY_LONG"))
SHARDS = 20  # of a campaign, so that the test processes share it out
KEPT = regressions()


def clean(campaign: Campaign) -> None:
    tally = run(campaign)
    assert not tally.failures, [(f.number, f.verdict) for f in tally.failures]
    assert tally.scenarios == tally.verdicts[Verdict.HOLDS]


# -- campaigns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_sampled_campaign_is_safe_and_live(depth: int, shard: int) -> None:
    scenarios = 200_000 if LONG else 1_000
    clean(Campaign(Shape(depth=depth), 7, scenarios, (shard, SHARDS)))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_two_twins_of_seven_are_borne(shard: int) -> None:
    scenarios = 5_000 if LONG else 100
    clean(Campaign(Shape(nodes=7, twins=2), 7, scenarios, (shard, SHARDS)))


@pytest.mark.long
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_scenario_of_three_views_is_safe_and_live(depth: int, shard: int) -> None:
    clean(Campaign(Shape(views=3, depth=depth), shard=(shard, SHARDS)))


def test_every_scenario_of_one_view_is_safe_and_live() -> None:
    clean(Campaign(Shape(views=1)))


def test_the_result_depends_neither_on_jobs_nor_on_shards() -> None:
    campaign = Campaign(Shape(views=4), 3, 230)
    alone, together = run(campaign), run(campaign, jobs=2)
    assert alone == together
    parts = [run(replace(campaign, shard=(i, 3))) for i in range(3)]
    assert sum((part.recovery for part in parts), Counter()) == alone.recovery


# -- scenarios ------------------------------------------------------------------------------------------------------


def test_kept_scenarios_cover_what_once_broke() -> None:
    """T1, T2, T7, T9, T10, T14, T16: each by the name of what happened."""
    wanted = {"relab-249-fork", "fast-hotstuff-v1", "hidden-lock", "forking-leader", "view-plus-1000"}
    assert wanted | {f"t9-crash-of-{member}" for member in "abcd"} <= set(KEPT)


@pytest.mark.parametrize("kept", [key for key, (s, _, _) in KEPT.items() if s.twins <= faults(s.nodes)])
def test_a_kept_scenario_holds(kept: str) -> None:
    outcome = execute(KEPT[kept][0], trace=True)
    assert outcome.verdict is Verdict.HOLDS, "\n".join(outcome.trace)


@pytest.mark.parametrize("kept", [key for key, (_, _, mutant) in KEPT.items() if mutant is not None])
def test_a_kept_scenario_fails_under_the_mutant_it_is_kept_for(kept: str) -> None:
    scenario, _, mutant = KEPT[kept]
    assert mutant is not None
    with MUTANTS[mutant].applied():
        assert execute(scenario).verdict is Verdict.SAFETY


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_caught_by_the_sampled_campaign(mutant: str) -> None:
    campaign = Campaign(MUTANTS[mutant].shape, 7, 1_000, mutant=mutant)
    tally = run(campaign, until=lambda tally: bool(tally.failures))
    assert tally.failures
    with MUTANTS[mutant].applied():
        smallest = shrink(campaign.scenario(tally.failures[0].number))
        assert execute(smallest).verdict is tally.failures[0].verdict
        assert len(smallest.views) <= 6


def test_a_mutant_leaves_no_trace() -> None:
    before = {(owner, key): getattr(owner, key) for m in MUTANTS.values() for owner, key in m.replaces}
    for mutant in MUTANTS.values():
        with pytest.raises(ZeroDivisionError), mutant.applied():
            raise ZeroDivisionError
    assert before == {(owner, key): getattr(owner, key) for owner, key in before}


@pytest.mark.parametrize("broken", ["silent record", "forgotten vote", "second proposal"])
def test_what_is_sent_is_judged_not_only_what_is_recorded(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, T18: rules that sign and do not record, under power failures."""
    vote, propose, taken = SafetyRules.vote, SafetyRules.propose, Machine._take_effects

    def forgetful_vote(
        self: SafetyRules, block: Block, high_qc: VerifiedQC, high_tc: VerifiedTC | None
    ) -> Vote | None:
        before, signed = self.state, vote(self, block, high_qc, high_tc)
        self.state = before
        return signed

    def forgetful_proposal(
        self: SafetyRules, block: Block, high_qc: VerifiedQC, high_tc: VerifiedTC | None
    ) -> Proposal | None:
        before, signed = self.state, propose(self, block, high_qc, high_tc)
        self.state = before
        return signed

    def silent(self: Machine) -> list[events.Effect]:
        return [effect for effect in taken(self) if not isinstance(effect, events.PersistSafety)]

    match broken:
        case "silent record":
            monkeypatch.setattr(Machine, "_take_effects", silent)
        case "forgotten vote":
            monkeypatch.setattr(SafetyRules, "vote", forgetful_vote)
        case _:
            monkeypatch.setattr(SafetyRules, "propose", forgetful_proposal)
    tally = run(Campaign(Shape(), 7, 1_000), until=lambda tally: bool(tally.failures))
    assert tally.verdicts[Verdict.SAFETY]


def test_silence_after_synchrony_is_a_liveness_failure() -> None:
    """Two of four dead: nobody may call that recovery."""
    assert execute(Scenario(4, 0, 2, (), crashed=(0, 1))).verdict is Verdict.LIVENESS


def test_slow_recovery_is_a_liveness_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound in views counts, not only the clock."""
    monkeypatch.setattr(executor, "recovery_views", lambda _nodes, _depth: 2)
    assert execute(Scenario(4, 0, 2, ())).verdict is Verdict.LIVENESS


def test_a_scenario_always_ends_the_same_way() -> None:
    for number in range(20):
        scenario = sample(Shape(), 1, number)
        assert execute(scenario, trace=True) == execute(scenario, trace=True)


# -- generator ------------------------------------------------------------------------------------------------------


def renamings(nodes: int, twins: int) -> list[Callable[[int], int]]:
    """All renamings, slow and obvious: members that are alike among themselves, and the two copies of a twin."""
    found: list[Callable[[int], int]] = []
    for correct in permutations(range(twins, nodes)):
        for liars in permutations(range(twins)):
            for swaps in product((False, True), repeat=twins):
                member = dict(enumerate((*liars, *correct)))

                def rename(
                    seat: int, member: dict[int, int] = member, swaps: tuple[bool, ...] = swaps
                ) -> int:
                    if seat in range(twins, nodes):
                        return member[seat]
                    twin, second = seat % nodes, seat >= nodes
                    return member[twin] + nodes * (second ^ swaps[twin])

                found.append(rename)
    return found


def renamed(scenario: Scenario, rename: Callable[[int], int]) -> Scenario:
    def groups(partition: tuple[int, ...]) -> tuple[int, ...]:
        new = {rename(seat): group for seat, group in enumerate(partition)}
        return normal(tuple(new[seat] for seat in range(len(partition))))

    views = [
        View(rename(v.leader) % scenario.nodes, groups(v.propose), groups(v.timeout)) for v in scenario.views
    ]
    return replace(scenario, views=tuple(views))


@pytest.mark.parametrize("shape", [Shape(views=1), Shape(views=2), Shape(nodes=3, twins=2, views=2)])
def test_exhaustive_means_every_scenario_once_up_to_renaming(shape: Shape) -> None:
    chosen = list(exhaustive(shape))
    everything = [
        Scenario(shape.nodes, shape.twins, shape.depth, tuple(View(at, p, p) for at, p in choice))
        for choice in product(
            product(range(shape.nodes), partitions(shape.seats, shape.partitions)), repeat=shape.views
        )
    ]
    alike = renamings(shape.nodes, shape.twins)
    orbits = [frozenset(renamed(scenario, rename) for rename in alike) for scenario in chosen]
    assert sum(map(len, orbits)) == len(everything)
    assert frozenset().union(*orbits) == frozenset(everything)


def test_partitions_are_counted_once() -> None:
    assert len(partitions(5, 2)) == 16
    assert len(partitions(4, 4)) == 15  # the fourth Bell number


def test_samples_differ_and_repeat() -> None:
    some = [sample(Shape(), 7, number) for number in range(100)]
    assert some == [sample(Shape(), 7, number) for number in range(100)]
    assert len(set(some)) > 95
    assert {len(scenario.views) for scenario in some} == {5, 6, 7, 8}
    assert any(view.restart for scenario in some for view in scenario.views)


# -- files ----------------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    nodes=st.integers(2, 7),
    twins=st.integers(0, 2),
    number=st.integers(0, 10**6),
    depth=st.sampled_from([2, 3]),
)
def test_a_saved_scenario_is_the_scenario(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, twins: int, number: int, depth: int
) -> None:
    scenario = sample(Shape(nodes, min(twins, nodes - 1), 6, depth), 0, number)
    path = tmp_path_factory.mktemp("twins") / "scenario.json"
    save(path, scenario, story="why", mutant="no-persistence")
    assert load(path) == (scenario, "why", "no-persistence")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ('{"nodes": 4, "twins": 1, "chain": 4, "views": []}', "chain 2 or 3"),
        ('{"nodes": 99, "twins": 1, "chain": 2, "views": []}', "nodes must be"),
        (
            '{"nodes": 4, "twins": 1, "chain": 2, "views": [{"leader": "E"}]}',
            "view 1: there is no member 'E'",
        ),
        ('{"nodes": 4, "twins": 1, "chain": 2, "views": [{"leader": "A\'"}]}', "no member"),
        (
            '{"nodes": 4, "twins": 0, "chain": 2, "views": [{"leader": "A", "propose": ["A B", "C"]}]}',
            "names every seat once",
        ),
        (
            '{"nodes": 2, "twins": 0, "chain": 2, "views": [{"leader": "A", "propose": ["A B", "A"]}]}',
            "names every seat once",
        ),
        ('{"nodes": 2, "twins": 0, "chain": 2, "views": [{"leader": "A", "restart": "X"}]}', "no seat 'X'"),
        ('{"nodes": 4, "twins": 1, "chain": 2, "views": [], "crashed": "A\'"}', "not second copies"),
        ('{"nodes": 4, "twins": 1, "chain": 2, "views": [], "what": 1}', "unknown field"),
        (
            '{"nodes": 4, "twins": 1, "chain": 2, "views": [], "crashed": "B C D"}',
            "neither a twin nor crashed",
        ),
        ('{"nodes": 9, "twins": 8, "chain": 2, "views": []}', "at most 14 seats"),
        (" " * 2**20 + "{}", "larger than"),
    ],
)
def test_a_file_that_is_no_scenario_is_explained(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=words):
        load(path)


def test_a_story_cannot_steer_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "loud.json"
    save(path, sample(Shape(), 0, 0), story="\x1b[31mred\nplain")
    assert load(path)[1] == "[31mred\nplain"


@pytest.mark.parametrize("shape", [Shape(), Shape(nodes=7, twins=2), Shape(nodes=10, twins=3, views=3)])
def test_timeouts_always_leave_a_quorum_in_one_group(shape: Shape) -> None:
    members = (*range(shape.nodes), *range(shape.twins))
    for number in range(100):
        for view in sample(shape, 7, number).views:
            groups = [{members[s] for s, at in enumerate(view.timeout) if at == group} for group in range(2)]
            assert max(map(len, groups)) >= quorum(shape.nodes)


def test_names_are_letters_and_copies_have_a_stroke() -> None:
    assert [name(seat, 4) for seat in range(6)] == ["A", "B", "C", "D", "A'", "B'"]


def test_recovery_is_bounded_by_two_rounds_of_leaders() -> None:
    assert recovery_views(4, 2) == 10


def test_a_leap_far_ahead_moves_nobody() -> None:
    """T7: after a proposal for a view a thousand ahead, everybody is where it was."""
    calm = whole(4)
    outcome = execute(Scenario(4, 0, 2, (View(1, calm, calm, leap=True),)), trace=True)
    assert outcome.verdict is Verdict.HOLDS
    assert "B proposes for view 1001 instead" in outcome.trace
    assert not any("100" in line for line in outcome.trace if "votes" in line)
