"""`parley node recover` says what it is about to do, asks, does it, and says what comes next."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley

from parley.cli.output import ExitCode
from parley.ledger.safety_file import SafetyFile
from parley.node.config import load
from parley.node.provision import broker_directory, provision_network
from parley.node.storage import open_storage

KEYS = {"broker", "recovered", "record", "store", "abstains", "moved"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "net"
    names = ("alpha", "beta", "gamma", "delta")
    provision_network(directory, organisations=names, network="n", start_time=int(time.time() * 1_000))
    return directory


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    """A user's home with a network of four in the default folder."""
    shutil.copytree(template, tmp_path / ".parley")
    return tmp_path


def folder(home: Path, broker: str) -> Path:
    return broker_directory(home / ".parley", broker)


def wipe(home: Path, broker: str) -> Path:
    found = folder(home, broker)
    shutil.rmtree(found / "data")
    (found / "safety.record").unlink()
    return found


def test_a_lost_disk_is_explained_and_made_anew_after_a_yes(home: Path) -> None:
    broker = wipe(home, "beta-1")
    ended = parley("node", "recover", "beta-1", home=home, stdin=b"y\n", code=0)
    for words in (
        "safety.record is missing. beta-1 gets a new one, with which it signs nothing until",
        "of 4 brokers, 1 may be faulty or in this state at a time",
        "data is missing. It is made anew",
        "Go on?",
    ):
        assert words in ended.err
    assert "beta-1 can be started: parley node .parley/brokers/beta-1/broker.toml" in ended.out
    assert "`parley status` calls it recovering" in ended.out
    storage = open_storage(load(broker / "broker.toml"))
    assert storage.record[1].abstains
    storage.close()


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b""])
def test_without_a_yes_nothing_is_done(home: Path, answer: bytes) -> None:
    broker = wipe(home, "beta-1")
    before = sorted(broker.iterdir())
    ended = parley("node", "recover", "beta-1", home=home, stdin=answer, code=ExitCode.WRONG_USE)
    assert ended.out.strip() == ""
    assert ended.err.endswith("parley: nothing was changed; say --yes if that is what you want\n")
    assert sorted(broker.iterdir()) == before


def test_a_script_has_to_say_yes(home: Path) -> None:
    broker = wipe(home, "beta-1")
    before = sorted(broker.iterdir())
    ended = parley("node", "recover", "beta-1", "--json", home=home, stdin=b"y\n", code=ExitCode.WRONG_USE)
    assert ended.out == ""
    assert "say --yes" in ended.err
    assert sorted(broker.iterdir()) == before


def test_what_is_moved_aside_is_spoken_of_only_where_there_is_something(home: Path) -> None:
    wipe(home, "beta-1")
    (folder(home, "gamma-1") / "safety.record").write_bytes(b"damaged")
    for broker, moves in (("beta-1", False), ("gamma-1", True)):
        ended = parley("node", "recover", broker, home=home, stdin=b"n\n", code=ExitCode.WRONG_USE)
        assert ("moved aside" in ended.err) == moves


def test_a_script_is_told_what_was_made_and_what_was_moved(home: Path) -> None:
    broker = folder(home, "gamma-1")
    (broker / "safety.record").write_bytes(b"damaged")
    config = broker / "broker.toml"
    found = parley("node", "recover", config, "--yes", "--json", home=home).json()
    aside = broker / "safety.record.damaged-1"
    assert found == {
        "broker": "gamma-1",
        "recovered": True,
        "record": "new",
        "store": "kept",
        "abstains": True,
        "moved": [str(aside)],
    }
    assert aside.read_bytes() == b"damaged"


def test_a_lost_store_costs_the_broker_no_vote(home: Path) -> None:
    shutil.rmtree(folder(home, "gamma-1") / "data")
    ended = parley("node", "recover", "gamma-1", "--yes", home=home, code=0)
    assert "safety record" not in ended.err
    assert "recovering" not in ended.out


def test_where_nothing_is_lost_that_is_all_it_says(home: Path) -> None:
    found = parley("node", "recover", "alpha-1", "--json", home=home).json()
    assert found.keys() == KEYS
    assert (found["recovered"], found["record"], found["store"], found["moved"]) == (
        False,
        "kept",
        "kept",
        [],
    )
    ended = parley("node", "recover", "alpha-1", home=home, code=0)
    assert "there is nothing to recover. Just start it." in ended.out
    assert ended.err == ""


def test_a_record_from_a_backup_can_be_given_up(home: Path) -> None:
    words = ["node", "recover", "alpha-1", "--stale-record", "--yes"]
    assert parley(*words, "--json", home=home).json()["record"] == "new"
    again = parley("node", "recover", "alpha-1", "--stale-record", home=home, code=0)
    assert "which waits to take part again: there is nothing to recover" in again.out


def test_a_broker_that_runs_is_left_alone(home: Path) -> None:
    broker = folder(home, "alpha-1")
    with SafetyFile.open(broker / "safety.record"):
        ended = parley("node", "recover", "alpha-1", "--yes", home=home, code=ExitCode.WRONG_USE)
    assert "is in use by another process. Stop that one first" in ended.err


def test_the_broker_that_is_meant_has_to_be_said_where_there_are_several(home: Path) -> None:
    ended = parley("node", "recover", home=home, code=ExitCode.WRONG_USE)
    assert "has 4 brokers, so say which one is meant: alpha-1, beta-1, delta-1, gamma-1" in flat(ended.err)
    ended = parley("node", "recover", "epsilon-1", home=home, code=ExitCode.WRONG_USE)
    assert "there is no file epsilon-1 and no such broker in .parley" in flat(ended.err)


def test_a_folder_with_one_broker_needs_no_name(home: Path) -> None:
    for name in ("alpha-1", "beta-1", "delta-1"):
        shutil.rmtree(folder(home, name))
    assert parley("node", "recover", "--json", home=home).json()["broker"] == "gamma-1"


def test_a_network_of_one_has_nobody_to_come_back_to(tmp_path: Path) -> None:
    directory = tmp_path / ".parley"
    provision_network(directory, organisations=("solo",), network="n", start_time=int(time.time() * 1_000))
    (directory / "brokers" / "solo-1" / "safety.record").unlink()
    ended = parley("node", "recover", "--yes", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "in a network of 1 there are not enough other brokers" in ended.err


def test_it_needs_what_a_broker_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "parley.store.disk", None)
    ended = parley("node", "recover", home=tmp_path, code=ExitCode.WRONG_USE)
    assert 'pip install "parley[node]"' in ended.err


@pytest.mark.parametrize("words", [["node"], ["node", "run"]])
def test_node_runs_a_broker_unless_it_is_told_otherwise(home: Path, words: list[str]) -> None:
    ended = parley(*words, "--dir", home / ".parley", home=home, code=ExitCode.WRONG_USE)
    assert "has 4 brokers, so say which to run" in flat(ended.err)
    ended = parley(*words, "none.toml", home=home, code=ExitCode.WRONG_USE)
    assert "there is no file none.toml" in flat(ended.err)
    assert "recover" in parley("node", "--help", home=home, code=0).out
