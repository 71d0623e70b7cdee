import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.commands import flat, parley, start

from parley.cli.output import ExitCode
from parley.node.processes import free_addresses

NAMES = ("alpha", "bravo", "charlie", "delta")


@contextmanager
def nodes(machines: list[Path]) -> Iterator[None]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [start("node", home=machine) for machine in machines]
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.communicate(timeout=60)
    assert [process.returncode for process in running] == [0] * len(machines)


def test_four_machines_make_a_network_by_exchanging_public_files_only(tmp_path: Path) -> None:
    machines = [tmp_path / name for name in NAMES]
    mail = tmp_path / "mail"
    mail.mkdir()
    for machine, address in zip(machines, free_addresses(4, tmp_path), strict=True):
        machine.mkdir()
        part = parley("init", machine.name, "--address", address, "--json", home=machine).json()["part"]
        shutil.copy(machine / part, mail)
    parts = sorted(mail.glob("*.part.json"))
    chains = set()
    for machine in machines:
        made = parley("genesis", "combine", *parts, "--network", "trial", "--json", home=machine).json()
        assert (made["complete"], made["signed"], len(made["missing"])) == (False, [machine.name], 3)
        chains.add(made["chain"])
        shutil.copy(machine / made["file"], mail)
    assert len(chains) == 1
    drafts = sorted(mail.glob("*.draft.json"))
    files = set()
    for machine in machines:
        made = parley("genesis", "combine", *drafts, "--json", home=machine).json()
        assert (made["complete"], made["missing"]) == (True, [])
        files.add((machine / ".parley" / "genesis.json").read_bytes())
    assert len(files) == 1
    secrets = {path.read_bytes() for machine in machines for path in machine.glob(".parley/**/*.key")}
    assert not any(secret.strip() in path.read_bytes() for path in mail.iterdir() for secret in secrets)
    with nodes(machines):
        alpha, bravo = machines[:2]
        parley("status", "--wait", "60", home=alpha, code=0)
        parley("client", "create", "alice", "-a", "role=nurse", home=alpha, code=0)
        parley("client", "create", "bob", home=bravo, code=0)
        parley("topic", "create", "shared", "--publish", 'role == "nurse"', home=alpha, code=0)
        published = parley("pub", "shared", "hello", "--json", home=alpha).json()
        assert parley("fetch", "shared", home=bravo, code=0).out == "hello\n"
        refused = parley("pub", "shared", "me too", home=bravo, code=ExitCode.DOES_NOT_HOLD)
        assert "PermissionDenied" in refused.err
        verdict = parley("verify", alpha / published["receipt"], "--json", home=bravo).json()
        assert verdict["publisher"] == "alpha/alice"


def test_a_draft_that_says_something_else_of_us_is_not_signed(tmp_path: Path) -> None:
    parts = []
    for number in (1, 2):
        home = tmp_path / f"machine-{number}"
        home.mkdir()
        made = parley("init", "alpha", "--address", f"10.0.0.{number}:7101", "--json", home=home).json()
        parts.append(home / made["part"])
    ended = parley("genesis", "combine", parts[0], home=tmp_path / "machine-2", code=ExitCode.WRONG_USE)
    assert "what these files say of alpha is not what" in ended.err


def test_one_organisation_alone_is_complete_at_once_and_never_replaced(tmp_path: Path) -> None:
    parley("init", "alpha", "--broker", "first", "--address", "10.0.0.1:7101", home=tmp_path, code=0)
    part = ".parley/alpha.part.json"
    assert parley("genesis", "combine", part, "--json", home=tmp_path).json()["complete"]
    assert parley("genesis", "combine", part, "--json", home=tmp_path).json()["complete"]
    ended = parley("genesis", "combine", part, "--network", "other", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "move it away first" in ended.err


def test_keys_are_never_made_over_others(tmp_path: Path) -> None:
    parley("init", "alpha", "--address", "10.0.0.1:7101", home=tmp_path, code=0)
    before = (tmp_path / ".parley" / "organisations" / "alpha" / "anchor.key").read_bytes()
    ended = parley("init", "alpha", "--address", "10.0.0.1:7101", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "not empty" in ended.err
    assert (tmp_path / ".parley" / "organisations" / "alpha" / "anchor.key").read_bytes() == before


def test_wrong_use_says_what_was_meant(tmp_path: Path) -> None:
    for words, told in (
        (["init", "Alpha", "--address", "h:1"], "is no name"),
        (["init", "alpha", "--address", "nowhere"], "is not an address"),
        (
            ["init", "alpha", "--broker", "a", "--broker", "b", "--address", "h:1"],
            "2 brokers and 1 addresses",
        ),
        (["genesis", "combne"], "Did you mean 'combine'?"),
        (["genesis", "combine", "none.json"], "none.json"),
        (["node", "none.toml"], "there is no file none.toml"),
    ):
        ended = parley(*words, home=tmp_path, code=ExitCode.WRONG_USE)
        assert told in flat(ended.err)
