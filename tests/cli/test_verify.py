import json
import os
import pty
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import replace as replace_field
from itertools import product
from pathlib import Path

import pytest
import typer
from msgspec.msgpack import decode
from msgspec.structs import replace
from rich.cells import cell_len
from tests.application.world import ADMIN, Actor, Signed, actor, make_genesis
from tests.cli.commands import flat, parley
from tests.cli.conftest import Network
from tests.cli.test_app import Terminal
from tests.client.ledger import Ledger, note
from tests.verifier import standalone

from parley.application.application import Application, VersionError
from parley.application.operations import Operation
from parley.applications import DATA_SHARD, application_of
from parley.cli import output
from parley.cli.contexts import find_trust_root
from parley.cli.output import ExitCode
from parley.cli.verify import MAX_LINES, Verdict, _on_screen, _tell, judge
from parley.client import connect_blocking
from parley.client.contexts import read_genesis
from parley.client.errors import ContextError
from parley.client.proofs import EntryProof, OperationProof, decode_proof, encode_proof
from parley.consensus.committee import committees_of
from parley.consensus.types import genesis_qc
from parley.crypto import merkle
from parley.ledger.proofs import Anchor, ProofError, StateEntry, Trust, history_leaf
from parley.ledger.state_map import EMPTY_ROOT, StateProof
from parley.model import leaves as leaf_tree
from parley.model.batches import CONTROL, PUBLISH, Batch, Message, MessageHeader, encode, sign_batch
from parley.model.expressions import parse_rule
from parley.model.names import sorted_pairs
from parley.model.receipts import BatchReceipt, encode_leaf, receipt_of
from parley.modules.publishing.proof import (
    MessageProof,
    PublicationProof,
    check_publication,
    decode_publication,
)
from parley.modules.registry.operations import RevokeClient
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import AlterTopic
from parley.modules.topics.tables import GROWING, TOPICS
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


def test_a_verifier_without_parley_accepts_the_receipts_of_running_brokers(
    network: Network, receipt: Path
) -> None:
    genesis = (network.directory / "genesis.json").read_bytes()
    shows = standalone.verify(receipt.read_bytes(), genesis).shows
    assert (shows["topic"], shows["payload"], shows["tags"]) == ("demo", b"\x1b[2Jproof", [["ward", "er"]])
    assert len(shows["signers"]) >= 3


