"""docs/deploy.md sets up four machines: its commands are run here as they stand, on machines made of namespaces."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ops.guides import ROOT, Command, commands
from tests.ops.namespaces import SECONDS, Lan, why_not
from tests.ops.units import Services

PAGE = "docs/deploy.md"
ADDRESSES = {"alpha": "10.7.0.1", "bravo": "10.7.0.2", "charlie": "10.7.0.3", "delta": "10.7.0.4"}
CLIENTS = {"alice": "alpha", "bob": "bravo"}  # and the machines on which they work
HOME = "/var/lib/parley"
FIRST, WITHOUT_DELTA = "blood pressure 120/80", "pulse 71"  # what the guide publishes
# The same on every machine: it is made once and shared, to save time.
ONCE = ("python3 -m venv ", "/opt/parley/bin/pip install ")


class Consortium:
    """Four machines whose operators and users type what the guide says, each in a shell of their own."""

    def __init__(self, lan: Lan, folder: Path) -> None:
        self.lan = lan
        self.folder = folder
        self.machines = lan.machines
        self.services = {name: Services(machine) for name, machine in self.machines.items()}
        (folder / "opt").mkdir()
        for machine in self.machines.values():
            shutil.copytree(folder / "kit", machine.path("/root/kit"))
            machine.run(f"mkdir /opt/parley && mount --bind {folder / 'opt'} /opt/parley")
            machine.run(f"echo {ADDRESSES['delta']} delta.example >> /etc/hosts")  # the name service
        for client, where in CLIENTS.items():
            self.machines[where].run(f"useradd --create-home --user-group {client}")

    def follow(self, section: str, after: Callable[[str], None] | None = None) -> dict[tuple[str, str], str]:
        """Type all that a section says, and after each command do what no machine does; what each one printed."""
        printed = {}
        for command in commands(PAGE, section):
            if command.who == "sources":
                continue
            for who in self._who(command):
                printed[who, command.text] = self._type(command, who)
            if after is not None:
                after(command.text)
        return printed

    def say(self, who: str, text: str) -> str:
        """What a command prints that is not in the guide."""
        return self._type(Command(who, root=False, text=text), who)

    def start(self, client: str, text: str) -> subprocess.Popen[bytes]:
        return self.machines[CLIENTS[client]].start(text, user=client, home=f"/home/{client}")

    def down(self, who: str, *, code: int = 0) -> list[str]:
        """The brokers that do not answer this operator; `code` is how `status` has to end."""
        ends = f"code=0; parley status --json --dir network || code=$?; test $code = {code}"
        said = json.loads(self.say(who, ends))
        brokers = said["layers"]["data"]["shards"]["0"]["brokers"]
        return [broker["name"] for broker in brokers if broker["state"] == "down"]

    def send(self, sender: str, path: str, receiver: str, destination: str) -> None:
        """Carry a file from one machine to another, as mail does."""
        target = self.machines[receiver].path(destination)
        target.write_bytes(self.machines[sender].path(path).read_bytes())
        target.chmod(0o644)

    def _who(self, command: Command) -> list[str]:
        if command.who != "every":
            return [command.who]
        return ["alpha"] if command.text.startswith(ONCE) else list(ADDRESSES)

    def _type(self, command: Command, who: str) -> str:
        machine = self.machines[CLIENTS.get(who, who)]
        if command.text.startswith("systemctl "):
            assert command.root, command
            self.services[who].systemctl(command.text)
            return ""
        if command.root:
            return machine.run(command.text).out
        user, home = (who, f"/home/{who}") if who in CLIENTS else ("parley", HOME)
        return machine.run(command.text, user=user, home=home).out


def test_the_guide_leads_four_machines_to_a_verified_publication_without_one_of_them_and_back(
    tmp_path: Path,
) -> None:
    for name in ("probe", "lan"):
        (tmp_path / name).mkdir()
    if reason := why_not(tmp_path / "probe"):
        pytest.skip(reason)
    make_kit(tmp_path)
    with Lan(tmp_path / "lan", ADDRESSES) as lan:
        network = Consortium(lan, tmp_path)
        install(network)
        hold_the_ceremony(network)
        network.follow("Start the brokers")
        the_port_list_is_complete(network)
        publish_first(network)
        switch_delta_off_and_on(network)
        pull_the_cable_of_delta(network)
        network.follow("Upgrade")
        for name, services in network.services.items():
            assert services.stop(f"parley@{name}-1") == 0


def make_kit(folder: Path) -> None:
    """What the guide says about the sources, in a copy of what a wheel is made of."""
    sources = folder / "sources"
    for name in ("src", "ops"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, sources)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    isolated = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # pip reads the latter as: no isolation
    for command in commands(PAGE, "Install"):
        if command.who == "sources":
            environment = {"PATH": path, "HOME": str(folder), **isolated}
            subprocess.run(["bash", "-euc", command.text], cwd=sources, env=environment, check=True)
    shutil.move(sources / "kit", folder / "kit")


def install(network: Consortium) -> None:
    def dependencies(text: str) -> None:
        """There is no index to install from: what a wheel needs is what the tests run with."""
        if text.startswith("python3 -m venv "):
            (packages,) = (network.folder / "opt").glob("lib/python*/site-packages")
            (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    network.follow("Install", dependencies)


def hold_the_ceremony(network: Consortium) -> None:
    def exchange(text: str) -> None:
        for kind in ("part", "draft"):
            if text == f"cp network/*.{kind}.json exchange/":
                for sender in ADDRESSES:
                    name = f"{HOME}/exchange/{sender}.{kind}.json"
                    for receiver in ADDRESSES.keys() - {sender}:
                        network.send(sender, name, receiver, name)

    network.follow("The genesis ceremony", exchange)
    files = [machine.path(f"{HOME}/network/genesis.json") for machine in network.machines.values()]
    assert len({path.read_bytes() for path in files}) == 1
    assert {path.parents[1].stat().st_mode & 0o777 for path in files} == {0o700}


def the_port_list_is_complete(network: Consortium) -> None:
    for name, machine in network.machines.items():
        lines = machine.run("ss --no-header --listening --tcp --udp --numeric").out.splitlines()
        assert {line.split()[4] for line in lines} == {f"{ADDRESSES[name]}:7100", "127.0.0.1:9464"}


def publish_first(network: Consortium) -> None:
    def mail(text: str) -> None:
        if text.startswith("parley pub "):
            network.send("alpha", "/home/alice/receipt.json", "bravo", "/home/bob/receipt.json")

    printed = network.follow("Clients and a first publication", mail)
    assert printed["bob", "parley sub records --from earliest -n 1"] == f"{FIRST}\n"
    assert "alpha/alice" in printed["bob", "parley verify receipt.json"]


def switch_delta_off_and_on(network: Consortium) -> None:
    def look(text: str) -> None:
        if text == "parley status":
            assert network.down("alpha") == ["delta-1"]

    printed = network.follow("Without one machine", look)
    assert printed["bob", "parley sub records --from earliest -n 2"] == f"{FIRST}\n{WITHOUT_DELTA}\n"
    assert network.down("alpha") == []


def pull_the_cable_of_delta(network: Consortium) -> None:
    expected = [FIRST, WITHOUT_DELTA, "pulse 72", "pulse 73"]
    network.say("delta", "parley client create dave --dir network")
    reader = network.start("bob", f"parley sub records --from earliest -n {len(expected)}")
    with network.lan.cut("delta"):
        for text in expected[2:]:
            network.say("alice", f"parley pub records '{text}' --receipt none")
        assert reader.communicate(timeout=SECONDS)[0].decode().splitlines() == expected
        assert network.down("alpha") == ["delta-1"]
        assert network.down("delta", code=1) == ["alpha-1", "bravo-1", "charlie-1"]
    network.say("alpha", "parley status --wait 120 --dir network")
    # Its own broker's word: this one has it all.
    read = network.say("delta", "parley fetch records --verify trusted --as delta/dave --dir network")
    assert read.splitlines() == expected


def test_where_machines_cannot_be_made_the_reason_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda tool, **_: None if tool == "ip" else tool)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "apt-get install iproute2" in (why_not(tmp_path) or "")
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert "needs root" in (why_not(tmp_path) or "")
