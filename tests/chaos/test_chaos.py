"""Real brokers under real faults: nothing acknowledged is lost, doubled or reordered, and all brokers end up equal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from parley.chaos.checker import judge
from parley.chaos.history import Acknowledged, Audited, Chain, Delivered, Record, read_history
from parley.chaos.nemesis import KINDS
from parley.chaos.network import Network
from parley.chaos.report import Report, report
from parley.chaos.runner import HISTORY, Settings, run
from parley.chaos.stores import examine
from parley.ledger import layout
from parley.node.faults.settings import read_faults
from parley.node.provision import read_genesis
from parley.store.disk import open_store

SECONDS = 13.0  # of faults of each kind
SEEDS = {"kill": 1, "pause": 2, "partition": 3, "disk": 4, "byzantine": 5}
LONG_SEEDS = range(3)
LONG_SECONDS = 30 * 60 / len(LONG_SEEDS)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_doubled_or_reordered_under_faults_of(kind: str, tmp_path: Path) -> None:
    found = report(run(Settings(tmp_path / "network", SECONDS, (kind,), SEEDS[kind])))
    assert_holds(found)
    assert {span.fault.partition(" ")[0] for span in found.timeline} == {kind}
    # What was done had an effect: a broker without room stopped, and clients noticed lies.
    assert found.stopped_full > 0 or kind != "disk"
    assert found.caught > 0 or kind != "byzantine"


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_nothing_is_lost_doubled_or_reordered_under_everything_at_once(seed: int, tmp_path: Path) -> None:
    found = report(run(Settings(tmp_path / "network", LONG_SECONDS, KINDS, seed)))
    assert_holds(found)
    assert {span.fault.partition(" ")[0] for span in found.timeline} == set(KINDS)


def assert_holds(found: Report) -> None:
    assert found.details == []
    assert (found.lost, found.doubled, found.reordered) == (0, 0, 0)
    assert found.digests_equal
    # Everything did happen: a run in which nobody does anything proves nothing.
    assert found.acknowledged > 50
    assert found.delivered > found.acknowledged
    assert min(found.refused, found.empties, found.unknown) > 0
    assert len(found.heights) == 4


# -- being told ----------------------------------------------------------------------------------------------------------


def test_a_broker_that_does_not_listen_yet_reads_its_faults_when_it_does(tmp_path: Path) -> None:
    network = Network(tmp_path / "network", 4)
    name = network.names[0]
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    network._processes[name] = subprocess.Popen(waits)
    try:
        asyncio.run(network.lie(name, ["stale"]))
        assert read_faults(network.brokers[name].config) == ("stale",)
        assert network.is_running(name)
    finally:
        network.kill_all()


def test_a_broker_that_is_paused_is_told_when_it_goes_on(tmp_path: Path) -> None:
    async def story(network: Network) -> None:
        name = network.names[0]
        folder = network.brokers[name].folder
        network.start(name)
        async with asyncio.timeout(60):
            while not (folder / "address").exists():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
        network.pause(name)
        await network.lie(name, ["stale"])
        network.resume(name)
        await asyncio.gather(*network._telling)
        assert network._telling
        assert '"faults":"stale"' in (folder / "log.jsonl").read_text().replace(" ", "")
        await network.stop()

    network = Network(tmp_path / "network", 4)
    try:
        asyncio.run(story(network))
    finally:
        network.kill_all()


# -- the judge would notice --------------------------------------------------------------------------------------------


def test_what_is_changed_in_a_real_history_or_store_is_noticed(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "network", 2.0, (), 0)
    records = run(settings)
    assert judge(records).holds
    assert read_history(settings.directory / HISTORY) == records
    assert "nothing-lost" in judge(without(records, Delivered)).names
    assert "no-duplication" in judge(twice(records, Delivered)).names
    moved = changed(records, Acknowledged, lambda one: msgspec.structs.replace(one, offset=one.offset + 1))
    assert "nothing-lost" in judge(moved).names

    head = next(record for record in records if isinstance(record, Chain)).common
    with open_store(data(settings, "beta-1"), create=False) as store:
        key, value = next(iter(store.scan(layout.STATE)))
        store.write([(key, value[:-1] + bytes([value[-1] ^ 1]))], sync=True)
    assert judged_again(settings, records) == ["sound-stores"]
    with open_store(data(settings, "beta-1"), create=False) as store:
        store.write([(key, value), (layout.roots(head), store.get(layout.roots(head - 1)))], sync=True)
    assert judged_again(settings, records) == ["agreement-1", "sound-stores"]
    with open_store(data(settings, "gamma-1"), create=False) as store:
        store.write([(layout.committed(3), store.get(layout.committed(4)))], sync=True)
    assert judged_again(settings, records) == ["agreement-1", "total-order-1", "sound-stores"]


def data(settings: Settings, broker: str) -> Path:
    return settings.directory / "brokers" / broker / "data"


def judged_again(settings: Settings, records: list[Record]) -> list[str]:
    """The properties that do not hold, judged by the stores as they are now."""
    kept = [record for record in records if not isinstance(record, Chain | Audited)]
    names = [record.broker for record in records if isinstance(record, Chain)]
    stores = {name: data(settings, name) for name in names}
    genesis = read_genesis(settings.directory / "genesis.json")
    return judge([*kept, *examine(genesis, stores, at=0.0)]).names


def place(records: list[Record], kind: type[Record]) -> int:
    """Of one in the middle of its kind."""
    places = [at for at, record in enumerate(records) if isinstance(record, kind)]
    return places[len(places) // 2]


def without(records: list[Record], kind: type[Record]) -> list[Record]:
    at = place(records, kind)
    return [*records[:at], *records[at + 1 :]]


def twice(records: list[Record], kind: type[Record]) -> list[Record]:
    at = place(records, kind)
    return [*records[: at + 1], *records[at:]]


def changed(records: list[Record], kind: type[Record], change: Callable[..., Record]) -> list[Record]:
    at = place(records, kind)
    return [*records[:at], change(records[at]), *records[at + 1 :]]
