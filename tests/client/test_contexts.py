"""Context, genesis and identity files: found where they should be, refused with what to do about it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from parley.client import contexts
from parley.client.client import connect
from parley.client.errors import ContextError, IdentityError
from parley.model.genesis import Genesis
from parley.node.provision import create_identity, identity_path, provision_network

NOW = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Genesis]:
    directory = tmp_path_factory.mktemp("network") / "net"
    genesis = provision_network(directory, organisations=("alpha", "beta"), network="test", start_time=NOW)
    return directory, genesis


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "parley" / "contexts").mkdir(parents=True)
    return tmp_path / "parley"


Network = tuple[Path, Genesis]


def test_a_directory_is_enough(network: Network) -> None:
    directory, genesis = network
    found = contexts.resolve(directory=directory)
    assert found.genesis == genesis
    assert found.identity.credential.name == "alice"
    assert {name: str(address) for name, address in found.brokers.items()} == {
        "alpha-1": "127.0.0.1:7101",
        "beta-1": "127.0.0.1:7102",
    }


def test_a_saved_context_is_found_by_name_and_the_current_one_without(network: Network, home: Path) -> None:
    directory, genesis = network
    text = f"genesis = '{directory}/genesis.json'\nidentity = '{directory}/identities/beta-alice.json'\n"
    (home / "contexts" / "ward.toml").write_text(text + "[brokers]\nbeta-1 = 'example.org:7000'\n")
    found = contexts.resolve("ward")
    assert (found.genesis, found.identity.credential.organisation) == (genesis, "beta")
    assert str(found.brokers["beta-1"]) == "example.org:7000"
    assert contexts.context_names() == ["ward"]
    assert contexts.current_context() is None
    with pytest.raises(ContextError, match="No network is named"):
        contexts.resolve()
    (home / "current").write_text("ward\n")
    assert contexts.resolve().identity == found.identity


def test_what_is_given_wins(network: Network) -> None:
    directory, genesis = network
    admin = identity_path(directory, "alpha", "admin")
    assert contexts.resolve(directory=directory, identity=admin).identity.credential.name == "admin"
    found = contexts.resolve(
        genesis=genesis, identity=contexts.read_identity(admin), brokers={"beta-1": "h:1"}
    )
    assert {name: str(address) for name, address in found.brokers.items()} == {
        "alpha-1": "127.0.0.1:7101",
        "beta-1": "h:1",
    }
    assert not found.chosen
    chosen = contexts.resolve(directory=directory, brokers=["beta-1"])
    assert (list(chosen.brokers), chosen.chosen) == (["beta-1"], True)


def test_relative_paths_start_at_the_file(network: Network) -> None:
    directory, _ = network
    file = contexts.read_context(directory / "context.toml")
    assert file.genesis == directory / "genesis.json"
    assert file.admin == directory / "identities" / "alpha-admin.json"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("genesis = 1\nidentity = 'x'", "genesis must be the path of a file, as text; found 1"),
        ("genesis = 'x'", "identity is missing"),
        ("identity = 'x'", "genesis is missing"),
        (
            "genesis = 'x'\nidentity = 'x'\ncolour = 1",
            "no key 'colour'; allowed are genesis, identity, admin, brokers",
        ),
        ("genesis = 'x'\nidentity = 'x'\nbrokers = 1", "brokers must be a table"),
        ("genesis = ", "is not TOML"),
        ("#" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_a_wrong_context_file_is_named_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "context.toml"
    path.write_text(text)
    with pytest.raises(ContextError) as caught:
        contexts.resolve(directory=tmp_path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


def test_what_does_not_exist_is_named(tmp_path: Path, home: Path) -> None:
    with pytest.raises(
        ContextError, match=r"context\.toml cannot be read: No such file.* is no folder of `parley up`"
    ):
        contexts.resolve(directory=tmp_path)
    with pytest.raises(ContextError, match=r"There is no context 'ward'.*Saved contexts: none"):
        contexts.resolve("ward")
    with pytest.raises(IdentityError, match=r"The identity .*nobody\.json cannot be read: No such file"):
        contexts.read_identity(tmp_path / "nobody.json")
    with pytest.raises(ContextError, match="cannot be the name of a context"):
        contexts.resolve("../ward")
    with pytest.raises(ContextError, match="identity is needed beside the genesis"):
        contexts.resolve(genesis=tmp_path)


def test_unknown_brokers_and_bad_addresses_are_named(network: Network) -> None:
    directory, _ = network
    with pytest.raises(ContextError, match="no broker 'gamma-1' in this network; there are alpha-1, beta-1"):
        contexts.resolve(directory=directory, brokers={"gamma-1": "h:1"})
    with pytest.raises(ContextError, match="'nowhere' is not an address"):
        contexts.resolve(directory=directory, brokers={"beta-1": "nowhere"})


def test_an_identity_that_others_can_read_is_refused(network: Network, tmp_path: Path) -> None:
    directory, _ = network
    path = tmp_path / "identity.json"
    path.write_bytes(identity_path(directory, "alpha", "alice").read_bytes())
    path.chmod(0o640)
    with pytest.raises(IdentityError, match=f"run: chmod 600 {path}"):
        contexts.read_identity(path)
    path.chmod(0o600)
    assert contexts.read_identity(path).credential.name == "alice"


def test_an_identity_that_is_none_is_refused(network: Network, tmp_path: Path) -> None:
    directory, _ = network
    path = tmp_path / "identity.json"
    path.write_bytes(b"{}")
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="is not an identity file"):
        contexts.read_identity(path)
    alice = identity_path(directory, "alpha", "alice").read_text()
    bob = identity_path(directory, "beta", "alice").read_text()
    seed = alice.rpartition('"seed"')[2]
    path.write_text(bob.rpartition('"seed"')[0] + '"seed"' + seed)
    with pytest.raises(IdentityError, match="does not belong to the credential"):
        contexts.read_identity(path)


def test_a_genesis_file_that_was_changed_is_refused(network: Network, tmp_path: Path) -> None:
    directory, _ = network
    path = tmp_path / "genesis.json"
    path.write_bytes((directory / "genesis.json").read_bytes().replace(b'"test"', b'"best"'))
    with pytest.raises(ContextError, match="is not a genesis file: the signature of alpha"):
        contexts.resolve(directory=directory, genesis=path)


def test_an_identity_of_another_network_or_of_the_past_is_refused(network: Network, tmp_path: Path) -> None:
    directory, _ = network
    other = tmp_path / "other"
    provision_network(other, organisations=("alpha",), network="other", start_time=NOW)
    with pytest.raises(IdentityError, match="issued for another network"):
        connect(directory=directory, identity=identity_path(other, "alpha", "alice"))
    create_identity(other, "alpha", "late", not_after=NOW - 1)
    with pytest.raises(IdentityError, match="it has expired"):
        connect(directory=other, identity=identity_path(other, "alpha", "late"))
