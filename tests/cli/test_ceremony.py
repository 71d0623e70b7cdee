import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley, start

from parley.cli.output import ExitCode
from parley.node.config import load
from parley.node.processes import free_addresses
from parley.node.storage import StorageError, open_storage

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
        verdict = parley(
            "verify", alpha / published["receipt"], "--dir", ".parley", "--json", home=bravo
        ).json()
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
    broker = ".parley/brokers/first"
    stale = [
        ".parley/genesis.json",
        ".parley/identities/alpha-admin.json",
        f"{broker}/data",
        f"{broker}/safety.record",
    ]
    assert ended.err.split("move these away, and run this again:\n")[1].split() == stale


def test_a_network_that_tolerates_nobody_is_named_and_warned_of(tmp_path: Path) -> None:
    parts = []
    for place, name in enumerate(NAMES, 1):
        (tmp_path / name).mkdir()
        made = parley(
            "init", name, "--address", f"10.0.0.{place}:7101", "--json", home=tmp_path / name
        ).json()
        parts.append(tmp_path / name / made["part"])
    warning = "tolerates no faulty one. If parts are missing, do not use it"
    alone = parley("genesis", "combine", parts[0], "-o", "alone.json", home=tmp_path / "alpha", code=0)
    assert "Its brokers: alpha-1 of alpha.\n" in alone.out
    assert f"has 1 broker, fewer than 4, so it {warning}" in alone.err
    three = parley("genesis", "combine", *parts[:3], "--json", home=tmp_path / "alpha", code=0)
    assert three.json()["brokers"] == ["alpha-1", "bravo-1", "charlie-1"]
    assert warning in three.err
    four = parley("genesis", "combine", *parts, home=tmp_path / "alpha", code=0)
    assert (
        "Its brokers: alpha-1 of alpha, bravo-1 of bravo, charlie-1 of charlie, delta-1 of delta.\n"
        in four.out
    )
    assert four.err == ""


@pytest.mark.parametrize(
    ("of_alpha", "others", "warned"), [(2, 2, True), (2, 5, False), (3, 5, True), (1, 3, False)]
)
def test_an_organisation_that_could_break_the_network_alone_is_named(
    of_alpha: int, others: int, warned: bool, tmp_path: Path
) -> None:
    parts = []
    for place, name in enumerate(["alpha", *(f"org-{number}" for number in range(others))]):
        (tmp_path / name).mkdir()
        options: list[str] = []
        for number in range(of_alpha if name == "alpha" else 1):
            options += ["--broker", f"{name}-{number}", "--address", f"10.0.{place}.{number + 1}:7101"]
        made = parley("init", name, *options, "--json", home=tmp_path / name).json()
        parts.append(tmp_path / name / made["part"])
    combined = parley("genesis", "combine", *parts, "--json", home=tmp_path / "alpha", code=0)
    size = of_alpha + others
    warning = f"alpha has {of_alpha} of {size} brokers, but only {(size - 1) // 3} of them may be faulty"
    assert (warning in combined.err) is warned
    assert "org-0 has" not in combined.err


def test_who_signs_is_told_who_may_read_everything(tmp_path: Path) -> None:
    parts = []
    for place, (name, options) in enumerate({"alpha": ["--auditor"], "bravo": []}.items(), 1):
        (tmp_path / name).mkdir()
        address = f"10.0.0.{place}:7101"
        made = parley("init", name, "--address", address, *options, "--json", home=tmp_path / name).json()
        parts.append(tmp_path / name / made["part"])
    draft = parley("genesis", "combine", *parts, home=tmp_path / "bravo", code=0)
    assert "Who signs lets these read everything that is published, as auditors: alpha.\n" in draft.out
    drafts = parley("genesis", "combine", *parts, "--json", home=tmp_path / "alpha").json()
    assert drafts["auditors"] == ["alpha"]
    plain = parley("genesis", "combine", parts[1], "-o", "g.json", home=tmp_path / "bravo", code=0)
    assert "auditors" not in plain.out


def test_what_is_written_elsewhere_leaves_the_folder_alone(tmp_path: Path) -> None:
    parley("init", "alpha", "--address", "10.0.0.1:7101", home=tmp_path, code=0)
    before = sorted((tmp_path / ".parley").rglob("*"))
    ended = parley("genesis", "combine", ".parley/alpha.part.json", "-o", "g.json", home=tmp_path, code=0)
    assert "g.json is complete" in ended.out
    assert ".parley is as it was: to set it up, run this without --output." in ended.out
    assert sorted((tmp_path / ".parley").rglob("*")) == before
    parley("genesis", "combine", "g.json", home=tmp_path, code=0)
    assert (tmp_path / ".parley" / "genesis.json").read_bytes() == (tmp_path / "g.json").read_bytes()


def test_storage_is_made_again_only_as_its_errors_say(tmp_path: Path) -> None:
    parley("init", "alpha", "--address", "10.0.0.1:7101", home=tmp_path, code=0)
    combine = ("genesis", "combine", ".parley/alpha.part.json")
    parley(*combine, home=tmp_path, code=0)
    folder = tmp_path / ".parley" / "brokers" / "alpha-1"
    shutil.rmtree(folder / "data")
    (folder / "safety.record").unlink()
    parley(*combine, home=tmp_path, code=0)
    with pytest.raises(StorageError, match="move the genesis file away and combine again"):
        open_storage(load(folder / "broker.toml"))
    (tmp_path / ".parley" / "genesis.json").unlink()
    ended = parley(*combine, home=tmp_path, code=ExitCode.WRONG_USE)
    assert f"Only if the broker was never started in this network, remove {folder / 'provisioned'}".replace(
        f"{tmp_path}/", ""
    ) in flat(ended.err)
    (folder / "provisioned").unlink()
    parley(*combine, home=tmp_path, code=0)
    open_storage(load(folder / "broker.toml")).close()


def test_a_broker_that_runs_is_not_started_again(tmp_path: Path) -> None:
    config = tmp_path / "alpha-1" / "broker.toml"
    config.parent.mkdir()
    config.touch()
    with subprocess.Popen([sys.executable, "-c", "input()", config], stdin=subprocess.PIPE) as process:
        (config.parent / "pid").write_text(f"{process.pid}\n")
        ended = parley("node", config, home=tmp_path, code=ExitCode.WRONG_USE)
        process.communicate(b"\n")
    assert (ended.out, ended.err) == ("", f"parley: alpha-1 is running already, as process {process.pid}\n")


def test_a_broker_that_cannot_start_says_so_like_every_command(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").touch()
    process = start("node", "broker.toml", home=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.WRONG_USE
    assert b"is starting" in out
    assert err.startswith(b"parley: broker.toml: genesis: is missing")


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
        (["init", "alpha", "--address", "127.0.0.1:99999"], "with a port of at most 65535"),
        (["init", "alpha", "--address", "127.0.0.1:100000"], "with a port of at most 65535"),
        (["init", "alpha", "--address", "h:1", "--listen", "h"], "Invalid value for --listen: 'h' is not"),
        (
            ["init", "alpha", "--address", "h:1", "--dir", "/dev/null"],
            "/dev/null is not a folder; choose another",
        ),
        (
            ["init", "alpha", "--address", "h:1", "--dir", "/proc/x"],
            "parley: /proc/x cannot be made: No such file",
        ),
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
