import errno
import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley, start
from tests.cli.conftest import Network

from parley.applications import application_of
from parley.cli.output import ExitCode
from parley.cli.pubsub_receipts import Receipts
from parley.client.contexts import read_genesis
from parley.client.messages import Receipt
from parley.ledger.proofs import Trust
from parley.modules.publishing.proof import check_publication, decode_publication


def test_a_message_arrives_certified_and_its_receipt_convinces_a_stranger(
    network: Network, tmp_path: Path
) -> None:
    topic = network.topic("certified")
    options = ["-n", "1", "--from", "earliest", "--json", "--dir", str(network.directory)]
    subscriber = start("sub", topic, *options, home=network.home)
    published = network.run("pub", topic, "hello", "--json").json()
    out, err = subscriber.communicate(timeout=60)
    assert subscriber.returncode == 0, err
    received = json.loads(out)
    assert (received["value"], received["verified"], received["empty"]) == ("hello", True, False)
    assert received["publisher"] == "alpha/alice"
    place = ("topic", "partition", "offset", "height")
    assert [received[key] for key in place] == [published[key] for key in place]
    # A stranger has the two files and nothing else: no context, no network.
    receipt = tmp_path / "receipt.json"
    receipt.write_bytes(Path(published["receipt"]).read_bytes())
    genesis = tmp_path / "genesis.json"
    genesis.write_bytes((network.directory / "genesis.json").read_bytes())
    verdict = parley("verify", receipt, "--genesis", genesis, "--json", home=tmp_path).json()
    assert (verdict["valid"], verdict["what"], verdict["height"], verdict["reason"]) == (
        True,
        "publication",
        published["height"],
        None,
    )
    assert verdict["publisher"] == "alpha/alice"
    assert 3 <= len(verdict["signers"]) <= 4
    told = parley("verify", receipt, "--genesis", genesis, home=tmp_path, code=0).out
    assert "alpha/alice published message" in told
    assert "hello" in told


def test_lines_of_stdin_are_published_in_order(network: Network) -> None:
    topic = network.topic("lines")
    lines = [f"line {number}" for number in range(250)]
    ended = network.run("pub", topic, stdin="\n".join(lines).encode() + b"\n", code=0)
    assert "250 messages published to lines: partition 0 from 0 to 249" in ended.out
    assert network.run("sub", topic, "--from", "earliest", "-e", code=0).out.splitlines() == lines
    assert network.run("fetch", topic, "--from", "240", "-n", "3", code=0).out.splitlines() == lines[240:243]


def test_json_of_stdin_is_a_line_per_message(network: Network) -> None:
    topic = network.topic("json-lines")
    many = network.run("pub", topic, "-", "--json", stdin=b"a\nb\nc\n").lines()
    assert [(line["offset"], line["receipt"]) for line in many] == [(0, None), (1, None), (2, None)]
    (single,) = network.run("pub", topic, "--json", stdin=b"only").lines()
    assert Path(single["receipt"]).is_file()


def test_everything_of_a_message_arrives(network: Network) -> None:
    topic = network.topic("whole")
    options = ["-k", "k1", "-t", "ward=er", "-t", "level=3", "-t", "open=true", "-t", 'n="5"', "-H", "v=1"]
    network.run("pub", topic, "hello", *options, code=0)
    (message,) = network.run("fetch", topic, "--json").lines()
    assert message["key"] == "k1"
    assert message["tags"] == {"ward": "er", "level": 3, "open": True, "n": "5"}
    assert message["headers"] == {"v": "1"}
    assert set(message) >= {
        "topic",
        "partition",
        "offset",
        "ps",
        "publisher",
        "tags",
        "value",
        "verified",
        "empty",
    }
    form = network.run("fetch", topic, "--format", r"%t %p %o %k %s %S %h %P\n", code=0)
    assert form.out == "whole 0 0 k1 hello 5 v=1 alpha/alice\n"