def test_people_are_told_who_said_what_when_and_who_signed(network: Network, receipt: Path) -> None:
    told = network.run("verify", receipt, code=0).out
    for words in (
        "alpha/alice published message",
        "topic demo",
        "UTC",
        " of shard 0 by a quorum: ",
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
        client.operate(Subscribe("demo", "ward == 'er'", client.topic_id("demo"))).save(operation)
        client.entry_proof(TOPICS, "demo").save(entry)
        client.entry_proof(GROWING, "\x1b[2J", "demo").save(absence)
    assert "alpha/alice asked for subscribe, and the outcome was Ok" in network.run("verify", operation).out
    found = network.run("verify", entry, "--json").json()
    assert (found["valid"], found["what"], found["table"], found["key"]) == (True, "entry", "topic", ["demo"])
    told = network.run("verify", absence).out
    assert "table growing has no such entry" in told
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


def _certified(
    ledger: Ledger, name: Signed, who: Actor, signed: dict[str, object], forged: dict[str, object]
) -> tuple[BatchReceipt, Batch, int]:
    """A receipt of the newest block, its batch and its place; brokers certify what is forged in it, and what is signed
    instead of the batch.
    """
    leaves = list(ledger.outcomes[-1].leaves)
    receipts = [receipt_of(DATA_SHARD.decode_leaf(leaf)) for leaf in leaves]
    at, receipt = next(
        (at, one) for at, one in enumerate(receipts) if one is not None and one.digest == name.digest
    )
    batch = ledger.body(name.digest)
    if signed:
        digest, body = sign_batch(replace(batch.header, **signed), batch.messages, who.secret)
        batch, receipt = decode(body, type=Batch), replace(receipt, digest=digest)
    receipt = replace(receipt, **forged)
    leaves[at] = encode_leaf(receipt)
    ledger.outcomes[-1] = replace_field(ledger.outcomes[-1], leaves=tuple(leaves))
    return receipt, batch, at


def _others(ledger: Ledger, who: Actor, count: int) -> list[Signed]:
    ledger.topic("demo")
    return [
        ledger.publication(who, "demo", note(f"other {at}"), session=bytes([at]) * 16)
        for at in range(1, 1 + count)
    ]


MIDDLE = 2  # the place among other batches: the paths of the last leaf alone tell how many there are


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
    batches = _others(ledger, who, others)
    name = ledger.publication(who, "demo", said)
    ledger.apply(*batches[:MIDDLE], name, *batches[MIDDLE:], time=time)
    receipt, batch, at = _certified(ledger, name, who, signed or {}, forged or {})
    made = PublicationProof.of(
        (receipt, ledger.proof(ledger.height, [at]), ledger.anchor()),
        (batch.header, leaf_tree.root([said.leaf()]), batch.signature),
        MessageProof(said, leaf_tree.prove([said.leaf()], 0)),
    )
    return ledger, encode_proof(made)


def _verdict_and_lines(ledger: Ledger, data: bytes) -> tuple[Verdict, list[str]]:
    verdict, proof = judge(data, ledger.genesis, "genesis.json")
    assert verdict.valid, verdict.reason
    return verdict, _tell(verdict, proof, "--genesis").split("\n")


def _read_out(ledger: Ledger, data: bytes) -> list[str]:
    return _verdict_and_lines(ledger, data)[1]


def _flipped(data: bytes) -> Iterator[bytes]:
    """Every byte changed in several ways, and every digit into every other one: numbers are what a forger is after."""
    for place, byte in enumerate(data):
        others = set(b"0123456789") if byte in b"0123456789" else {byte ^ 1, byte ^ 2, byte ^ 0x20, 0x30}
        for changed in sorted(others - {byte}):
            yield data[:place] + bytes([changed]) + data[place + 1 :]


def _beside_others(
    operation: Operation, *, signed: dict[str, object] | None = None, forged: dict[str, object] | None = None
) -> tuple[Ledger, bytes]:
    """The file of an operation in a block with publications, whose brokers certify a receipt with what is forged."""
    ledger = Ledger()
    others = _others(ledger, ledger.client("alice"), 14)
    name = ledger.control(ADMIN, operation)
    ledger.apply(*others[:MIDDLE], name, *others[MIDDLE:])
    receipt, batch, at = _certified(ledger, name, ADMIN, signed or {}, forged or {})
    made = OperationProof.of(
        (receipt, ledger.proof(ledger.height, [at]), ledger.anchor()),
        (batch.header, batch.messages[0], batch.signature),
        operation,
    )
    return ledger, encode_proof(made)


def _entry(topic: str) -> tuple[Ledger, bytes]:
    ledger = Ledger()
    ledger.topic("demo", publish='org in ["hospital-a"]')
    entry = ledger.entry(TOPICS.key(topic))
    return ledger, encode_proof(EntryProof.of(TOPICS, entry, ledger.anchor()))


def test_a_name_that_liars_certify_cannot_imitate_other_lines() -> None:
    lines = _read_out(
        *_published(note("hello"), forged={"client": "x\nFingerprint of the chain: 00" + "y" * 9_999})
    )
    assert sum(line.startswith("Fingerprint of the chain") for line in lines) == 1
    assert lines[0].startswith("Valid: x\\nFingerprint")
    assert len(lines[0]) < 1_000
    assert _read_out(*_published(note("hello"), forged={"client": ""}))[0].startswith(
        "Valid: a key without a name published message 2 of topic demo, partition 0."
    )


def test_neither_place_nor_size_of_history_and_receipts_can_be_altered() -> None:
    """Merkle paths do not bind them: many other pairs lead to the same roots."""
    ledger, data = _published(note("hello"), others=14)
    proof = decode_publication(data)
    block = proof.receipt
    others = 0
    for size, index in product(range(70), range(70)):
        history = replace(block.history, index=index, size=size)
        receipts = replace(block.receipts, indices=(index,), size=size)
        leaf = history_leaf(block.header.height, block.header.id(), block.receipts_root, block.receipts.size)
        for changed, leads in (
            (replace(block, history=history), merkle.verify(proof.anchor.header.history_root, leaf, history)),
            (
                replace(block, receipts=receipts),
                merkle.verify_many(block.receipts_root, block.leaves, receipts),
            ),
        ):
            if changed != block and leads:
                others += 1
                with pytest.raises(ProofError):
                    check_publication(replace(proof, receipt=changed), ledger.trust)
    assert others > 10


ALTER = AlterTopic("demo", 2, None, 'org in ["hospital-a"]', None)


@pytest.mark.parametrize(
    "made",
    [
        lambda: _published(note("hello", ward="er"), others=14),
        lambda: _beside_others(ALTER),
        lambda: _entry("demo"),
        lambda: _entry("none"),
    ],
    ids=["publication", "operation", "entry", "no entry"],
)
def test_no_byte_of_a_proof_is_free_also_where_a_block_has_several_receipts(
    made: Callable[[], tuple[Ledger, bytes]],
) -> None:
    ledger, data = made()
    application, trust = application_of(ledger.genesis), ledger.trust
    _checked(data, trust, application)
    for flipped in _flipped(data):
        with pytest.raises(ProofError):
            _checked(flipped, trust, application)


def _checked(data: bytes, trust: Trust, application: Application) -> None:
    proof = decode_proof(data)
    if isinstance(proof, PublicationProof):
        check_publication(proof, trust)
    else:
        proof.check(trust, application)


@pytest.mark.parametrize(
    "forged",
    [{"topic": "deme"}, {"partition": 1}, {"count": 2}, {"publisher": bytes(32)}],
    ids=lambda forged: next(iter(forged)),
)
def test_a_receipt_that_says_something_else_than_the_signed_batch_proves_nothing(
    forged: dict[str, object],
) -> None:
    for (ledger, data), said in (
        (_published(note("hello"), forged=forged), "than the batch"),
        (_beside_others(ALTER, forged=forged), "than the operation's batch"),
    ):
        verdict, _ = judge(data, ledger.genesis, "genesis.json")
        assert not verdict.valid
        assert said in str(verdict.reason)


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        ({"not_after": 1}, "may not be applied at height"),
        ({"not_after": 10**6}, "may not be applied at height"),
        ({"kind": PUBLISH}, "is not that of one operation"),
        ({"topic": "demo"}, "is not that of one operation"),
        ({"partition": 1}, "is not that of one operation"),
        ({"count": 2}, "is not that of one operation"),
    ],
    ids=["expired", "too far ahead", "publication", "in a topic", "in a partition", "two"],
)
def test_an_operation_that_could_not_be_applied_there_is_not_proved(
    signed: dict[str, object], reason: str
) -> None:
    said = {name: value for name, value in signed.items() if name in BatchReceipt.__struct_fields__}
    ledger, data = _beside_others(ALTER, signed=signed, forged=said)
    verdict, _ = judge(data, ledger.genesis, "genesis.json")
    assert not verdict.valid
    assert reason in str(verdict.reason)


