import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.commands import flat
from typer.testing import CliRunner

from parley.cli import contexts, contexts_commands, local
from parley.cli.output import ExitCode
from parley.client.contexts import config_home, context_names, current_context
from parley.node.provision import provision_network

runner = CliRunner()


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks that nobody runs: here/one and here/two."""
    home = tmp_path_factory.mktemp("networks")
    for name in ("one", "two"):
        provision_network(
            home / name,
            organisations=["alpha", "bravo"],
            network=name,
            start_time=1_700_000_000_000,
            clients=("alice", "bob"),
        )
    return home


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PARLEY_CONTEXT", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def command(*words: str) -> dict[str, Any]:
    result = runner.invoke(contexts_commands.app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def save(name: str, network: Path) -> None:
    command("add", name, "--dir", str(network))


def test_a_directory_comes_before_everything(networks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("saved", networks / "two")
    monkeypatch.setenv("PARLEY_CONTEXT", "saved")
    assert contexts.find(networks / "one", None).directory == networks / "one"


def test_the_order_is_option_variable_folder_current(networks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("first", networks / "one")
    save("second", networks / "two")
    assert current_context() == "first"
    assert contexts.find(None, None).directory == networks / "one"
    Path(".parley").symlink_to(networks / "two")
    assert contexts.find(None, None).source == "./.parley"
    monkeypatch.setenv("PARLEY_CONTEXT", "first")
    assert contexts.find(None, None).source == "PARLEY_CONTEXT=first"
    assert contexts.find(None, "second").source == "--context second"


def test_without_any_network_the_way_to_one_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        contexts.find(None, None)
    assert ended.value.exit_code == ExitCode.WRONG_USE
    told = capsys.readouterr().err
    for way in ("parley up", "--dir", "--context", "parley context add"):
        assert way in told


def test_a_folder_without_a_network_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "alpha.part.json").touch()
    for folder, how in (
        (tmp_path, "holds no network\n"),
        (tmp_path / "begun", f"parley genesis combine FILE... --dir {tmp_path / 'begun'}\n"),
        (tmp_path / "nothing", f"parley up --dir {tmp_path / 'nothing'}\n"),
    ):
        with pytest.raises(typer.Exit):
            contexts.find(folder, None)
        assert capsys.readouterr().err.endswith(how)


def test_a_wrong_name_says_which_was_meant(networks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("hospital", networks / "one")
    with pytest.raises(typer.Exit):
        contexts.find(None, "hosptal")
    assert "did you mean hospital?" in capsys.readouterr().err


def test_a_name_that_is_like_no_other_says_which_there_are(
    networks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        contexts.find(None, "nope")
    told = "there is no context 'nope'; none is saved: `parley up` saves one, as does `parley context add`\n"
    assert capsys.readouterr().err == f"parley: {told}"
    save("hospital", networks / "one")
    save("school", networks / "two")
    with pytest.raises(typer.Exit):
        contexts.find(None, "nope")
    assert capsys.readouterr().err == "parley: there is no context 'nope'; there are hospital, school.\n"
    command("remove", "hospital")
    with pytest.raises(typer.Exit):
        contexts.find(None, None)
    assert "choose a saved one with `parley context use NAME` (school), or" in capsys.readouterr().err


def test_a_long_list_of_names_is_cut() -> None:
    many = [f"name-{number}" for number in range(contexts.MAX_LISTED + 3)]
    assert contexts.meant("unlike", many).endswith("name-10, name-11 and 3 more.")
    assert contexts.meant("unlike", ["one"]) == "; there is one."
    assert contexts.meant("unlike", []) == "."


def test_directory_and_context_exclude_each_other(networks: Path) -> None:
    with pytest.raises(typer.BadParameter, match="not both"):
        contexts.find(networks / "one", "saved")


def test_another_identity_of_the_folder_can_speak(networks: Path) -> None:
    chosen = contexts.find(networks / "one", None)
    assert chosen.speaker(None).name == "alpha-alice.json"
    assert chosen.speaker(None, admin=True).name == "alpha-admin.json"
    assert chosen.speaker("bravo/bob", admin=True).name == "bravo-bob.json"
    with pytest.raises(typer.BadParameter, match=r"did you mean bravo/bob\?"):
        chosen.speaker("bravo/bop")
    with pytest.raises(typer.BadParameter, match="ORG/NAME"):
        chosen.speaker("../../etc/passwd")


def test_a_file_that_names_two_clients_speaks_for_the_one_it_was_issued_to(
    networks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(networks / "one", copy)
    (copy / "identities" / "bravo-bob.json").rename(copy / "identities" / "bravo-eu-bob.json")
    with pytest.raises(typer.Exit):
        contexts.find(copy, None).speaker("bravo/eu-bob")
    assert "is the identity of bravo/bob" in capsys.readouterr().err


def test_saved_contexts_are_listed_used_and_forgotten(networks: Path) -> None:
    save("one", networks / "one")
    save("two", networks / "two")
    listed = command("list")
    assert [entry["name"] for entry in listed["contexts"]] == ["one", "two"]
    assert listed["current"] == "one"
    command("use", "two")
    assert command("show")["genesis"] == str(networks / "two" / "genesis.json")
    command("remove", "two")
    assert current_context() is None
    assert context_names() == ["one"]


def test_a_context_can_be_made_of_files(networks: Path) -> None:
    home = networks / "one"
    command(
        "add",
        "by-hand",
        "--genesis",
        str(home / "genesis.json"),
        "--identity",
        str(home / "identities" / "bravo-bob.json"),
        "--broker",
        "alpha-1=10.0.0.1:7000",
    )
    file = contexts.find(None, "by-hand").file
    assert (file.identity.name, file.admin, dict(file.brokers)) == (
        "bravo-bob.json",
        None,
        {"alpha-1": "10.0.0.1:7000"},
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "one"], "--genesis FILE and --identity"),
        (["add", "No Name", "--dir", "DIR"], "cannot be the name"),
        (["add", "taken", "--dir", "DIR"], "remove it first"),
        (["add", "new", "--dir", "DIR", "--broker", "alpa-1=h:1"], "did you mean alpha-1?"),
        (["add", "new", "--dir", "DIR", "--identity", "none.json"], "there is no file none.json"),
        (["use", "takn"], "did you mean taken?"),
        (["remove", "takn"], "did you mean taken?"),
        (["show", "takn"], "did you mean taken?"),
        (["shw"], "show"),
    ],
)
def test_wrong_use_says_what_was_meant(words: list[str], told: str, networks: Path) -> None:
    save("taken", networks / "one")
    result = runner.invoke(
        contexts_commands.app, [word.replace("DIR", str(networks / "one")) for word in words]
    )
    assert result.exit_code == ExitCode.WRONG_USE
    assert told in flat(result.output)
    assert context_names() == ["taken"]


def test_paths_with_quotes_survive(networks: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'ö "quoted" \\ folder'
    odd.symlink_to(networks / "one")
    save("odd", odd)
    assert contexts.find(None, "odd").directory == odd


def test_up_does_not_take_a_context_from_another_network(
    networks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save("local", networks / "one")
    shutil.copytree(networks / "two", ".parley")
    assert local._save_context(Path(".parley"), None) is None
    assert "your context local stays with" in capsys.readouterr().err
    assert contexts.find(None, "local").directory == networks / "one"
    assert local._save_context(Path(".parley"), "mine") == "mine"
    assert contexts.find(None, "mine").directory == Path(".parley").absolute()


def test_up_does_not_change_whom_verify_trusts(
    networks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the network may have come with a proof that is to be checked."""
    save("hospital", networks / "one")
    contexts.set_current("hospital")
    shutil.copytree(networks / "two", ".parley")
    assert local._save_context(Path(".parley"), None) == "local"
    assert current_context() == "hospital"
    assert "your current context stays hospital" in capsys.readouterr().err
    assert contexts.find(None, "local").directory == Path(".parley").absolute()
    contexts.remove("hospital")
    assert local._save_context(Path(".parley"), None) == "local"
    assert current_context() == "local"


@pytest.mark.parametrize("broken", [b"\xff\xfe", b"../x", b"gone"])
def test_up_chooses_its_network_if_the_choice_before_cannot_be_used(broken: bytes, networks: Path) -> None:
    shutil.copytree(networks / "one", ".parley")
    save("other", networks / "two")
    contexts.set_current("other")
    (config_home() / "current").write_bytes(broken)
    assert local._save_context(Path(".parley"), None) == "local"
    assert current_context() == "local"


def test_up_takes_over_a_context_whose_network_is_gone(
    networks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(networks / "one", tmp_path / "gone")
    save("local", tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    shutil.copytree(networks / "two", ".parley")
    assert local._save_context(Path(".parley"), None) == "local"
    assert "which is gone" in capsys.readouterr().err
    assert current_context() == "local"
