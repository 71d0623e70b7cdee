"""What `parley up` and `parley down` say of folders, without a network that runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley

from parley.cli import local, local_setup
from parley.cli.output import ExitCode
from parley.client.contexts import read_genesis


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "net"
    assert local_setup.provision(directory, 1)
    return directory


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    """A user's home with a network of one in the default folder, which does not run."""
    shutil.copytree(template, tmp_path / ".parley")
    return tmp_path


def test_the_topic_of_a_local_network_is_suggested_only_where_there_is_one(
    home: Path, tmp_path: Path
) -> None:
    parley("init", "alpha", "--address", "10.0.0.1:7101", "--dir", "real", home=tmp_path, code=0)
    parley("genesis", "combine", "real/alpha.part.json", "--dir", "real", home=tmp_path, code=0)
    for folder, topic, told in (
        (home / ".parley", "demo", "parley pub demo --dir {} hello"),
        (
            tmp_path / "real",
            None,
            "Try:  parley client create NAME --dir {}\n      parley topic create NAME --dir {}",
        ),
    ):
        genesis = read_genesis(folder / "genesis.json")
        found = local_setup.TOPIC if local_setup.made(folder, genesis) else None
        assert found == topic
        greeting = local._greeting(folder, genesis, 1, None, found)
        assert greeting.endswith(told.format(folder, folder))
        assert ("demo" in greeting) == (topic is not None)


@pytest.mark.parametrize("answer", [b"n\n", b""])
def test_without_a_yes_nothing_is_deleted(home: Path, answer: bytes) -> None:
    ended = parley("down", "--wipe", home=home, stdin=answer, code=ExitCode.WRONG_USE)
    assert ended.err.endswith("parley: nothing was changed; say --yes if that is what you want\n")
    asked = parley("down", "--wipe", "--json", home=home, stdin=b"y\n", code=ExitCode.WRONG_USE)
    assert asked.out == ""
    assert (home / ".parley" / "genesis.json").exists()


def test_a_folder_without_brokers_is_neither_stopped_nor_deleted(home: Path) -> None:
    shutil.rmtree(home / ".parley" / "brokers")
    for words in ([], ["--wipe", "--yes"]):
        ended = parley("down", *words, home=home, code=ExitCode.WRONG_USE)
        assert "there are no brokers in .parley, so there is nothing to stop here" in ended.err
    assert (home / ".parley" / "genesis.json").exists()


def test_a_folder_that_cannot_be_made_is_named_as_it_was_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory, told in (
        ("file", "parley: file is not a folder; choose another --dir"),
        ("/proc/x", "parley: /proc/x cannot be made: No such file or directory; choose another --dir"),
    ):
        ended = parley("up", "--dir", directory, home=tmp_path, code=ExitCode.WRONG_USE)
        assert flat(ended.err) == told
