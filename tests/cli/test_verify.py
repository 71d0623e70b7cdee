import json
from collections.abc import Callable
from dataclasses import replace as replace_field
from pathlib import Path

import pytest
from msgspec.msgpack import decode
from msgspec.structs import replace
from tests.application.world import ADMIN, Signed, actor, make_genesis
from tests.cli.commands import parley
from tests.cli.conftest import Network
from tests.client.ledger import Ledger, note

from parley.application.application import VersionError
from parley.applications import DATA_SHARD, application_of
from parley.cli.output import ExitCode
from parley.cli.verify import _tell, judge
from parley.client import connect_blocking
from parley.client.contexts import read_genesis
from parley.client.proofs import OperationProof, encode_proof
from parley.ledger.proofs import ProofError, Trust
from parley.model import leaves as leaf_tree
from parley.model.batches import CONTROL, Batch, Message, sign_batch
from parley.model.receipts import encode_leaf, receipt_of
from parley.modules.publishing.proof import (
    MessageProof,
    PublicationProof,
    check_publication,
    decode_publication,
)
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
    assert "no trust root is named" in ended.err
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
        return _tell(verdict, proof, "--genesis")

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


def _published(
    said: Message,
    *,
    signed: dict[str, object] | None = None,
    time: int | None = None,
    others: int = 4,
    forged: dict[str, object] | None = None,
) -> tuple[Ledger, bytes]:
    """The file of a message in a block with other batches, whose brokers certify a receipt with what is forged."""
    ledger = Ledger()
    who = ledger.client("alice")
    ledger.topic("demo")
    batches = [
        ledger.publication(who, "demo", note(f"other {at}"), session=bytes([at]) * 16)
        for at in range(1, 1 + others)
    ]
    name = ledger.publication(who, "demo", said)
    ledger.apply(*batches, name, time=time)
    leaves = list(ledger.outcomes[-1].leaves)
    receipt = receipt_of(DATA_SHARD.decode_leaf(leaves[others]))
    assert receipt is not None
    batch = ledger.body(name.digest)
    if signed is not None:
        header = replace(batch.header, **signed)
        digest, body = sign_batch(header, batch.messages, who.secret)
        batch, receipt = decode(body, type=Batch), replace(receipt, digest=digest)
    receipt = replace(receipt, **(forged or {}))
    leaves[others] = encode_leaf(receipt)
    ledger.outcomes[-1] = replace_field(ledger.outcomes[-1], leaves=tuple(leaves))
    made = PublicationProof.of(
        (receipt, ledger.proof(ledger.height, [others]), ledger.anchor()),
        (batch.header, leaf_tree.root([said.leaf()]), batch.signature),
        MessageProof(said, leaf_tree.prove([said.leaf()], 0)),
    )
    return ledger, encode_proof(made)


def _read_out(ledger: Ledger, data: bytes) -> list[str]:
    verdict, proof = judge(data, ledger.genesis, "genesis.json")
    assert verdict.valid, verdict.reason
    return _tell(verdict, proof, "--genesis").split("\n")


def test_no_byte_of_a_proof_is_free_where_a_block_has_several_receipts() -> None:
    ledger, data = _published(note("hello", ward="er"))
    check_publication(decode_publication(data), ledger.trust)
    trust = ledger.trust
    for place in range(len(data)):
        for changed in {data[place] ^ 1, data[place] ^ 2, data[place] ^ 0x20, 0x30} - {data[place]}:
            flipped = data[:place] + bytes([changed]) + data[place + 1 :]
            with pytest.raises(ProofError):
                check_publication(decode_publication(flipped), trust)