def test_keys_come_out_of_lines(network: Network) -> None:
    topic = network.topic("keyed")
    network.run("pub", topic, "-K", ":", stdin=b"k1:one\nk2:two:three\nfour", code=0)
    assert network.run("fetch", topic, "-f", r"%k=%s\n", code=0).out == "k1=one\nk2=two:three\n=four\n"


def test_bytes_that_are_no_text_survive(network: Network) -> None:
    topic = network.topic("bytes")
    network.run("pub", topic, stdin=b"\xff\xfe", code=0)
    (message,) = network.run("fetch", topic, "--json").lines()
    assert (message["value"], message["encoding"]) == ("//4=", "base64")


def test_constraints_choose(network: Network) -> None:
    topic = network.topic("chosen")
    network.run("pub", topic, "urgent", "-t", "level=5", "-t", "ward=er", code=0)
    network.run("pub", topic, "calm", "-t", "level=1", "-t", "ward=er", code=0)
    network.run("pub", topic, "panic", "-t", "level=9", "-t", "ward=er", code=0)
    for ending in (["-e"], ["-n", "2"]):
        shown = network.run(
            "sub", topic, "--where", 'ward == "er" and level in [5, 9]', "--from", "earliest", *ending, code=0
        )
        assert shown.out == "urgent\npanic\n"


def test_rules_hide_what_they_say(network: Network) -> None:
    topic = network.topic("ruled")
    network.run("pub", topic, "for bravo", "--rule", 'org == "bravo"', code=0)
    network.run("pub", topic, "for all", code=0)
    hidden, seen = network.run("fetch", topic, "--json").lines()
    assert (hidden["empty"], hidden["value"], hidden["rule"]) == (True, None, 'org == "bravo"')
    assert (seen["empty"], seen["value"]) == (False, "for all")
    told = network.run("fetch", topic, "--show-empty", code=0)
    assert told.out == "for all\n"
    assert 'ruled 0@0: hidden from you by the rule org == "bravo"' in told.err
    assert network.run("fetch", topic, who="bravo/bob", code=0).out == "for bravo\nfor all\n"
    assert network.run("sub", topic, "--from", "earliest", "-n", "1", code=0).out == "for all\n"
    read = network.run("read", f"{topic}@0", code=0)
    assert (read.out, 'hidden from you by the rule org == "bravo"' in read.err) == ("", True)
    assert network.run("read", f"{topic}@0", "--json").json()["value"] is None


def test_one_publication_is_read_with_its_proof(network: Network, tmp_path: Path) -> None:
    topic = network.topic("read")
    network.run("pub", topic, "first", "second", code=0)
    proof = tmp_path / "proof.json"
    assert network.run("read", f"{topic}@1", "--proof", proof, code=0).out == "second\n"
    assert proof.stat().st_mode & 0o777 == 0o600, "it holds the message"
    before = proof.read_bytes()
    assert "proof.json" in network.run("read", f"{topic}@0", "--proof", proof, code=ExitCode.WRONG_USE).err
    assert proof.read_bytes() == before
    assert network.run("read", topic, "0", "--json").json()["value"] == "first"
    verdict = network.run("verify", proof, "--json").json()
    assert (verdict["topic"], verdict["offset"]) == (topic, 1)


def test_receipts_go_where_they_are_told_to(network: Network, tmp_path: Path) -> None:
    topic = network.topic("some/receipts")
    kept = network.run("pub", topic, "a", "--receipt", tmp_path / "a.json", "--json").json()
    assert kept["receipt"] == str(tmp_path / "a.json")
    assert network.run("pub", topic, "b", "--receipt", "none", "--json").json()["receipt"] is None
    shown = network.run("pub", topic, "c", "--receipt", "-", code=0)
    genesis = read_genesis(network.directory / "genesis.json")
    trust = Trust(genesis, application_of(genesis).decode_leaf)
    check_publication(decode_publication(shown.out.encode()), trust)
    network.run("pub", topic, "--receipt", tmp_path / "many", stdin=b"d\ne\n", code=0)
    names = sorted(path.name for path in (tmp_path / "many").iterdir())
    assert names == ["parley-receipt-some+receipts-0-3.json", "parley-receipt-some+receipts-0-4.json"]


