"""A provisioned network is complete, private where it must be, and never made over another one."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import msgspec
import pytest

from parley.crypto import ed25519
from parley.model.credentials import Identity, check_credential
from parley.model.genesis import decode_genesis
from parley.node.config import load
from parley.node.provision import (
    ProvisionError,
    create_broker,
    create_identity,
    create_organisation,
    identity_path,
    provision_network,
    read_genesis,
)
from parley.node.secrets import SecretError

NOW = int(time.time() * 1_000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("provision") / "deep" / "net"
    provision_network(
        directory,
        organisations=("alpha", "beta"),
        network="test",
        start_time=NOW,
        brokers_per_org=2,
        clients=("alice", "bob"),
    )
    return directory


def test_every_broker_has_a_configuration_that_loads(directory: Path) -> None:
    genesis = read_genesis(directory / "genesis.json")
    assert [broker.name for broker in genesis.brokers] == ["alpha-1", "alpha-2", "beta-1", "beta-2"]
    for index, broker in enumerate(genesis.brokers):
        config = load(directory / "brokers" / broker.name / "broker.toml")
        assert (config.index, config.genesis) == (index, genesis)


def test_every_identity_is_admitted_and_admins_are_those_of_the_genesis_file(directory: Path) -> None:
    genesis = decode_genesis((directory / "genesis.json").read_bytes())
    for organisation in genesis.organisations:
        for name in ("alice", "bob", "admin"):
            data = identity_path(directory, organisation.name, name).read_bytes()
            identity = msgspec.json.decode(data, type=Identity)
            check_credential(identity.credential, genesis, NOW)
            assert identity.key().public == identity.credential.key
            assert (identity.credential.key in organisation.admins) == (name == "admin")


def test_nobody_else_can_read_secrets_or_look_into_their_folders(directory: Path) -> None:
    secret = [
        *directory.rglob("*.key"),
        *directory.rglob("identities/*.json"),
        *directory.rglob("safety.record"),
    ]
    assert len(secret) == 2 * 3 + 4 * 2 + 6 + 4
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path.parent


def test_nothing_that_exists_is_made_again(directory: Path) -> None:
    genesis = (directory / "genesis.json").read_bytes()
    anchor = (directory / "organisations/alpha/anchor.key").read_bytes()
    with pytest.raises(SecretError, match="exists already"):
        create_organisation(directory, "alpha", now=NOW)
    with pytest.raises(SecretError, match="exists already"):
        create_broker(directory, "alpha", "alpha-1", "127.0.0.1:1", now=NOW)
    with pytest.raises(SecretError, match="exists already"):
        create_identity(directory, "alpha", "alice", not_after=NOW)
    with pytest.raises(SecretError, match="exists already"):
        provision_network(directory, organisations=("alpha",), network="test", start_time=NOW)
    assert (directory / "genesis.json").read_bytes() == genesis
    assert (directory / "organisations/alpha/anchor.key").read_bytes() == anchor


def test_an_identity_may_be_made_for_a_key_that_exists(directory: Path) -> None:
    key = ed25519.SecretKey.generate()
    identity = create_identity(directory, "beta", "carol", not_after=NOW + 1, key=key)
    assert identity.credential.key == key.public


@pytest.mark.parametrize("name", ["", "Alpha", "-a", "a/b", "x" * 33, "../up"])
def test_names_that_cannot_stand_in_a_certificate_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProvisionError, match="cannot be the name of a organisation"):
        create_organisation(tmp_path, name, now=NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_network_has_an_address_for_each_broker(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="2 brokers and 1 addresses"):
        provision_network(
            tmp_path / "net", organisations=("a", "b"), network="n", start_time=NOW, addresses=["h:1"]
        )
