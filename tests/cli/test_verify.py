import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Signed, actor, make_genesis
from tests.cli.commands import parley
from tests.cli.conftest import Network
from tests.client.ledger import Ledger

from parley.application.application import VersionError
from parley.applications import DATA_SHARD, application_of
from parley.cli.output import ExitCode
from parley.cli.verify import _tell, judge
from parley.client import connect_blocking
from parley.client.contexts import read_genesis
from parley.client.proofs import OperationProof, encode_proof
from parley.ledger.proofs import ProofError, Trust
from parley.modules.publishing.proof import check_publication, decode_publication
from parley.modules.registry.operations import RevokeClient
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.tables import TOPICS
from parley.node.provision import provision_network


@pytest.fixture(scope="module")
def receipt(network: Network) -> Path:
    published = network.run("pub", "demo", "\x1b[2Jproof", "--tag", "ward=er", "--json").json()
    return Path(published["receipt"])


def test_a_receipt_fails_after_any_single_byte_is_changed(network: Network, receipt: Path) -> None:
    genesis = read_genesis(network.directory / "genesis.json")
    trust = Trust(genesis, application_of(genesis).decode_leaf)
    data = receipt.read_bytes()
    check_publication(decode_publication(data), trust)
    for place in range(len(data)):
        for changed in {data[place] ^ 1, data[place] ^ 0x20, 0x20} - {data[place]}:
            flipped = data[:place] + bytes([changed]) + data[place + 1 :]
            with pytest.raises(ProofError):
                check_publication(decode_publication(flipped), trust)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"alpha/alice", b"bravo/alice"),
        lambda data: data[:-1],
        lambda data: data + b"\n",
        lambda _: b"",
        lambda _: b"\xff" * 100,
        lambda data: data * 2,
    ],
)
def test_a_changed_file_is_not_valid_and_the_reason_is_told(
    change: Callable[[bytes], bytes], network: Network, receipt: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(change(receipt.read_bytes()))
    ended = network.run("verify", broken, "--json", code=ExitCode.DOES_NOT_HOLD)
    found = json.loads(ended.out)
    assert (found["valid"], found["what"], found["height"]) == (False, "publication", None)
    assert found["reason"]
    assert "NOT VALID" in network.run("verify", broken, code=ExitCode.DOES_NOT_HOLD).out


def test_another_network_s_genesis_file_proves_nothing(receipt: Path, tmp_path: Path) -> None:
    provision_network(
        tmp_path / "other", organisations=["alpha"], network="other", start_time=1_700_000_000_000
    )
    ended = parley("verify", receipt, "--dir", tmp_path / "other", home=tmp_path, code=ExitCode.DOES_NOT_HOLD)
    assert "another network" in ended.out
    assert str(tmp_path / "other" / "genesis.json") in ended.out


def test_people_are_told_who_said_what_when_and_who_signed(network: Network, receipt: Path) -> None:
    told = network.run("verify", receipt, code=0).out
    for words in (
        "alpha/alice published message",
        "topic demo",
        "UTC",
        "by a quorum: ",
        "ward=er",
        "genesis.json",
    ):
        assert words in told
    assert "\x1b" not in told
    assert "\\x1b[2Jproof" in told


def test_proofs_of_operations_and_of_entries_are_verified_too(network: Network, tmp_path: Path) -> None:
    operation, entry, absence = (
        tmp_path / "operation.json",
        tmp_path / "entry.json",
        tmp_path / "absence.json",
    )
    with connect_blocking(directory=network.directory, timeout=60) as client:
        client.operate(Subscribe("demo", "ward == 'er'")).save(operation)
        client.entry_proof(TOPICS, "demo").save(entry)
        client.entry_proof(TOPICS, "\x1b[2J").save(absence)
    assert "alpha/alice asked for subscribe, and the outcome was Ok" in network.run("verify", operation).out
    found = network.run("verify", entry, "--json").json()
    assert (found["valid"], found["what"], found["table"], found["key"]) == (True, "entry", "topic", ["demo"])
    told = network.run("verify", absence).out
    assert "table topic has no such entry" in told
    assert "\x1b" not in told
    entry.write_bytes(entry.read_bytes().replace(b'"found":true', b'"found":false'))
    network.run("verify", entry, code=ExitCode.DOES_NOT_HOLD)


def test_a_receipt_can_come_by_stdin(network: Network, receipt: Path) -> None:
    assert network.run("verify", "-", "--json", stdin=receipt.read_bytes()).json()["valid"]


def test_what_is_missing_is_wrong_use_and_not_a_broken_proof(
    network: Network, receipt: Path, tmp_path: Path
) -> None:
    network.run("verify", tmp_path / "none.json", code=ExitCode.WRONG_USE)
    ended = parley("verify", receipt, home=tmp_path, code=ExitCode.WRONG_USE)
    assert "no network is chosen" in ended.err
    genesis = tmp_path / "genesis.json"
    genesis.write_bytes((network.directory / "genesis.json").read_bytes().replace(b"alpha", b"aleph"))
    ended = parley("verify", receipt, "--genesis", genesis, home=tmp_path, code=ExitCode.WRONG_USE)
    assert "is not a genesis file" in ended.err


def test_a_stranger_is_not_called_an_administrator_and_what_decides_nothing_is_said_to() -> None:
    ledger = Ledger()
    mallory, genesis = actor("mallory"), ledger.genesis

    def told(signed: Signed) -> str:
        receipt = ledger.order_one(signed)
        batch = ledger.body(signed.digest)
        operation = DATA_SHARD.decode_operation(batch.messages[0].payload)
        made = OperationProof.of(
            (receipt, ledger.proof(ledger.height, [0]), ledger.anchor()),
            (batch.header, batch.messages[0], batch.signature),
            operation,
        )
        verdict, proof = judge(encode_proof(made), genesis, "genesis.json")
        assert verdict.valid
        return _tell(verdict, proof)

    said = told(ledger.control(mallory, RevokeClient("alice")))
    assert f"key {mallory.key.hex()[:16]} asked for revoke_client, and the outcome was UnknownClient" in said
    assert "decides nothing" not in said
    said = told(ledger.control(ADMIN, RevokeClient("alice"), sequence=9))
    assert "the outcome was OutOfSequence" in said
    assert "decides nothing" in said


def test_a_network_of_another_version_is_not_judged() -> None:
    other = replace(make_genesis(), application=DATA_SHARD.version + 1)
    with pytest.raises(VersionError, match="install a release of Parley"):
        judge(b"", other, "genesis.json")
