"""Traces of `formal/voting.pml` on the Python core: what the model does and refuses, the core does and refuses."""

from pathlib import Path

import pytest
from formal.check import TRACES, WALKS, missing_tools, simulate
from formal.trace import Certified, Proposed, Trace, Voted, parse
from tests.formal.replay import Disagreement, Replay

RECORDED = sorted(TRACES.glob("walk-*.trace"))
SEEDS = range(1000, 1060)


def load(name: str) -> Trace:
    return parse((TRACES / f"{name}.trace").read_text(encoding="utf-8"))


def assert_agreement(trace: Trace) -> None:
    assert trace.violated == 0
    replay = Replay(trace)
    assert replay.play() is None
    assert replay.forks == []
    if trace.complete:
        assert replay.allowed() == trace.may


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_core_takes_every_step_of_a_walk_and_refuses_what_the_model_refuses(path: Path) -> None:
    assert_agreement(parse(path.read_text(encoding="utf-8")))


def test_the_walks_go_somewhere() -> None:
    traces = [parse(path.read_text(encoding="utf-8")) for path in RECORDED]
    steps = [step for trace in traces for step in trace.steps]
    assert sum(isinstance(step, Certified) for step in steps) >= 60
    assert sum(isinstance(step, Certified) and step.final != 0 for step in steps) >= 15
    assert sum(isinstance(step, Proposed) and step.tc != 0 for step in steps) >= 100
    assert sum(len(trace.may) for trace in traces) >= 200


@pytest.mark.parametrize("name", ["two-liars", "two-liars-three-chain"])
def test_beyond_its_promise_the_core_forks_as_the_model_does(name: str) -> None:
    trace = load(name)
    replay = Replay(trace)
    assert trace.violated != 0
    assert replay.play() is None
    assert replay.forks != []


@pytest.mark.parametrize("name", ["no-tc-check", "no-lock", "vote-after-timeout", "vote-twice"])
def test_where_the_model_breaks_a_rule_the_core_refuses_to_sign(name: str) -> None:
    trace = load(name)
    assert trace.violated != 0
    refused = Replay(trace).play()
    assert refused is not None
    assert refused.why in ("no vote", "no timeout")


def test_t1_where_the_model_commits_by_parents_the_core_commits_nothing() -> None:
    """T1: every vote and timeout of the trace is granted; what is refused is the commit."""
    trace = load("parent-only-commit")
    assert trace.violated != 0
    replay = Replay(trace)
    refused = replay.play()
    assert refused is not None
    assert isinstance(refused.step, Certified)
    assert refused.step.final != 0
    assert replay.committed == {replay.committee.genesis.id}


def test_a_step_that_the_rules_forbid_is_noticed() -> None:
    """The replay itself is held to something: a second vote in a view, put into a good trace."""
    trace = load("walk-12")
    at = max(
        i for i, step in enumerate(trace.steps) if isinstance(step, Voted) and step.member in trace.honest
    )
    trace.steps.insert(at + 1, trace.steps[at])
    assert Replay(trace).play() == Disagreement(trace.steps[at], "no vote")


@pytest.mark.long
@pytest.mark.skipif("spin" in missing_tools(), reason="spin is not installed: apt-get install -y spin")
@pytest.mark.parametrize("macros", [macros for macros, _ in WALKS])
def test_fresh_walks_agree_too(macros: str) -> None:
    for seed in SEEDS:
        assert_agreement(parse(simulate(macros, seed)))