def test_receipts_of_topics_with_similar_names_have_files_of_their_own(network: Network) -> None:
    kept = [
        network.run("pub", network.topic(topic), topic, "--json").json()["receipt"]
        for topic in ("like/this", "like_this")
    ]
    assert kept[0] != kept[1]
    assert all(Path(path).is_file() for path in kept)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("there.json", "there.json exists and is not overwritten; move it away"),
        ("there.json/inside.json", "there is no folder"),
        ("absent/receipt.json", "there is no folder"),
    ],
)
def test_a_receipt_that_could_not_be_saved_is_told_before_anything_is_published(
    path: str, told: str, network: Network, tmp_path: Path
) -> None:
    (tmp_path / "there.json").write_text("mine")
    before = network.run("topic", "describe", "demo", "--json").json()["offsets"]
    refused = network.run("pub", "demo", "x", "--receipt", tmp_path / path, code=ExitCode.WRONG_USE)
    assert told in flat(refused.err)
    assert "Nothing was published" in flat(refused.err)
    assert network.run("topic", "describe", "demo", "--json").json()["offsets"] == before
    assert [one.name for one in tmp_path.iterdir()] == ["there.json"]
    assert (tmp_path / "there.json").read_text() == "mine"


def test_a_folder_of_receipts_that_cannot_be_made_is_told_before_anything_is_published(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "receipts").touch()
    monkeypatch.setattr(Receipts, "_folder", lambda _: tmp_path / "receipts")
    assert "there is no folder" in network.misuse("pub", "demo", "x")
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    assert "you may not write to" in network.misuse("pub", "demo", "x", "--receipt", str(tmp_path / "new"))


def test_a_receipt_that_gets_lost_after_all_does_not_hide_the_publication(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    topic = network.topic("full/disk")
    with monkeypatch.context() as around:
        around.setattr(Receipt, "save", full)
        one = network.run("pub", topic, "a", "--receipt", tmp_path / "a.json", "--json", code=1)
        many = network.run("pub", topic, "b", "c", "--receipt", tmp_path / "many", code=1)
    assert (json.loads(one.out)["offset"], json.loads(one.out)["receipt"]) == (0, None)
    lost = "published at offset 0, but the receipt could not be saved: "
    assert f"{lost}{tmp_path / 'a.json'}: No space left on device" in one.err
    assert "2 messages published to full/disk: partition 0 from 1 to 2" in many.out
    assert "2 receipts could not be saved" in many.err
    advice = re.search(r"`parley (read .*) --proof FILE`", one.err)
    assert advice is not None
    network.run(*advice[1].split(), "--proof", tmp_path / "proof.json", code=0)
    network.run("verify", tmp_path / "proof.json", code=0)


def test_an_empty_stdin_publishes_nothing_and_says_so(network: Network) -> None:
    ended = network.run("pub", "demo", "--json", stdin=b"", code=0)
    assert (ended.out, ended.err) == ("", "parley: stdin held no line, so nothing was published\n")


def test_partitions_are_read_one_after_the_other(network: Network) -> None:
    topic = network.topic("split", "--partitions", "3")
    for partition in ("2", "0", "1"):
        network.run("pub", topic, f"in {partition}", "-p", partition, code=0)
    assert network.run("fetch", topic, code=0).out == "in 0\nin 1\nin 2\n"
    assert network.run("fetch", topic, "-p", "1", code=0).out == "in 1\n"


def test_ctrl_c_ends_a_subscription_with_130(network: Network) -> None:
    topic = network.topic("endless")
    network.run("pub", topic, "first", code=0)
    subscriber = start("sub", topic, "--from", "earliest", "--dir", network.directory, home=network.home)
    assert subscriber.stdout is not None
    assert subscriber.stdout.readline() == b"first\n"
    subscriber.send_signal(signal.SIGINT)
    assert subscriber.wait(timeout=30) == 130
    subscriber.communicate()


def test_a_reader_that_leaves_is_no_error_of_the_network(network: Network) -> None:
    topic = network.topic("unread")
    network.run("pub", topic, "one", "two", code=0)
    subscriber = start("sub", topic, "--from", "earliest", "--dir", network.directory, home=network.home)
    assert subscriber.stdout is not None
    assert subscriber.stderr is not None
    assert subscriber.stdout.readline() == b"one\n"
    subscriber.stdout.close()
    network.run("pub", topic, "three", "four", code=0)
    assert subscriber.wait(timeout=30) == 141
    assert subscriber.stderr.read() == b""
    subscriber.stderr.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pub", "demo", "x", "--rule", "role = nurse"], "--rule"),
        (["pub", "demo", "x", "-t", "ward"], "name=value"),
        (["sub", "demo", "--where", "ward =="], "--where"),
        (["sub", "demo", "--from", "erliest"], "did you mean earliest?"),
        (["sub", "demo", "--verify", "certfied"], "did you mean certified?"),
        (["sub", "demo", "--fromm", "earliest"], "--from"),
        (["sub", "demo", "--format", "%z"], "no token %z"),
        (["sub", "demo", "--format", "%s", "--json"], "not both"),
        (["pub", "bad topic!", "x"], "'bad topic!' is no name of a topic: use 1 to 128 letters"),
        (["pub", "", "x"], "'' is no name of a topic"),
        (["sub", "bad-"], "no name of a topic"),
        (["fetch", "bad/"], "no name of a topic"),
        (["read", "bad topic@1"], "no name of a topic"),
        (["read", "demo"], "TOPIC@OFFSET"),
        (["read", "demo@x"], "no offset"),
        (["read", f"demo@{2**62}"], "no offset"),
        (["read", "demo", str(2**62)], "OFFSET"),
        (["fetch", "demo", "--from", "9" * 5_000], "no offset"),
        (["sub", "demo", "--as", "alpha/alise"], "did you mean alpha/alice?"),
        (["subb", "demo"], "Did you mean 'sub'?"),
    ],
)
def test_wrong_use_says_what_was_meant(words: list[str], told: str, network: Network) -> None:
    assert told in network.misuse(*words)