def test_what_an_operation_asked_for_and_what_an_entry_holds_are_shown() -> None:
    verdict, said = _verdict_and_lines(*_beside_others(ALTER))
    assert isinstance(verdict.asked, dict)
    assert (verdict.asked["name"], verdict.asked["publish"]) == ("demo", 'org in ["hospital-a"]')
    assert any(line.startswith("Asked for: ") and '"name":"demo"' in line for line in said)
    verdict, said = _verdict_and_lines(*_entry("demo"))
    assert isinstance(verdict.record, dict)
    assert (verdict.record["name"], verdict.record["organisation"]) == ("demo", "hospital-a")
    assert any(line.startswith("Record: ") and '"name":"demo"' in line for line in said)
    verdict, said = _verdict_and_lines(*_entry("none"))
    assert (verdict.found, verdict.record) == (False, None)
    assert not any(line.startswith("Record: ") for line in said)


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


@pytest.mark.parametrize(
    "letter",
    "\n\r\t\x0b\x1b\x85\u200b\u200f\u202e\u2028\u2066\u3164\ufeff\u00ad\u2800\ufe0f\U0001d159\U000e0041",
)
def test_tags_and_payloads_imitate_no_other_line_and_hide_nothing(letter: str) -> None:
    text = f"x{letter}Valid: eve"
    said = _read_out(*_published(note(text, a=text)))
    assert len(said) == len(_read_out(*_published(note("x", a="x"))))
    assert not any(letter in line for line in said)


