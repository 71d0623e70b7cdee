"""Negative controls: break what protects the network, and the simulator must notice."""

import dataclasses

import pytest

from parley.crypto import simulated
from parley.model.principals import Principal
from parley.model.refusals import Refused
from parley.replica.ports import PersistSafety
from parley.replica.scrub import Scrub
from parley.sim import scenario
from parley.sim.disk import Disk
from parley.sim.faults import TROUBLES
from parley.sim.host import Host
from parley.sim.scenario import run

SEEDS = range(10)


def broken(nodes: int, byzantine: int, actor: str | None = None) -> set[str]:
    actors = None if actor is None else [actor]
    reports = [run(nodes, byzantine, seed, actors=actors) for seed in SEEDS]
    return {violation.checker for report in reports for violation in report.violations}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "MAX_RECOVERY", 20_000)
    monkeypatch.setattr(scenario, "MAX_MENDING", 5_000)


def test_a_safety_record_that_is_not_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: without persistence a restarted replica signs twice."""

    def forget(disk: Disk, effect: PersistSafety) -> None:
        pass

    monkeypatch.setattr(Disk, "persist", forget)
    assert {"one signature per view", "record survives"} <= broken(4, 0)


def test_certificates_that_nobody_checks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5, T6: a forged certificate moves views and chains that it must not move."""
    monkeypatch.setattr(simulated._SimulatedScheme, "verify_aggregate", lambda *_: True)
    assert broken(4, 1, "duplicate-signers")


@pytest.mark.parametrize(("nodes", "liars"), [(4, 2), (7, 3)])
def test_one_liar_too_many_breaks_agreement(nodes: int, liars: int) -> None:
    reports = (run(nodes, liars, seed, actors=["two-faced"] * liars) for seed in range(2 * len(SEEDS)))
    assert any(violation.checker == "agreement" for report in reports for violation in report.violations)


def test_too_few_correct_replicas_are_noticed() -> None:
    """Two of four that crash for good leave no quorum."""
    reports = [run(4, 2, seed, actors=["crash", "crash"]) for seed in range(3)]
    assert all({v.checker for v in report.violations} == {"liveness"} for report in reports)


# -- with pub/sub mounted -------------------------------------------------------------------------------------


def noticed(seeds: range, **trouble: int) -> set[str]:
    """By whom, in runs of four brokers without a liar."""
    troubles = dataclasses.replace(TROUBLES["pubsub"], **trouble)
    reports = [run(4, 0, seed, application="pubsub", trouble=troubles) for seed in seeds]
    return {violation.checker for report in reports for violation in report.violations}


def test_a_broker_that_does_not_abstain_after_losing_its_record_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P10: it would sign again for views in which it has signed."""
    wipe = Host.wipe

    def forgetful(host: Host) -> None:
        wipe(host)
        host.disk = host._new_disk()

    monkeypatch.setattr(Host, "wipe", forgetful)
    # It has to be wiped right after it signed, which happens in few runs.
    each = (noticed(range(seed, seed + 1), damages=0) for seed in (5, 126, 128))
    assert any("one signature per view" in found for found in each)


def test_damage_that_nobody_looks_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scrub, "look", lambda _scrub: [])
    assert "sound disks" in noticed(range(3), wipes=0)


def test_a_revocation_that_is_not_enforced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reason_to_refuse = Principal.reason_to_refuse

    def trusting(principal: Principal) -> Refused | None:
        return reason_to_refuse(principal) if principal.client is None else None

    known = property(lambda principal: principal.administers is not None or principal.client is not None)
    readable = property(lambda principal: None if principal.client is None else principal.client.readable())
    monkeypatch.setattr(Principal, "reason_to_refuse", trusting)
    monkeypatch.setattr(Principal, "is_live", known)
    monkeypatch.setattr(Principal, "attributes", readable)
    assert "revocation" in noticed(range(2), damages=0, wipes=0)