@pytest.mark.parametrize("words", [["pub", "dmeo", "x"], ["fetch", "dmeo"], ["sub", "dmeo", "-e"]])
def test_an_unknown_topic_is_refused_with_what_was_meant(words: list[str], network: Network) -> None:
    ended = network.run(*words, code=ExitCode.DOES_NOT_HOLD)
    assert re.search(r"UnknownTopic: .*dmeo.*; did you mean demo\?", ended.err)


def test_who_may_not_publish_is_told_the_rule(network: Network) -> None:
    topic = network.topic("guarded", "--publish", 'role == "nurse"', "--subscribe", 'org == "alpha"')
    refused = network.run("pub", topic, "x", code=ExitCode.DOES_NOT_HOLD)
    assert re.search(r'PermissionDenied: .*role == "nurse"', refused.err)
    write_only = network.topic("write-only", "--subscribe", 'org == "alpha"')
    for words in reading(write_only):
        refused = network.run(*words, who="bravo/bob", code=ExitCode.DOES_NOT_HOLD)
        assert re.search(r'PermissionDenied: .*org == "alpha"', refused.err)


def test_who_may_neither_publish_nor_subscribe_is_not_told_of_the_topic(network: Network) -> None:
    topic = network.topic("unseen", "--publish", 'role == "nurse"', "--subscribe", 'org == "alpha"')
    for words in (*reading(topic), ["pub", topic, "x"], ["topic", "describe", topic]):
        refused = network.run(*words, who="bravo/bob", code=ExitCode.DOES_NOT_HOLD)
        assert "UnknownTopic: " in refused.err
        assert not re.search("nurse|alpha", refused.err)


def reading(topic: str) -> tuple[list[str], ...]:
    return ["fetch", topic], ["sub", topic], ["sub", topic, "--from", "earliest"], ["read", topic, "0"]


def test_an_offset_that_does_not_exist_is_refused(network: Network) -> None:
    topic = network.topic("short")
    ended = network.run("read", f"{topic}@99", code=ExitCode.DOES_NOT_HOLD)
    assert "99" in ended.err
