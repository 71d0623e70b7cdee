import re
import stat
from pathlib import Path

import pytest
from tests.cli.conftest import Network

from parley.cli.output import ExitCode
from parley.crypto.ed25519 import SecretKey


def test_a_client_gets_rights_by_its_attributes_and_loses_them(network: Network) -> None:
    topic = network.topic("nurses", "--publish", 'role == "nurse"')
    made = network.run("client", "create", "nina", "--attribute", "role=nurse", "--json").json()
    assert (made["client"], made["attributes"]) == ("alpha/nina", {"role": "nurse"})
    assert stat.S_IMODE(Path(made["file"]).stat().st_mode) == 0o600
    network.run("pub", topic, "by nina", who="alpha/nina", code=0)
    altered = network.run("client", "alter", "nina", "--remove", "role", "-a", "level=3", "--json").json()
    assert altered["attributes"] == {"level": 3}
    refused = network.run("pub", topic, "again", who="alpha/nina", code=ExitCode.DOES_NOT_HOLD)
    assert "PermissionDenied: " in refused.err
    assert 'role == "nurse"' in refused.err
    network.run("client", "revoke", "nina", code=0)
    refused = network.run("pub", "demo", "last", who="alpha/nina", code=ExitCode.DOES_NOT_HOLD)
    assert "Revoked" in refused.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--attribute", "not=1"],
            "'not' cannot be the name of an attribute: constraints and rules use this word",
        ),
        (["--attribute", f"level={2**63}"], "-2**63 to 2**63-1"),
        (["--attribute", "role=\udcff"], "Attribute 'role' must be"),
        (["--remove", "\udcff"], "cannot be the name of an attribute"),
    ],
)
def test_an_attribute_that_no_rule_can_name_or_compare_is_wrong_use(
    options: list[str], told: str, network: Network
) -> None:
    assert told in network.misuse("client", "alter", "alice", *options)


def test_the_clients_of_one_s_own_organisation_are_listed(network: Network) -> None:
    names = {client["name"] for client in network.run("client", "list", "--json").json()["clients"]}
    assert "alice" in names
    assert "bob" not in names
    assert "bravo/bob" in network.run("client", "list", who="bravo/admin", code=0).out


def test_an_auditor_is_granted_the_right_and_loses_it(network: Network) -> None:
    network.run("client", "create", "ada", code=0)
    granted = network.run("client", "grant", "ada", "auditor", "--json").json()
    assert (granted["name"], granted["rights"]) == ("ada", ["auditor"])
    row = next(line for line in network.run("client", "list", code=0).out.splitlines() if "alpha/ada" in line)
    assert "auditor" in row
    assert network.run("client", "ungrant", "ada", "auditor", code=0).out == "ada: no rights\n"
    listed = network.run("client", "list", "--json").json()["clients"]
    assert next(client for client in listed if client["name"] == "ada")["rights"] == []


def test_an_organisation_without_the_right_is_told_where_rights_come_from(network: Network) -> None:
    refused = network.run("client", "grant", "bob", "auditor", who="bravo/admin", code=ExitCode.DOES_NOT_HOLD)
    assert "PermissionDenied: " in refused.err
    assert "the genesis file does not give it to bravo" in refused.err


def test_a_client_can_keep_its_secret_to_itself(network: Network) -> None:
    secret = SecretKey.generate()
    public = secret.public.hex()
    asked = network.run("client", "create", "own-key", "--key", public, code=ExitCode.WRONG_USE)
    (to_sign,) = re.findall(r"[0-9a-f]{128,}", asked.err)
    proof = secret.sign(bytes.fromhex(to_sign)).hex()
    made = network.run("client", "create", "own-key", "--key", public, "--proof", proof, "--json").json()
    assert made["key"] == public
    assert '"seed"' not in Path(made["file"]).read_text()


def test_a_name_is_given_once_and_the_identity_stays(network: Network) -> None:
    identity = network.directory / "identities" / "alpha-alice.json"
    before = identity.read_bytes()
    ended = network.run("client", "create", "alice", code=ExitCode.DOES_NOT_HOLD)
    error, remedy = ended.err.splitlines()
    assert "ClientExists" in error
    assert "move that file away" in remedy
    assert identity.read_bytes() == before


def test_who_is_no_administrator_creates_nobody_and_leaves_no_file(network: Network) -> None:
    network.run("client", "create", "eve", who="alpha/alice", code=ExitCode.DOES_NOT_HOLD)
    assert not (network.directory / "identities" / "alpha-eve.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["create", "No Name"], "a-z"),
        (["create", "x", "--key", "abc"], "64 hexadecimal"),
        (["create", "x", "-a", "role"], "name=value"),
        (["alter", "alice"], "say what to change"),
        (["grant", "alice", "king"], "auditor"),
        (["revok", "alice"], "Did you mean 'revoke'?"),
    ],
)
def test_wrong_use_says_what_was_meant(words: list[str], told: str, network: Network) -> None:
    assert told in network.misuse("client", *words)
