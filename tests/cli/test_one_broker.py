"""`parley down BROKER` and `parley up BROKER` take one broker away and bring it back; `status --wait` tells when it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley, shell
from tests.cli.conftest import Network

from parley.cli.output import ExitCode
from parley.cli.status_summary import reached, unready
from parley.client.administration import BrokerStatus
from parley.net.messages import PeerStatus, Status

NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """One of its own: other tests rely on the processes of the common one."""
    home = tmp_path_factory.mktemp("home")
    directory = home / "network"
    up = shell("up", "--detach", "--dir", directory, "--json", home=home)
    try:
        yield Network(home, directory, up.json())
    finally:
        shell("down", "--dir", directory, home=home, code=0)


def said(name: str, height: int, *, state: str = "ready", cut_off: str = "") -> BrokerStatus:
    peers = tuple(PeerStatus(other, other != cut_off) for other in NAMES if other != name)
    status = Status(1, name, "o", 0, "1", state, "", 0, 0, 1, height, height, "a", 0, 0, peers, (), ())
    return BrokerStatus(name, "o", "h:1", status, "")


def test_waiting_ends_when_every_broker_can_be_spared() -> None:
    well = [said(name, 10) for name in NAMES]
    assert unready(well, 10) == {}
    assert unready([said("a", 9), *well[1:]], 10) == {"a": "at height 9 of 10"}
    assert unready([said("a", 10, state="recovering"), *well[1:]], 10) == {"a": "recovering"}
    assert unready([said("a", 10, cut_off="b"), *well[1:]], 10) == {"a": "not connected to b"}
    down = BrokerStatus("a", "o", "h:1", None, "refused")
    assert unready([down, *well[1:]], 10) == {"a": "down"}
    assert unready([down, said("b", 10, cut_off="a"), *well[2:]], 10) == {"a": "down"}  # b is not to blame


def test_one_liar_cannot_make_waiting_endless() -> None:
    assert reached([said("a", 10**9), said("b", 12), said("c", 11), said("d", 3)]) == 12


def test_one_broker_is_taken_away_and_brought_back(network: Network) -> None:
    directory, home = network.directory, network.home
    assert network.run("down", "bravo-1", "--json").json()["stopped"] == ["bravo-1"]
    shard = network.run("status", "--json").json()["layers"]["data"]["shards"]["0"]
    assert {one["name"]: one["pid"] is None for one in shard["brokers"]} == {
        "alpha-1": False,
        "bravo-1": True,
        "charlie-1": False,
        "delta-1": False,
    }
    waited = network.run("status", "--wait", "0.1", code=ExitCode.UNREACHABLE)
    assert "not ready within 0.1 s: bravo-1 (down)\n" in waited.err
    assert f"not running here: bravo-1; start with `parley up --detach --dir {directory}`" in waited.err
    up = shell("up", "bravo-1", "--dir", directory, "--json", home=home, code=0).json()
    assert up["started"] == ["bravo-1"]
    network.run("status", "--wait", "60", code=0)
    again = parley("up", "bravo-1", "--dir", directory, home=home, code=0)
    assert "bravo-1 was running: ready" in again.out


def test_a_broker_that_is_not_there_is_named(network: Network) -> None:
    for command in ("up", "down"):
        ended = parley(
            command, "brvo-1", "--dir", network.directory, home=network.home, code=ExitCode.WRONG_USE
        )
        assert "has no broker 'brvo-1'; did you mean bravo-1?" in ended.err
        ended = parley(
            command, "nosuch", "--dir", network.directory, home=network.home, code=ExitCode.WRONG_USE
        )
        assert "has no broker 'nosuch'; there are alpha-1, bravo-1, charlie-1, delta-1." in ended.err


def test_what_is_for_whole_networks_is_refused_for_one_broker(network: Network, tmp_path: Path) -> None:
    where = ("--dir", str(network.directory))
    wrong = parley("down", "bravo-1", "--wipe", "--yes", *where, home=network.home, code=ExitCode.WRONG_USE)
    assert "whole networks" in flat(wrong.err)
    wrong = parley("up", "bravo-1", "--orgs", "4", *where, home=network.home, code=ExitCode.WRONG_USE)
    assert "whole networks" in flat(wrong.err)
    wrong = parley("up", "bravo-1", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "holds no network" in wrong.err
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_cannot_start_says_why(network: Network) -> None:
    config = network.directory / "brokers" / "charlie-1" / "broker.toml"
    network.run("down", "charlie-1", code=0)
    text = config.read_text()
    config.write_text(text.replace("[log]", "[log]\nlevel = 'loud'"))
    try:
        ended = shell("up", "charlie-1", "--dir", network.directory, home=network.home)
        assert ended.code == ExitCode.WRONG_USE
        assert "log.level" in ended.err
    finally:
        config.write_text(text)
        shell("up", "charlie-1", "--dir", network.directory, home=network.home, code=0)
