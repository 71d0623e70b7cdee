"""Seeds with the brokers' own application mounted: whatever happens to 4 or 7 of them, nothing is lost, doubled or reordered."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from parley.ledger.audit import verify_store
from parley.sim.faults import TROUBLES, stir
from parley.sim.pubsub.setting import SHARD, Publishing
from parley.sim.report import Report, describe
from parley.sim.scenario import Simulation, run

LONG = bool(os.environ.get("PARLEY_LONG"))
# Seeds of one test: few enough to spread over processes, enough that everything happens among them.
SHARE = 25
SHARES = (  # nodes and seeds of each test
    [(nodes, range(first, first + SHARE)) for nodes in (4, 7) for first in range(0, 2_000, SHARE)]
    if LONG
    else [(4, range(SHARE)), (7, range(SHARE, 2 * SHARE))]
)

HAPPENS = ("absences", "damaged", "erased", "expired", "joins", "mended", "recoveries", "stages", "wipes")
CODES = (
    "Duplicate",
    "Expired",
    "NotStaged",
    "Ok",
    "OutOfSequence",
    "PermissionDenied",
    "Revoked",
    "SequenceReused",
    "StageOver",
    "UnknownClient",
)
REFUSED = ("bad_signature", "malformed", "wrong_chain", "replayed")


def play(nodes: int, seed: int) -> Report:
    """As many liars as the network bears, or fewer, and then disks are lost and damaged as well."""
    return run(nodes, seed % ((nodes - 1) // 3 + 1), seed, application="pubsub")


@pytest.mark.parametrize(("nodes", "seeds"), SHARES)
def test_publications_survive_whatever_happens(nodes: int, seeds: range) -> None:
    reports = [play(nodes, seed) for seed in seeds]
    broken = [describe(report) for report in reports if report.violations]
    assert not broken, "\n".join(broken)
    happened = _sum(report.happened for report in reports)
    receipts = _sum(report.receipts for report in reports)
    refused = _sum(report.refused for report in reports)
    assert [name for name in HAPPENS if not happened[name]] == []
    assert [code for code in CODES if not receipts[code]] == []
    assert [reason for reason in REFUSED if not refused[reason]] == []


def _sum(tallies: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return total


@pytest.mark.parametrize("seed", range(6))
def test_real_signatures_and_three_chains_hold_too(seed: int) -> None:
    report = run(4, seed % 2, seed, application="pubsub", crypto="real", depth=2 + seed % 2)
    assert report.violations == ()


@pytest.mark.parametrize("seed", [1, 3])
def test_an_auditor_finds_nothing_on_the_disks_of_correct_brokers(seed: int) -> None:
    """With real signatures the store is what `parley audit verify` takes."""
    simulation = Simulation(4, 0, seed, application="pubsub", crypto="real")
    stir(simulation.world, seed, TROUBLES["pubsub"])
    simulation.start()
    simulation.world.run(TROUBLES["pubsub"].duration)
    simulation.heal()
    simulation.finish()
    simulation.world.run(90_000)  # a broker that lost its disk fetches bodies long after it has all records
    assert simulation.violations == ()
    assert isinstance(simulation.setting, Publishing)
    genesis = simulation.setting.people.genesis
    for host in simulation.world.hosts:
        verdict = verify_store(host.disk, genesis, SHARD.mount(genesis), shard=0)
        assert verdict.first_fault is None
        assert verdict.publications > 0
