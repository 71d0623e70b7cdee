"""docs/certificates.md: its commands are run here as they stand, on folders that stand for machines; and what is refused."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cli.commands import Ended, flat, parley, shell
from tests.node.network import LocalNetwork
from tests.node.raw_client import client, reach
from tests.ops.guides import commands

from parley.cli import renew
from parley.cli.output import ExitCode
from parley.client.contexts import read_identity, renewed
from parley.crypto.ed25519 import SecretKey
from parley.model.credentials import Identity, issue_credential
from parley.node.admin.place import SOCKET
from parley.node.certificates import create_authority, issue
from parley.node.config import load
from parley.node.keys import read_key
from parley.node.processes import LocalBroker
from parley.node.provision import (
    broker_directory,
    identity_path,
    provision_network,
    read_authority,
)
from parley.node.renewal import confirm, tell
from parley.node.secrets import write_secret
from parley.node.shown import load_shown

PAGE = "docs/certificates.md"
DAY = 86_400_000
BROKER, WHO = "alpha-1", "alpha-alice.json"


def now() -> int:
    return time.time_ns() // 1_000_000


def tls_files(home: Path) -> dict[str, bytes]:
    folder = broker_directory(home, BROKER)
    return {path.name: path.read_bytes() for path in folder.glob("tls.*")}


def expire(home: Path) -> None:
    """Give the broker a certificate that has ended."""
    old = issue(read_authority(home, "alpha"), BROKER, "alpha", now=now() - 400 * DAY)
    folder = broker_directory(home, BROKER)
    write_secret(folder / "tls.key", old.key, replace=True)
    (folder / "tls.crt").write_bytes(old.certificate)


# -- the guide -----------------------------------------------------------------------------------------------------------


class Machines:
    """A network whose organisations are in one folder, on the machine alpha; authority and alice have machines too."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in ("alpha", "authority", "alice"):
            (home / name).mkdir()
        self.network = LocalNetwork(home / "alpha" / "network", by_command=True)
        self.directory = self.network.directory

    def follow(self, section: str) -> list[Ended]:
        """Type all that a section says; each command must succeed. What is public is carried along."""
        done = []
        for command in commands(PAGE, section):
            first, *words = shlex.split(command.text)
            assert first == "parley"
            where = self.home / command.who
            before = {path: path.stat().st_mtime_ns for path in self._public()}
            done.append(shell(*words, home=where, code=0))
            for path in self._public():
                if before.get(path) != path.stat().st_mtime_ns:
                    self._carry(path)
        return done

    def _public(self) -> list[Path]:
        found = [path for pattern in ("*/*.csr", "*/*.crt") for path in self.home.glob(pattern)]
        return [*found, *self.directory.glob("credentials/*")]

    def _carry(self, path: Path) -> None:
        assert b"PRIVATE" not in path.read_bytes()
        assert b'"seed"' not in path.read_bytes()
        for name in ("alpha", "authority", "alice"):
            if not (self.home / name / path.name).exists():
                shutil.copy(path, self.home / name)

    def shown(self) -> bytes:
        """The certificate that a new connection sees; the connection is of use, too."""

        async def look() -> bytes:
            async with client(self.network, BROKER, "alpha", "admin") as admin:
                assert (await admin.status()).broker == BROKER
                found = admin.stream.peer_certificate
                assert found is not None
                return found

        return asyncio.run(look())

    def registered(self, who: str) -> None:
        """Make the client known to the ledger."""
        identity = self.network.identity("alpha", who)
        words = ["--key", identity.credential.key.hex(), "--proof", identity.proof().hex()]
        shell("client", "create", who, *words, "--dir", self.directory, home=self.home, code=0)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    with made.network:
        yield made


def test_the_guide_renews_a_broker_that_runs(machines: Machines) -> None:
    machines.network.start()
    before = machines.shown()
    (done,) = machines.follow("Renew a broker's certificate")
    assert "alpha-1 shows its new certificate" in done.out
    assert machines.shown() != before
    assert machines.network.is_running(BROKER)


def test_the_guide_renews_with_the_authority_on_another_machine(machines: Machines) -> None:
    machines.network.start()
    there = machines.home / "authority" / "network"
    there.mkdir()
    shutil.move(machines.directory / "organisations", there)
    shutil.copy(machines.directory / "genesis.json", there)
    refused = shell("node", "renew", BROKER, "--dir", "network", home=machines.home / "alpha", code=2)
    assert "parley node request" in refused.err
    before = machines.shown()
    asked, signed, installed = machines.follow("With the authority on another machine")
    (one,) = {word for word in asked.out.split() if len(word.rstrip(".")) == 64}
    assert one in signed.out, "both sides see the same fingerprint"
    assert "alpha-1 shows its new certificate" in installed.out
    assert machines.shown() != before


