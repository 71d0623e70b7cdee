"""`parley fault` on a folder: what it writes, what it refuses, and that a broker which runs hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley
from tests.node.network import LocalNetwork
from tests.node.raw_client import reach

from parley.cli import local_setup, status_table
from parley.cli.status_summary import Member, Proof
from parley.node.faults.settings import read_faults


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> LocalNetwork:
    """None of its brokers runs, unless a test starts one."""
    return LocalNetwork(tmp_path_factory.mktemp("fault") / "net", allow_faults=True)


@pytest.fixture(autouse=True)
def _honest_again(network: LocalNetwork) -> Iterator[None]:
    before = {name: network.config(name).read_bytes() for name in network.names}
    yield
    for name, data in before.items():
        network.config(name).write_bytes(data)


def test_faults_are_set_listed_and_cleared_and_the_file_is_as_before(
    network: LocalNetwork, tmp_path: Path
) -> None:
    before = network.config("beta-1").read_bytes()
    words = ("--dir", network.directory, "--json")
    done = parley("fault", "set", "beta-1", "forge", "censor:alpha/alice", *words, home=tmp_path).json()
    assert done == {"broker": "beta-1", "faults": ["forge", "censor:alpha/alice"], "running": False}
    assert network.config("beta-1").read_bytes() == b'faults = ["forge", "censor:alpha/alice"]\n' + before
    parley("fault", "set", "gamma-1", "lie", *words, home=tmp_path).json()
    listed = parley("fault", "list", *words, home=tmp_path).json()["brokers"]
    assert listed == {
        "alpha-1": [],
        "beta-1": ["forge", "censor:alpha/alice"],
        "gamma-1": ["lie"],
        "delta-1": [],
    }
    assert parley("fault", "clear", "beta-1", *words, home=tmp_path).json() == {"cleared": ["beta-1"]}
    assert network.config("beta-1").read_bytes() == before
    assert parley("fault", "clear", *words, home=tmp_path).json() == {"cleared": ["gamma-1"]}
    assert parley("fault", "clear", *words, home=tmp_path).json() == {"cleared": []}


def test_people_are_told_what_will_happen(network: LocalNetwork, tmp_path: Path) -> None:
    where = ("--dir", network.directory)
    said = parley("fault", "set", "alpha-1", "drop", *where, home=tmp_path, code=0).out
    assert "alpha-1 does not run; it will lie when it is started: drop" in said
    assert f"`parley fault clear --dir {network.directory}` ends it" in said
    assert "drop" in parley("fault", "list", *where, home=tmp_path, code=0).out
    assert "alpha-1 will not lie any more" in parley("fault", "clear", *where, home=tmp_path, code=0).out
    assert "withhold: streams and pages hold no messages." in flat(
        parley("fault", "set", "--help", home=tmp_path, code=0).out
    )


def test_a_broker_that_runs_is_told(network: LocalNetwork, tmp_path: Path) -> None:
    with network:
        network.start("delta-1")
        asyncio.run(up(network, "delta-1"))
        words = ("fault", "set", "delta-1", "stale", "--dir", network.directory)
        assert "delta-1 lies now: stale" in parley(*words, home=tmp_path, code=0).out
        assert [line["faults"] for line in network.log("delta-1") if line["event"] == "faults"] == ["stale"]
        assert read_faults(network.config("delta-1")) == ("stale",)
        network.stop("delta-1")


async def up(network: LocalNetwork, name: str) -> None:
    await (await reach(network, name)).wait_closed()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "beta-2", "lie"), "has no broker 'beta-2'; did you mean beta-1?"),
        (("set", "beta-1", "lies"), "'lies' is no fault; there are equivocate, withhold"),
        (("set", "beta-1", "censor:alice"), "names no client"),
        (("clear", "epsilon-1"), "has no broker 'epsilon-1'"),
    ],
)
def test_what_cannot_be_is_refused(
    network: LocalNetwork, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    ended = parley("fault", *words, "--dir", network.directory, home=tmp_path, code=2)
    assert why in flat(ended.err)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("faults = 7", "faults is not a list of texts"),
        ('faults = ["lies"]', "'lies' is no fault"),
        ('faults = ["lie"', "is not TOML"),
        ('faults = [\n  "lie" "drop",\n]', "is not TOML"),
    ],
)
def test_faults_that_nobody_understands_are_shown_and_can_be_cleared(
    network: LocalNetwork, tmp_path: Path, line: str, problem: str
) -> None:
    path = network.config("beta-1")
    before = path.read_text()
    path.write_text(f"{line}\n{before}")
    where = ("--dir", network.directory)
    listed = parley("fault", "list", *where, home=tmp_path, code=0).out
    assert "invalid: " in listed
    assert problem in listed
    found = parley("fault", "list", "--json", *where, home=tmp_path).json()
    assert (found["brokers"]["beta-1"], list(found["invalid"])) == ([], ["beta-1"])
    assert parley("fault", "clear", "--json", *where, home=tmp_path).json() == {"cleared": ["beta-1"]}
    assert path.read_text() == before


def test_a_file_that_is_broken_elsewhere_is_left_as_it_is(network: LocalNetwork, tmp_path: Path) -> None:
    path = network.config("beta-1")
    path.write_text('faults = ["lie"]\nbroker =\n' + path.read_text())
    before = path.read_bytes()
    ended = parley("fault", "clear", "--dir", network.directory, home=tmp_path, code=2)
    assert "not only because of its faults; edit the file by hand" in flat(ended.err)
    assert path.read_bytes() == before


def test_more_liars_than_the_network_bears_are_warned_of(network: LocalNetwork, tmp_path: Path) -> None:
    where = ("--dir", network.directory)
    assert parley("fault", "set", "alpha-1", "lie", *where, home=tmp_path, code=0).err == ""
    ended = parley("fault", "set", "beta-1", "drop", *where, home=tmp_path, code=0)
    assert "2 brokers of 4 lie now; the network bears 1" in ended.err


def test_without_allow_faults_nothing_is_written(tmp_path: Path) -> None:
    net = LocalNetwork(tmp_path / "net", organisations=("solo",))
    before = net.config("solo-1").read_bytes()
    ended = parley("fault", "set", "solo-1", "lie", "--dir", net.directory, home=tmp_path, code=2)
    assert "made without --allow-faults" in flat(ended.err)
    assert net.config("solo-1").read_bytes() == before
    for word in ("list", "clear"):
        ended = parley("fault", word, "--dir", net.directory, home=tmp_path, code=0)
        assert ended.out == "no broker of this network can lie\n"


def test_a_network_allows_faults_from_its_beginning_or_never(tmp_path: Path) -> None:
    home = tmp_path / "net"
    local_setup.provision(home, 1)
    ended = parley("up", "--allow-faults", "--detach", "--dir", home, home=tmp_path, code=2)
    assert "made without --allow-faults, and that cannot be changed" in flat(ended.err)
    assert local_setup.provision(tmp_path / "other", 1, allow_faults=True)
    assert b'"allow_faults": true' in (tmp_path / "other" / "genesis.json").read_bytes()


def test_the_status_says_who_can_prove_what_of_whom() -> None:
    def member(name: str, *views: int, damage: tuple[str, ...] = ()) -> Member:
        proofs = [Proof("alpha-1", "proposals", view) for view in views]
        return Member(name, "org", "address", "ready", 1, None, "", proofs, list(damage))

    members = [
        member("alpha-1"),
        member("bravo-1", 17),
        member("charlie-1", 17, 21),
        member("delta-1", damage=("b/00 is gone",)),
    ]
    assert status_table.proofs(members) == [
        "alpha-1 signed two proposals in view 17 (proof held by bravo-1, charlie-1)",
        "alpha-1 signed two proposals in view 21 (proof held by charlie-1)",
    ]
    assert status_table.damage(members) == ["delta-1 found damage: b/00 is gone"]
    assert status_table.proofs([member("bravo-1", 17)]) == []  # there is no such broker
    many = status_table.proofs([member("alpha-1"), member("bravo-1", *range(9))])
    assert many[0] == "alpha-1 contradicted itself in 9 views; the last:"
    assert many[-1] == "alpha-1 signed two proposals in view 8 (proof held by bravo-1)"
    assert len(many) == 1 + status_table.MAX_SHOWN
