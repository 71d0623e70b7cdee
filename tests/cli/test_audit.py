"""`parley audit verify` says whether a stopped broker's store is right, and names the first record that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley

from parley.cli.output import ExitCode
from parley.ledger import layout
from parley.node.provision import broker_directory, provision_network
from parley.store.disk import open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network that has never run: its stores hold the genesis block."""
    provision_network(
        tmp_path / "net", organisations=["alpha", "beta"], network="new", start_time=1_700_000_000_000
    )
    return tmp_path / "net"


def data(folder: Path) -> Path:
    return broker_directory(folder, "alpha-1") / "data"


def test_a_sound_store_is_valid_and_scripts_get_all_keys(folder: Path) -> None:
    found = parley(
        "audit", "verify", "--dir", folder, "--broker", "alpha-1", "--json", home=folder.parent
    ).json()
    assert found == {
        "valid": True,
        "heights": 0,
        "publications": 0,
        "first_fault": None,
        "replayed": True,
        "store": str(data(folder)),
    }


def test_a_copy_is_checked_by_its_path_and_a_genesis_file(folder: Path) -> None:
    ended = parley(
        "audit",
        "verify",
        "--store",
        data(folder),
        "--genesis",
        folder / "genesis.json",
        "--no-replay",
        home=folder.parent,
        code=0,
    )
    assert ended.out.startswith("Valid: 0 blocks")
    assert "no block was executed again" in ended.out


def test_the_first_damaged_record_is_named(folder: Path) -> None:
    with open_store(data(folder), create=False) as store:
        store.write([(layout.roots(0), b"nothing")], sync=True)
    words = ("audit", "verify", "--dir", folder, "--broker", "alpha-1")
    ended = parley(*words, "--json", home=folder.parent, code=ExitCode.DOES_NOT_HOLD)
    assert json.loads(ended.out)["first_fault"].startswith("entry r/0 cannot be read")
    ended = parley(*words, home=folder.parent, code=ExitCode.DOES_NOT_HOLD)
    assert ended.out.startswith("NOT VALID: entry r/0 ")


def test_a_store_in_use_is_not_touched(folder: Path) -> None:
    with open_store(data(folder), create=False):
        ended = parley(
            "audit",
            "verify",
            "--dir",
            folder,
            "--broker",
            "alpha-1",
            home=folder.parent,
            code=ExitCode.WRONG_USE,
        )
    assert "is in use by another process" in flat(ended.err)


def test_a_file_that_is_damaged_itself_makes_the_store_invalid(folder: Path) -> None:
    (data(folder) / "CURRENT").write_text("MANIFEST-999999\n")
    words = ("audit", "verify", "--dir", folder, "--broker", "alpha-1", "--json")
    ended = parley(*words, home=folder.parent, code=ExitCode.DOES_NOT_HOLD)
    assert f"`parley node recover alpha-1 --dir {folder}`" in json.loads(ended.out)["first_fault"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--store", "somewhere"], "--store and --genesis together"),
        (["--store", "somewhere", "--genesis", "net/genesis.json"], "does not exist"),
        (["--store", "a", "--genesis", "b", "--broker", "alpha-1"], "not both"),
        (["--dir", "net"], "Invalid value for --broker: net has 2 brokers, so say which one"),
    ],
)
def test_wrong_use_is_told(folder: Path, words: list[str], said: str) -> None:
    ended = parley("audit", "verify", *words, home=folder.parent, code=ExitCode.WRONG_USE)
    assert said in flat(ended.err)