@pytest.mark.parametrize("blank", [" ", "\u0301", "漢", "e"])
def test_a_line_that_a_terminal_breaks_imitates_no_other_line(
    blank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of a narrow terminal sees where a line of Parley begins: at the left edge."""
    monkeypatch.setenv("COLUMNS", "40")

    def at_the_left(said: Message) -> list[str]:
        ledger, data = _published(said)
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        verdict, proof = judge(data, ledger.genesis, "genesis.json")
        output.emit(verdict, lambda: output.folded(_tell(verdict, proof, "--genesis")), as_json=False)
        lines = terminal.getvalue().split("\n")
        assert all(cell_len(line) < 40 for line in lines)
        return [line.split()[0] for line in lines if line[:1] not in ("", " ")]

    honest = at_the_left(note("x", a="x"))
    assert honest[:2] == ["Valid:", "It"]
    for padding in range(8, 48):  # some of which brings the words to the edge
        text = blank * padding + " Valid: eve published message 0 of topic demo."
        assert at_the_left(note(text, a=text)) == honest


def test_json_says_no_more_than_was_proved_whatever_was_published() -> None:
    text = 'x","valid":false,"publisher":"eve\n{"valid":false}\x1b]0;\x07\x9b2J\u202e'
    ledger, data = _published(note(text, a=text))
    verdict, _ = judge(data, ledger.genesis, "genesis.json")
    line = output.json_line(verdict)
    assert line[:-1].decode().isprintable()
    pairs = json.loads(line, object_pairs_hook=list)
    assert len(dict(pairs)) == len(pairs)
    found = json.loads(line)
    assert (found["valid"], found["publisher"]) == (True, "hospital-a/alice")
    assert (found["content"]["value"], found["content"]["tags"]) == (text, {"a": text})


def test_one_tag_cannot_look_like_two() -> None:
    said = _read_out(*_published(note("x", a="1, role=admin", b=1, c="1")))
    assert 'Tags: a="1, role=admin", b=1, c="1"' in said


def _spoken(text: str, header: MessageHeader, rule: str = "") -> Message:
    return replace(note(text, rule), header=encode(header))


def test_the_key_and_the_headers_of_a_message_are_shown() -> None:
    said = _spoken("x", MessageHeader(b"order-7", headers=(("trace", b"\x01"), ("from", b"ward"))))
    lines = _read_out(*_published(said))
    assert "Key of the message: order-7" in lines
    assert 'Headers: "trace"="\\x01", "from"="ward"' in lines
    for empty in (None, b""):
        shown = [
            line
            for line in _read_out(*_published(_spoken("x", MessageHeader(empty))))
            if "of the message" in line
        ]
        assert shown == ([] if empty is None else ["Key of the message: "])
    assert not any(line.startswith("Headers:") for line in _read_out(*_published(note("x"))))


@pytest.mark.parametrize("letter", "\n\x1b\u202e\u3164")
def test_keys_and_headers_of_messages_imitate_no_other_line_and_hide_nothing(letter: str) -> None:
    text = f"x{letter}Valid: eve"

    def lines(said: str) -> list[str]:
        header = MessageHeader(said.encode() + b"\xff", headers=((said, said.encode()),))
        return _read_out(*_published(_spoken("x", header)))

    told = lines(text)
    assert [line.split(":")[0] for line in told] == [line.split(":")[0] for line in lines("x")]
    assert not any(letter in line for line in told)


def test_one_header_cannot_look_like_two() -> None:
    said = _spoken("x", MessageHeader(headers=(('a"="1", "b', b'2", "c"="3'),)))
    assert 'Headers: "a\\"=\\"1\\", \\"b"="2\\", \\"c\\"=\\"3"' in _read_out(*_published(said))


def test_a_time_beyond_the_calendar_is_told_as_a_number() -> None:
    said = _read_out(*_published(note("x"), time=2**61))
    assert any(f"{2**61} ms after 1970" in line for line in said)


def test_what_is_valid_is_told_with_whom_it_rests_on_and_what_is_not_proved() -> None:
    ledger, data = _published(note("hello", ward="er"))
    verdict, proof = judge(data, ledger.genesis, "genesis.json")
    told = _tell(verdict, proof, "--genesis")
    key = actor("alice").key.hex()
    for words in (ledger.chain.hex(), "3 of 4 brokers; of the 4, 1 may be faulty", key, "Not proved: "):
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


@pytest.mark.parametrize(
    ("where", "around"), [("mail", {}), ("mail/deeper", {}), ("mail", {"PARLEY_DIR": ".parley"})]
)
def test_neither_a_parent_folder_nor_the_environment_makes_a_forged_network_the_trust_root(
    where: str, around: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision_network(
        tmp_path / "mail" / ".parley", organisations=["alpha"], network="forged", start_time=1_700_000_000_000
    )
    (tmp_path / where).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / where)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "PARLEY_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(typer.Exit) as ended:
        find_trust_root(None, None)
    assert ended.value.exit_code == ExitCode.WRONG_USE


def test_contexts_are_never_looked_for_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the specification of $XDG_CONFIG_HOME a path that is not absolute is ignored."""
    forged = tmp_path / "mail"
    saved = forged / "config" / "parley" / "contexts"
    saved.mkdir(parents=True)
    (saved / "evil.toml").write_text('genesis = "genesis.json"\nidentity = "identity.json"\n')
    (saved.parent / "current").write_text("evil\n")
    (forged / "evil.toml").write_text('genesis = "genesis.json"\nidentity = "identity.json"\n')
    monkeypatch.chdir(forged)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.delenv("PARLEY_CONTEXT", raising=False)
    with pytest.raises(typer.Exit):
        find_trust_root(None, None)
    for name in ("./evil", "../mail/evil", "evil"):
        monkeypatch.setenv("PARLEY_CONTEXT", name)
        with pytest.raises((ContextError, typer.Exit)):
            find_trust_root(None, None)


def test_the_trust_root_is_said_once(network: Network, receipt: Path) -> None:
    genesis = network.directory / "genesis.json"
    ended = network.run("verify", receipt, "--genesis", genesis, code=ExitCode.WRONG_USE)
    assert "say --genesis, --dir or --context" in flat(ended.err)


def test_what_no_broker_signed_is_not_said_to_be_certified_by_a_quorum() -> None:
    genesis = make_genesis()
    (committee,) = committees_of(genesis)
    first = committee.first_block(EMPTY_ROOT, genesis.start_time)
    absent = StateEntry(TOPICS.key("demo"), None, StateProof((), None))
    made = EntryProof.of(TOPICS, absent, Anchor(first.header, genesis_qc(committee.instance, first)))
    verdict, _ = judge(encode_proof(made), genesis, "genesis.json")
    assert not verdict.valid
    assert "no broker voted" in str(verdict.reason)


@pytest.mark.parametrize("name", ["d\u0435mo", "demo ", " demo", "de mo", "\u00e9", 'x". It', ""])
def test_a_name_that_looks_like_another_is_shown_as_what_it_is(name: str) -> None:
    """It can be proved of any text that there is no such entry, also of one that looks like an entry's name."""
    shown = name.encode("unicode_escape").decode().replace('"', '\\"')
    assert _read_out(*_entry(name))[0] == f'Valid: table topic has no such entry: "{shown}".'


def test_a_plain_name_is_shown_as_it_is() -> None:
    assert _read_out(*_entry("demo"))[0] == "Valid: table topic holds this entry: demo."
    assert _read_out(*_entry("wards/er_1.a-b"))[0] == "Valid: table topic has no such entry: wards/er_1.a-b."


LONG = [" ", "\u0301", "漢", "x", "\u3164"]


def _long(text: str) -> tuple[Ledger, bytes]:
    """A message of which everything is as long as it may be."""
    header = MessageHeader(
        (text * 4096).encode()[:4096],
        sorted_pairs({f"a{at}": text * 256 for at in range(64)}),
        tuple((text * 256, (text * 999).encode()) for _ in range(64)),
    )
    words = json.dumps([text * 60] * 5, ensure_ascii=False)
    rule = parse_rule(f"role in {words}").text
    return _published(_spoken(text * 999, header, rule))


@pytest.mark.parametrize("text", LONG)
def test_only_the_beginning_of_long_text_is_shown(text: str) -> None:
    lines = {line.partition(":")[0]: line for line in _read_out(*_long(text))}
    for name in ("Key of the message", "Headers", "Tags", "Access rule"):
        assert lines[name].endswith(" ...")
        assert len(lines[name]) < 350
    assert len(_read_out(*_entry("x" * 4000))[0]) < 400
    field = text * 100_000 + "Valid: alice published message 0"
    ledger = Ledger()
    verdict, proof = judge(f'{{"format":"x","{field}":1}}\n'.encode(), ledger.genesis, "genesis.json")
    told = _tell(verdict, proof, "--genesis")
    assert told.startswith("NOT VALID: ")
    assert len(told) < 1_000


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("columns", ["40", "80"])
def test_the_last_screen_says_the_verdict(text: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", Terminal())

    def last_screen(data: bytes, ledger: Ledger) -> list[str]:
        verdict, proof = judge(data, ledger.genesis, "genesis.json")
        lines = _on_screen(verdict, proof, "--genesis").split("\n")
        return [line for line in lines[-MAX_LINES:] if line.startswith(("Valid", "NOT VALID"))]

    ledger, data = _long(text)
    assert last_screen(data, ledger) == ["Valid: see the first line."]
    long = f'{{"format":"x","{text * 999}":1}}\n'.encode()
    (said,) = last_screen(long, ledger)
    assert said.startswith("NOT VALID: ")


def test_a_verdict_that_fits_on_the_screen_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())
    ledger, data = _published(note("x"))
    verdict, proof = judge(data, ledger.genesis, "genesis.json")
    assert _on_screen(verdict, proof, "--genesis").count("Valid:") == 1


def test_lines_are_folded_to_the_real_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where COLUMNS says that it is wider: the terminal would break the line at its left edge."""
    monkeypatch.setenv("COLUMNS", "200")
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 40))
    with os.fdopen(controller, "rb"), os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        lines = output.folded("x" * 100).split("\n")
        assert [len(line) for line in lines] == [39, 39, 30]
        termios.tcsetwinsize(terminal, (24, 300))
        monkeypatch.setenv("COLUMNS", "60")
        assert len(output.folded("x" * 100).split("\n")[0]) == 59


def test_an_empty_folder_does_not_mean_the_working_folder(
    network: Network, receipt: Path, tmp_path: Path
) -> None:
    """As `--dir "$NETWORK"` says where the variable is not set."""
    (tmp_path / "genesis.json").write_bytes((network.directory / "genesis.json").read_bytes())
    parley("verify", receipt, "--dir", "", home=tmp_path, where=tmp_path, code=ExitCode.WRONG_USE)


def test_a_path_that_is_no_text_is_told_in_json_too(network: Network, receipt: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"g\xff.json")
    odd.write_bytes((network.directory / "genesis.json").read_bytes())
    ended = parley("verify", receipt, "--genesis", odd, "--json", home=tmp_path, code=0)
    assert json.loads(ended.out)["genesis"].endswith("g\\xff.json")


@pytest.mark.parametrize("home", [".", "mail"])
def test_a_home_folder_that_is_no_absolute_path_holds_no_contexts(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", home)
    for name in ("XDG_CONFIG_HOME", "PARLEY_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ContextError):
        find_trust_root(None, None)


def test_a_current_context_that_is_no_text_is_wrong_use(tmp_path: Path, receipt: Path) -> None:
    folder = tmp_path / ".config" / "parley"
    folder.mkdir(parents=True)
    (folder / "current").write_bytes(b"\xff\xfe")
    parley("verify", receipt, home=tmp_path, code=ExitCode.WRONG_USE)