@pytest.mark.parametrize(
    "forged",
    [{"topic": "deme"}, {"partition": 1}, {"count": 2}, {"publisher": bytes(32)}],
    ids=lambda forged: next(iter(forged)),
)
def test_a_receipt_that_says_something_else_than_the_signed_batch_proves_nothing(
    forged: dict[str, object],
) -> None:
    ledger, data = _published(note("hello"), forged=forged)
    verdict, _ = judge(data, ledger.genesis, "genesis.json")
    assert not verdict.valid
    assert "than the batch" in str(verdict.reason)


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        ({"not_after": 1}, "may not be applied at height"),
        ({"not_after": 10**6}, "may not be applied at height"),
        ({"kind": CONTROL}, "holds an operation"),
    ],
    ids=["expired", "too far ahead", "operation"],
)
def test_a_batch_that_could_not_be_published_there_is_not_proved(
    signed: dict[str, object], reason: str
) -> None:
    ledger, data = _published(note("hello"), signed=signed)
    verdict, _ = judge(data, ledger.genesis, "genesis.json")
    assert not verdict.valid
    assert reason in str(verdict.reason)


@pytest.mark.parametrize("letter", "\n\r\t\x0b\x1b\x85\u200b\u200f\u202e\u2028\u2066\u3164\ufeff\u00ad")
def test_tags_and_payloads_imitate_no_other_line_and_hide_nothing(letter: str) -> None:
    text = f"x{letter}Valid: eve"
    said = _read_out(*_published(note(text, a=text)))
    assert len(said) == len(_read_out(*_published(note("x", a="x"))))
    assert not any(letter in line for line in said)


def test_one_tag_cannot_look_like_two() -> None:
    said = _read_out(*_published(note("x", a="1, role=admin", b=1, c="1")))
    assert 'Tags: a="1, role=admin", b=1, c="1"' in said


def test_a_time_beyond_the_calendar_is_told_as_a_number() -> None:
    said = _read_out(*_published(note("x"), time=2**61))
    assert any(f"{2**61} ms after 1970" in line for line in said)


def test_what_is_valid_is_told_with_whom_it_rests_on_and_what_is_not_proved() -> None:
    ledger, data = _published(note("hello", ward="er"))
    verdict, proof = judge(data, ledger.genesis, "genesis.json")
    told = _tell(verdict, proof, "--genesis")
    key = actor("alice").key.hex()
    for words in (ledger.chain.hex(), "3 of 4 brokers, of which 1 may be faulty", key, "Not proved: "):
        assert words in told
    assert (verdict.chain, verdict.brokers, verdict.allowed_faults) == (ledger.chain.hex(), 4, 1)
    assert verdict.publisher_key == key
    assert verdict.content is not None
    assert (verdict.content.value, verdict.content.tags) == ("hello", {"ward": "er"})
    assert verdict.not_proved


def test_json_says_that_a_file_does_not_hold_the_content() -> None:
    ledger, data = _published(note("hello"))
    whole = encode_proof(replace(decode_publication(data), message=None))
    verdict, _ = judge(whole, ledger.genesis, "genesis.json")
    assert verdict.valid
    assert verdict.content is None
    assert verdict.content_absent


def test_a_forged_network_in_the_working_folder_is_not_the_trust_root(
    network: Network, receipt: Path, tmp_path: Path
) -> None:
    forged = tmp_path / "mail" / ".parley"
    forged.parent.mkdir()
    provision_network(forged, organisations=["alpha"], network="forged", start_time=1_700_000_000_000)
    ended = parley("verify", receipt, home=tmp_path, where=forged.parent, code=ExitCode.WRONG_USE)
    for option in ("--genesis FILE", "--dir .parley", "--context NAME", "parley context use"):
        assert option in ended.err
    files = ("--genesis", network.directory / "genesis.json")
    identity = network.directory / "identities" / "alpha-alice.json"
    parley("context", "add", "work", *files, "--identity", identity, home=tmp_path, code=0)
    parley("context", "use", "work", home=tmp_path, code=0)
    told = parley("verify", receipt, home=tmp_path, where=forged.parent, code=0).out
    assert "the current context" in told
    assert str(network.directory / "genesis.json") in told
