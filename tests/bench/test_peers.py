"""Systems are compared round by round, one that fails is left out, and one that is missing says how to get it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cli.commands import parley

from parley.bench.errors import Unavailable
from parley.bench.peers import compare
from parley.bench.peers.client import Reading
from parley.bench.peers.compare import PEERS, Plan, comparisons
from parley.bench.peers.kafka import _config
from parley.bench.peers.nats import Nats
from parley.bench.peers.needs import Need
from parley.bench.peers.publishing import Job, SystemName
from parley.bench.peers.rabbitmq import _environment
from parley.bench.peers.systems import Running, Variant
from parley.cli import bench_peers


def reading(rate: float, cost: float = 10.0) -> Reading:
    return Reading(rate, cost, cost / 2, cost / 2)


class Fake:
    """A system that needs nothing, starts nothing, and is as fast as it is told."""

    name: SystemName = "nats"
    needs: tuple[Need, ...] = ()

    def __init__(self, *variants: str, problem: str = "") -> None:
        self.variants = tuple(Variant(name) for name in variants)
        self.problem = problem
        self.starts = 0

    def version(self) -> str:
        return "fake 1"

    @asynccontextmanager
    async def running(self, directory: Path, sizes: tuple[int, ...]) -> AsyncIterator[Running]:  # noqa: ARG002
        self.starts += 1
        await asyncio.to_thread(directory.mkdir)
        if self.problem:
            raise Unavailable(self.problem)
        yield Running(dict, lambda variant, size: variant.job(self.name, [], size))


async def measured(running: Running, job: Job, log: Path) -> Reading:
    """Instead of a publishing process: the variant `broken` never works."""
    if job.target.startswith("broken"):
        raise Unavailable("It refused.")
    assert (job.messages, job.warm_up) == (100, 20)
    return reading({"parley": 100.0, "quick": 200.0}[job.target.partition("-")[0]])


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes leave nothing to be written, and the disk may be busy with others."""
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Parley and one peer of two variants, of which one fails."""
    peer = Fake("quick", "broken")
    monkeypatch.setattr(compare, "Parley", lambda: Fake("parley"))
    monkeypatch.setattr(compare, "PEERS", {"nats": lambda: (peer,)})
    monkeypatch.setattr(compare, "measure", measured)
    return peer


# -- ratios -----------------------------------------------------------------------------------------------------------


def test_ratios_are_medians_and_their_spread_is_that_of_rounds() -> None:
    own, theirs = [100.0, 110.0, 300.0], [100.0, 220.0, 150.0]
    rates, costs = comparisons(
        {
            ("parley", 128): {number: reading(rate, cost=30.0) for number, rate in enumerate(own)},
            ("nats", 128): {number: reading(rate, cost=20.0) for number, rate in enumerate(theirs)},
        }
    )
    assert (rates.case, rates.unit, rates.value, rates.baseline) == ("nats 128 B", "messages/s", 110.0, 150.0)
    assert rates.ratio == round(110 / 150, 3)
    rounds = [1.0, 0.5, 2.0]
    assert rates.spread == (max(rounds) - min(rounds)) / statistics.median(rounds)
    assert (rates.best, rates.baseline_best, rates.best_ratio) == (300.0, 220.0, round(300 / 220, 3))
    assert (costs.unit, costs.ratio, costs.spread) == ("CPU µs/message", 1.5, 0.0)


def test_the_best_of_costs_is_the_lowest() -> None:
    _, costs = comparisons(
        {
            ("parley", 128): {0: reading(1.0, cost=30.0), 1: reading(1.0, cost=40.0)},
            ("nats", 128): {0: reading(1.0, cost=20.0), 1: reading(1.0, cost=10.0)},
        }
    )
    assert (costs.best, costs.baseline_best) == (30.0, 10.0)


def test_only_rounds_count_in_which_both_were_measured() -> None:
    rates, _ = comparisons(
        {
            ("parley", 128): {0: reading(10.0), 1: reading(1_000.0)},
            ("nats", 128): {0: reading(20.0)},
            ("nats", 1_024): {0: reading(5.0)},  # Parley has no run of that size
        }
    )
    assert (rates.value, rates.baseline) == (10.0, 20.0)


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_a_variant_that_fails_is_skipped_with_its_reason_and_the_others_go_on(
    fakes: Fake, tmp_path: Path
) -> None:
    steps: list[int] = []
    result = asyncio.run(
        compare.compare(tmp_path, Plan(("nats",), (128, 1_024), messages=100, runs=3), steps.append)
    )
    assert [(one.name, one.reason) for one in result.skipped] == [("broken", "It refused.")]
    assert {(one.name, one.size, len(one.runs)) for one in result.systems} == {
        (name, size, 3) for name in ("parley", "quick") for size in (128, 1_024)
    }
    assert {one.case for one in result.results} == {"quick 128 B", "quick 1024 B"}
    assert {one.ratio for one in result.results if one.unit == "messages/s"} == {0.5}
    assert sum(steps) == 12
    assert fakes.starts == 3
    assert not list(tmp_path.iterdir()), "the folders of all systems are removed"


def test_a_system_that_does_not_start_is_skipped_and_not_tried_again(fakes: Fake, tmp_path: Path) -> None:
    fakes.problem = "It did not start."
    plan = Plan(("nats",), (128,), messages=100, runs=3)
    result = asyncio.run(compare.compare(tmp_path, plan, lambda _: None))
    assert {one.name: one.reason for one in result.skipped} == dict.fromkeys(
        ("quick", "broken"), fakes.problem
    )
    assert fakes.starts == 1
    assert [one.name for one in result.systems] == ["parley"]


def test_without_parley_there_is_nothing_to_compare(
    fakes: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "Parley", lambda: Fake("parley", problem="No brokers."))
    with pytest.raises(Unavailable, match=r"No brokers\."):
        asyncio.run(compare.compare(tmp_path, Plan(("nats",), messages=100), lambda _: None))


def test_the_system_that_begins_changes_from_round_to_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def noted(running: Running, job: Job, log: Path) -> Reading:
        order.append(job.target.partition("-")[0])
        return reading(1.0)

    monkeypatch.setattr(compare, "Parley", lambda: Fake("parley"))
    monkeypatch.setattr(compare, "PEERS", {"nats": lambda: (Fake("a"), Fake("b"))})
    monkeypatch.setattr(compare, "measure", noted)
    asyncio.run(compare.compare(tmp_path, Plan(("nats",), (128,), messages=100, runs=3), lambda _: None))
    assert order == ["parley", "a", "b", "a", "b", "parley", "b", "parley", "a"]


# -- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        ("nats", ["nats-server and nats-py", 'pip install "parley[peers]"', "apt-get install nats-server"]),
        (
            "kafka",
            ["Java and Kafka's jars and confluent-kafka", "parley bench peers --peers kafka --install"],
        ),
        ("rabbitmq", ["rabbitmq-server and pika", "apt-get install rabbitmq-server"]),
    ],
)
def test_a_peer_that_is_not_installed_is_skipped_with_a_word_on_how_to_get_it(
    peer: str, words: list[str], fakes: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr("parley.bench.peers.needs.find_spec", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compare, "PEERS", {**PEERS, "there": lambda: (Fake("quick"),)})
    plan = Plan((peer, "there"), (128,), messages=100, runs=1)
    result = asyncio.run(compare.compare(tmp_path, plan, lambda _: None))
    (skipped,) = result.skipped
    assert skipped.name == peer
    for word in [*words, "--install"]:
        assert word in skipped.reason
    assert skipped.reason.count("pip install") == 1
    assert [one.name for one in result.systems] == ["parley", "quick"], "the rest goes on"


def test_without_a_peer_nothing_is_measured(fakes: Fake, tmp_path: Path) -> None:
    async def nothing() -> None:
        pass

    fakes.needs = (Need("it", "get it", lambda: False, nothing),)
    ended = parley("bench", "peers", "--peers", "nats", "--messages", "100", home=tmp_path, code=2)
    assert ended.out == ""
    assert (
        "skipped: nats: no it here; get it with: get it; or all of it with: parley bench peers --install"
        in ended.err
    )
    assert ended.err.endswith("parley: there is no peer to compare with\n")


def test_a_comparison_with_nobody_shows_no_ratios(fakes: Fake, tmp_path: Path) -> None:
    fakes.problem = "It did not start."
    words = ["bench", "peers", "--peers", "nats", "--sizes", "128", "--messages", "100", "--runs", "1"]
    ended = parley(*words, home=tmp_path, code=3)
    assert "parley bench peers: 1 rounds" in ended.out
    assert "divided by the peer" not in ended.out
    assert "skipped: quick: It did not start." in ended.err


def test_only_who_asks_for_it_gets_something_installed(
    fakes: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[str] = []

    async def install() -> None:
        there.append("it")

    fakes.needs = (Need("it", "get it", lambda: bool(there), install),)
    plan = Plan(("nats",), (128,), messages=100, runs=1)
    assert "no it here; get it with: get it" in str(
        asyncio.run(compare.compare(tmp_path, plan, lambda _: None)).skipped
    )
    assert not there
    asked = Plan(("nats",), (128,), messages=100, runs=1, install=True)
    result = asyncio.run(compare.compare(tmp_path, asked, lambda _: None))
    assert there
    assert [one.name for one in result.skipped] == ["broken"]


def test_what_cannot_be_installed_is_skipped_with_the_reason(fakes: Fake, tmp_path: Path) -> None:
    async def install() -> None:
        raise Unavailable("no way")

    fakes.needs = (Need("it", "get it", lambda: False, install),)
    plan = Plan(("nats",), (128,), messages=100, runs=1, install=True)
    (skipped,) = asyncio.run(compare.compare(tmp_path, plan, lambda _: None)).skipped
    assert skipped.reason == "it could not be installed: no way"


# -- settings ---------------------------------------------------------------------------------------------------------


def test_every_address_in_a_peers_settings_is_of_the_loopback_interface(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in (1, 2, 3)]
    texts = [
        Nats(synced=True)._config(tmp_path, 0, addresses[0], addresses[0], addresses),
        _config(tmp_path, 0, addresses, addresses).read_text(),
        *_environment(tmp_path, 0, addresses[0], "4", "5", cookie="cookie").values(),
        (tmp_path / "node-0" / "rabbitmq.conf").read_text(),
    ]
    found = re.findall(r"\d+[.,]\d+[.,]\d+[.,]\d+", " ".join(texts))
    assert len(found) > 10
    assert {one.replace(",", ".") for one in found} == {"127.0.0.1"}
    assert "0.0.0.0" not in " ".join(texts)


def test_only_its_owner_knows_what_lets_programs_run_at_a_node(tmp_path: Path) -> None:
    _environment(tmp_path, 0, "127.0.0.1:1", "4", "5", cookie="cookie")
    cookie = tmp_path / "node-0" / ".erlang.cookie"
    assert cookie.read_text() == "cookie"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cookie, cookie.parent)] == [0o600, 0o700]


def test_nats_syncs_before_it_acknowledges_only_if_it_is_told_to() -> None:
    assert "sync_interval: always" in Nats(synced=True)._config(Path(), 0, "", "", [])
    assert "sync_interval" not in Nats(synced=False)._config(Path(), 0, "", "", [])


def test_the_command_knows_all_peers_and_their_variants() -> None:
    variants = {name: sum(len(system.variants) for system in make()) for name, make in PEERS.items()}
    assert variants == bench_peers.PEERS


def test_unknown_peers_and_sizes_are_refused(tmp_path: Path) -> None:
    refused = parley("bench", "peers", "--peers", "nast", home=tmp_path, code=2)
    assert "did you mean nats" in refused.err
    assert "name one of nats" in parley("bench", "peers", "--peers", ",", home=tmp_path, code=2).err
    assert "1 to 8000" in parley("bench", "peers", "--sizes", "128,9000", home=tmp_path, code=2).err
    assert "numbers of bytes" in parley("bench", "peers", "--sizes", "small", home=tmp_path, code=2).err


def test_importing_the_comparison_needs_no_client_of_a_peer() -> None:
    code = "import sys, parley.bench.peers.compare as _; print({'nats', 'confluent_kafka', 'pika'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout == "set()\n"
