"""The liars do lie: each leaves the trace that its lie must leave at those who refuse it."""

import pytest

from parley.sim.byzantine import ACTORS
from parley.sim.report import Summary, summarise
from parley.sim.scenario import Simulation, run

SEEDS = range(3)


def lies(actor: str) -> Summary:
    summary = summarise([run(4, 1, seed, actors=[actor]) for seed in SEEDS])
    assert summary.violations == ()
    return summary


@pytest.mark.parametrize(
    ("actor", "reasons"),
    [
        ("fork", ["not_entitled"]),
        ("view+1000", ["not_entitled", "future"]),
        ("duplicate-signers", ["bad_bitmap", "too_few_signers", "bad_signature"]),
        ("garbler", ["malformed"]),
        ("double-voter", ["equivocation"]),
    ],
)
def test_the_lie_is_refused_for_its_reason(actor: str, reasons: list[str]) -> None:
    refused = lies(actor).refused
    assert all(refused.get(reason, 0) > 0 for reason in reasons), refused


@pytest.mark.parametrize(
    ("actor", "kind"),
    [("double-voter", "double_vote"), ("equivocator", "double_vote"), ("equivocator", "double_proposal")],
)
def test_equivocation_is_proved(actor: str, kind: str) -> None:
    assert lies(actor).evidence.get(kind, 0) > 0


def test_an_honest_network_has_no_evidence_against_anybody() -> None:
    for seed in SEEDS:
        report = run(4, 0, seed)
        assert (report.violations, report.evidence) == ((), {})


def test_a_silent_leader_costs_views_and_nothing_else() -> None:
    simulation = Simulation(4, 1, 1, actors=["silent"])
    simulation.start()
    simulation.world.run(20_000)
    assert simulation.violations == ()
    assert simulation.world.correct[0].committed > 10


def test_every_liar_has_a_name_and_a_story() -> None:
    assert all(actor.name == name and actor.story for name, actor in ACTORS.items())