def test_the_guide_renews_the_credential_of_a_client_that_keeps_its_secret(machines: Machines) -> None:
    machines.network.start()
    asyncio.run(_reached(machines.network))
    machines.registered("alice")
    alice = machines.home / "alice"
    shutil.copy(machines.directory / "genesis.json", alice)
    shutil.move(identity_path(machines.directory, "alpha", "alice"), alice / WHO)
    shell("context", "add", "work", "--genesis", "genesis.json", "--identity", WHO, home=alice, code=0)
    shell("context", "use", "work", home=alice, code=0)
    before = read_identity(alice / WHO)
    machines.follow("Renew a client's credential")
    after = read_identity(alice / WHO)
    assert after.credential.not_after > before.credential.not_after
    assert (after.seed, after.credential.key) == (before.seed, before.credential.key)
    assert shell("topic", "list", home=alice, code=0).err == ""


async def _reached(network: LocalNetwork) -> None:
    for name in network.names:
        await (await reach(network, name)).wait_closed()


def test_the_guide_mends_what_has_ended(machines: Machines) -> None:
    expire(machines.directory)
    mended, client_renewed = machines.follow("When it has ended")
    assert "it is shown from its next start on" in mended.out
    assert "alpha/admin has a new credential" in client_renewed.out
    machines.network.start()
    assert machines.shown()


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "net"
    provision_network(directory, organisations=("alpha", "beta"), network="n", start_time=now())
    return directory


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    """A user's home with a network of two in the default folder; nothing runs."""
    shutil.copytree(template, tmp_path / ".parley")
    return tmp_path


def test_a_script_is_told_until_when_and_that_nothing_runs(home: Path) -> None:
    told = parley("node", "renew", BROKER, "--days", "10", "--json", home=home).json()
    assert (told["broker"], told["pid"]) == (BROKER, None)
    assert abs(told["ends"] - now() - 10 * DAY) < DAY
    assert sorted(tls_files(home / ".parley")) == ["tls.crt", "tls.key", "tls.old.crt"]


def test_the_broker_that_is_meant_has_to_be_said(home: Path) -> None:
    ended = parley("node", "renew", home=home, code=ExitCode.WRONG_USE)
    assert "has 2 brokers, so say which one is meant" in flat(ended.err)


def test_another_authority_than_the_one_of_the_genesis_file_signs_nothing(home: Path) -> None:
    folder = home / ".parley" / "organisations" / "alpha"
    other = create_authority("alpha", now=now())
    write_secret(folder / "ca.key", other.key, replace=True)
    (folder / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(other.certificate))
    before = tls_files(home / ".parley")
    ended = parley("node", "renew", BROKER, home=home, code=ExitCode.WRONG_USE)
    assert "is not the authority of alpha that the genesis file names" in ended.err
    (folder / "ca.crt").write_text("no")
    ended = parley("node", "renew", BROKER, home=home, code=ExitCode.WRONG_USE)
    assert "is not in PEM form" in ended.err
    assert tls_files(home / ".parley") == before


def test_what_the_authority_cannot_sign_is_not_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tls_files(home / ".parley")
    later = int(time.time() * 1_000) + 60_000  # than the authority was made
    monkeypatch.setattr(renew, "_now", lambda: later)
    ended = parley("node", "renew", BROKER, "--days", "3650", home=home, code=ExitCode.WRONG_USE)
    assert "before the certificate would: issue it for fewer than 3650 days" in ended.err
    (home / ".parley" / "organisations" / "alpha" / "ca.key").write_bytes(b"damaged")
    ended = parley("node", "renew", BROKER, home=home, code=ExitCode.WRONG_USE)
    assert "not a private key" in ended.err
    assert tls_files(home / ".parley") == before


def test_what_is_no_request_or_no_certificate_is_named(home: Path) -> None:
    (home / "file").write_bytes(b"no")
    ended = parley("node", "sign", "file", home=home, code=ExitCode.WRONG_USE)
    assert "file: it is not a request of `parley node request`" in ended.err
    before = tls_files(home / ".parley")
    ended = parley("node", "install", "file", BROKER, home=home, code=ExitCode.WRONG_USE)
    assert "not a certificate in PEM form" in ended.err
    ended = parley("node", "install", "nowhere", BROKER, home=home, code=ExitCode.WRONG_USE)
    assert "nowhere: No such file" in ended.err
    assert tls_files(home / ".parley") == before


