import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.commands import parley
from tests.cli.conftest import Network

from parley.cli.output import ExitCode
from parley.client.contexts import read_genesis
from parley.ledger.proofs import ProofError, Trust
from parley.ledger.publication import check_publication, decode_publication
from parley.node.provision import provision_network


@pytest.fixture(scope="module")
def receipt(network: Network) -> Path:
    published = network.run("pub", "demo", "\x1b[2Jproof", "--tag", "ward=er", "--json").json()
    return Path(published["receipt"])


def test_a_receipt_fails_after_any_single_byte_is_changed(network: Network, receipt: Path) -> None:
    trust = Trust(read_genesis(network.directory / "genesis.json"))
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
