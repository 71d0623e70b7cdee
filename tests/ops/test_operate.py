"""The guides for operators do what they say: every command of docs/operate.md, on real brokers, under load."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ops.consortium import ORGANISATIONS, Consortium, Load
from tests.ops.guides import commands

from parley.node.config import load
from parley.node.storage import open_storage

PAGE = "docs/operate.md"
NEW_ADDRESS = "10.7.0.9:7100"


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    with Consortium(tmp_path_factory.mktemp("consortium")) as made:
        made.found()
        yield made


def wipe(consortium: Consortium, organisation: str) -> None:
    """What a broken disk leaves of a broker: its keys, which lie elsewhere."""
    folder = consortium.broker(organisation).folder
    shutil.rmtree(folder / "data")
    (folder / "safety.record").unlink()


def pids(consortium: Consortium) -> list[int | None]:
    return [consortium.broker(one).pid() for one in ORGANISATIONS]


def test_a_rolling_restart_is_not_noticed(consortium: Consortium) -> None:
    before = pids(consortium)
    with Load(consortium):
        consortium.follow("Rolling restart")
    assert not set(before) & set(pids(consortium))


def test_a_lost_disk_is_brought_back_from_the_others(consortium: Consortium) -> None:
    with Load(consortium):
        consortium.type("delta", "parley down delta-1 --dir network")
        wipe(consortium, "delta")
        consortium.follow("A broker that lost its disk")


@pytest.mark.long
def test_a_ledger_is_backed_up_read_and_restored_while_the_others_go_on(consortium: Consortium) -> None:
    with Load(consortium) as load:
        consortium.follow("Back up the ledger")
        backed_up = load.count
        auditor = consortium.home("auditor")
        auditor.mkdir()
        shutil.copy(consortium.home("delta") / "ledger.tar", auditor)
        shutil.copy(consortium.network("alpha") / "genesis.json", auditor)
        *_, verify = commands(PAGE, "Read a backup without a network")
        consortium.follow("Read a backup without a network")
        # On a store that was just audited; --json says how much there was to check.
        told = json.loads(consortium.type("auditor", f"{verify.text} --json"))
        assert told["valid"]
        assert told["replayed"]
        assert told["publications"] > 0
        consortium.type("delta", "parley down delta-1 --dir network")
        wipe(consortium, "delta")
        consortium.follow("Restore a backup")
        assert load.count > backed_up
    # The restored broker has what was published before and after its backup.
    consortium.type("delta", "parley down delta-1 --dir network")
    consortium.type("delta", "parley audit verify --broker delta-1 --dir network")
    consortium.type("delta", "parley up delta-1 --dir network")
    consortium.type("delta", "parley status --wait 120 --dir network")


@pytest.mark.long
def test_a_new_machine_with_a_new_address_takes_the_place_of_the_old(consortium: Consortium) -> None:
    with Load(consortium):
        consortium.follow("Back up the keys")
        kept = consortium.home("delta") / "keys.tar.gz"
        with tarfile.open(kept) as archive:
            names = archive.getnames()
        assert kept.stat().st_mode & 0o077 == 0
        assert "network/organisations/delta/anchor.key" in names
        assert not [name for name in names if "safety" in name or "/data" in name or "log" in name]
        consortium.type("delta", "parley down delta-1 --dir network")
        consortium.network("delta").rename(consortium.home("delta") / "the old machine")
        consortium.follow("A new machine")
        consortium.follow("A new address", {NEW_ADDRESS: consortium.spare})
    assert (consortium.broker("delta").folder / "address").read_text().strip() == consortium.spare


def test_help_can_be_asked_for(consortium: Consortium) -> None:
    consortium.follow("Ask for help")
    with tarfile.open(consortium.home("alpha") / "support.tar.gz") as archive:
        manifest = json.load(archive.extractfile("support/manifest.json") or pytest.fail("it has none"))
    assert manifest["problems"] == []


@pytest.mark.long
def test_when_too_many_records_are_lost_nobody_signs_and_backups_can_be_read(tmp_path: Path) -> None:
    """The page says so, and that no command brings such a network back."""
    with Consortium(tmp_path) as consortium:
        consortium.found()
        for organisation in ORGANISATIONS:
            name = f"{organisation}-1"
            consortium.type(organisation, f"parley node backup {name} --to ledger.tar --dir network")
            consortium.type(organisation, f"parley down {name} --dir network")
        for organisation in ORGANISATIONS:
            wipe(consortium, organisation)
            consortium.type(
                organisation, f"parley node restore ledger.tar {organisation}-1 --yes --dir network"
            )
            storage = open_storage(load(consortium.broker(organisation).config))
            storage.close()
            assert storage.record[1].abstains
            consortium.type(organisation, f"parley up {organisation}-1 --dir network")
        said = json.loads(consortium.type("alpha", "parley status --json --dir network || test $? = 1"))
        states = {one["state"] for one in said["layers"]["data"]["shards"]["0"]["brokers"]}
        assert states == {"recovering"}
        consortium.type("delta", "parley down delta-1 --dir network")
        consortium.type("delta", "parley audit verify --broker delta-1 --dir network")


def test_every_section_with_commands_is_run_by_a_test_here() -> None:
    text, here = (Path(__file__).parents[2] / PAGE).read_text(), Path(__file__).read_text()
    sections = [part.splitlines()[0] for part in text.split("\n## ")[1:] if "```console" in part]
    assert len(sections) >= 8
    assert [title for title in sections if f'follow("{title}"' not in here] == []