def test_a_broker_that_does_not_take_the_certificate_is_no_success(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are good and stay; the old ones lie beside them."""
    folder = broker_directory(home / ".parley", BROKER)
    config = load(folder / "broker.toml")
    monkeypatch.setattr(LocalBroker, "pid", lambda _: 1)
    assert tell(config) == 1, "it starts, so that it need not be told"
    assert asyncio.run(confirm(config, load_shown(config, now()), 0)) == "it does not listen yet"
    (folder / "address").write_text("127.0.0.1:1\n")
    assert "cannot be reached" in asyncio.run(confirm(config, load_shown(config, now()), 0))
    monkeypatch.setattr("parley.node.renewal.confirm.__defaults__", (0.0,))
    ended = parley("node", "renew", BROKER, "--new-key", home=home, code=ExitCode.DOES_NOT_HOLD)
    assert "has its new certificate on disk, but does not show it" in ended.err
    assert "parley logs alpha-1" in ended.err
    assert sorted(tls_files(home / ".parley")) == ["tls.crt", "tls.key", "tls.old.crt", "tls.old.key"]


@pytest.mark.parametrize("words", [["node", "renew"], ["node", "sign", "x"], ["client", "renew", "alice"]])
def test_it_needs_what_a_broker_needs(home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "parley.store.disk", None)
    ended = parley(*words, home=home, code=ExitCode.WRONG_USE)
    assert 'pip install "parley[node]"' in ended.err


def test_a_broker_that_was_killed_need_not_be_told(home: Path) -> None:
    folder = broker_directory(home / ".parley", BROKER)
    (folder / "address").write_text("127.0.0.1:1\n")
    (folder / "pid").write_text(f"{2**22 + 1}\n")  # more than the system gives
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / SOCKET))
    assert tell(load(folder / "broker.toml")) is None


# -- credentials ------------------------------------------------------------------------------------------------------------


def test_an_identity_in_the_folder_is_renewed_without_a_network(home: Path) -> None:
    path = identity_path(home / ".parley", "alpha", "alice")
    before = read_identity(path)
    told = parley("client", "renew", "alice", "--days", "700", "--json", home=home).json()
    after = read_identity(path)
    assert told["client"] == "alpha/alice"
    assert after.credential.not_after == told["ends"] > before.credential.not_after
    assert (after.seed, after.credential.key) == (before.seed, before.credential.key)
    assert '"seed"' not in Path(home / told["credential"]).read_text()


def test_a_client_takes_from_its_file_what_lasts_longer_and_is_its_own(home: Path) -> None:
    alice, bob = (identity_path(home / ".parley", "alpha", name) for name in ("alice", "admin"))
    old = read_identity(alice)
    assert renewed(old, None) is old
    assert renewed(old, home / "nowhere") is old
    parley("client", "renew", "admin", "--days", "700", home=home, code=0)
    assert renewed(old, bob) is old
    parley("client", "renew", "alice", "--days", "10", home=home, code=0)
    assert renewed(old, alice) is old
    parley("client", "renew", "alice", "--days", "700", home=home, code=0)
    assert renewed(old, alice) == read_identity(alice) != old


def test_a_credential_is_renewed_only_where_the_anchor_is(home: Path) -> None:
    (home / ".parley" / "organisations" / "alpha" / "anchor.key").unlink()
    ended = parley("client", "renew", "alice", home=home, code=ExitCode.WRONG_USE)
    assert "does not hold the anchor of alpha" in ended.err


def test_only_a_credential_for_one_s_own_key_is_installed(home: Path) -> None:
    path = identity_path(home / ".parley", "alpha", "alice")
    own = read_identity(path)
    anchor = read_key(home / ".parley" / "organisations" / "alpha" / "anchor.key")
    chain, key = own.credential.chain, own.credential.key

    def refused(name: str, public: bytes, left: int, by: SecretKey) -> str:
        made = issue_credential(chain, "alpha", name, public, not_after=now() + left, anchor=by)
        (home / "new.json").write_bytes(msgspec.json.encode(made))
        return parley("client", "install", "new.json", home=home, code=ExitCode.WRONG_USE).err

    assert "is for alpha/bob, and" in refused("bob", key, DAY, anchor)
    assert "for another key" in refused("alice", SecretKey.generate().public, DAY, anchor)
    assert "it has expired" in refused("alice", key, -DAY, anchor)
    assert "not signed by alpha" in refused("alice", key, DAY, SecretKey.generate())
    (home / "new.json").write_bytes(b"no")
    ended = parley("client", "install", "new.json", home=home, code=ExitCode.WRONG_USE)
    assert "new.json is not a credential" in ended.err
    assert read_identity(path) == own
    made = issue_credential(chain, "alpha", "alice", key, not_after=now() + 500 * DAY, anchor=anchor)
    (home / "new.json").write_bytes(msgspec.json.encode(made))
    parley("client", "install", "new.json", home=home, code=0)
    assert read_identity(path) == Identity(made, own.seed)
