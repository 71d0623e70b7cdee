"""`parley node backup` and `restore` say what they did, ask before they write, and refuse with a sentence."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley

from parley.cli.output import ExitCode
from parley.node.config import load
from parley.node.provision import broker_directory, provision_network
from parley.node.storage import open_storage


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "net"
    names = ("alpha", "beta", "gamma", "delta")
    provision_network(directory, organisations=names, network="n", start_time=int(time.time() * 1_000))
    return directory


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    """A user's home with a network of four in the default folder, and a backup of one broker."""
    shutil.copytree(template, tmp_path / ".parley")
    told = parley("node", "backup", "beta-1", "--to", "b.tar", "--json", home=tmp_path, code=0).json()
    assert (told["broker"], told["height"], told["network"]) == ("beta-1", 0, "n")
    return tmp_path


def folder(home: Path) -> Path:
    return broker_directory(home / ".parley", "beta-1")


def lose(home: Path, *, record: bool) -> None:
    shutil.rmtree(folder(home) / "data")
    if record:
        (folder(home) / "safety.record").unlink()


def test_a_backup_is_described_and_verified(home: Path) -> None:
    made = parley("node", "backup", "beta-1", "--to", "second.tar", home=home, code=0).out
    assert "second.tar: the ledger of beta-1 of network n up to height 0" in made
    assert "Every file is whole." in parley("node", "backup", "--verify", "b.tar", home=home, code=0).out


def test_a_damaged_backup_does_not_hold(home: Path) -> None:
    path = home / "b.tar"
    content = bytearray(path.read_bytes())
    place = content.index(b"MANIFEST-", 4_096)  # in the store's CURRENT, or in a name
    content[place] ^= 1
    path.write_bytes(content)
    ended = parley("node", "backup", "--verify", "b.tar", home=home, code=ExitCode.DOES_NOT_HOLD)
    assert "b.tar" in ended.err


def test_one_of_two_things_is_asked_for(home: Path) -> None:
    for words in ([], ["--to", "x.tar", "--verify", "b.tar"]):
        ended = parley("node", "backup", *words, home=home, code=ExitCode.WRONG_USE)
        assert "--to FILE to make a backup, or --verify FILE" in flat(ended.err)


def test_a_file_that_cannot_be_meant_is_wrong_use(home: Path) -> None:
    for words, told in (
        (["backup", "--verify", "nosuch"], "'nosuch' does not exist"),
        (["restore", "nosuch", "beta-1"], "'nosuch' does not exist"),
        (["backup", "beta-1", "--to", "b.tar"], "b.tar exists already and is not overwritten"),
        (["backup", "beta-1", "--to", "nodir/x.tar"], "nodir is no folder that you can write to"),
    ):
        assert told in flat(parley("node", *words, home=home, code=ExitCode.WRONG_USE).err)


def test_restoring_a_lost_disk_is_explained_and_done_after_a_yes(home: Path) -> None:
    lose(home, record=True)
    ended = parley("node", "restore", "b.tar", "beta-1", home=home, stdin=b"y\n", code=0)
    assert "is lost. beta-1 gets a new one, with which it signs nothing until" in ended.err
    assert "Make sure that this broker runs nowhere else." in ended.err
    assert "beta-1 can be started: parley node .parley/brokers/beta-1/broker.toml" in ended.out
    assert "recovering" in ended.out
    storage = open_storage(load(folder(home) / "broker.toml"))
    storage.close()
    assert storage.record[1].abstains


def test_a_record_that_stays_is_said_to_have_to_be_the_newest(home: Path) -> None:
    lose(home, record=False)
    ended = parley("node", "restore", "b.tar", "beta-1", "--yes", "--json", home=home, code=0)
    assert ended.json()["record"] == "kept"
    assert "It must be the newest one" in ended.err
    assert "parley node recover --stale-record" in ended.err


@pytest.mark.parametrize("answer", [b"n\n", b""])
def test_without_a_yes_nothing_is_restored(home: Path, answer: bytes) -> None:
    lose(home, record=True)
    ended = parley("node", "restore", "b.tar", "beta-1", home=home, stdin=answer, code=ExitCode.WRONG_USE)
    assert "nothing was changed" in ended.err
    assert not (folder(home) / "data").exists()
    asked = parley("node", "restore", "b.tar", "beta-1", "--json", home=home, code=ExitCode.WRONG_USE)
    assert asked.out == ""


def test_what_must_not_be_restored_is_refused(home: Path) -> None:
    ended = parley("node", "restore", "b.tar", "beta-1", "--yes", home=home, code=ExitCode.DOES_NOT_HOLD)
    assert "is not empty, and nothing is overwritten" in ended.err
    shutil.rmtree(broker_directory(home / ".parley", "alpha-1") / "data")
    ended = parley("node", "restore", "b.tar", "alpha-1", "--yes", home=home, code=ExitCode.DOES_NOT_HOLD)
    assert "is a backup of beta-1, not of alpha-1" in ended.err
