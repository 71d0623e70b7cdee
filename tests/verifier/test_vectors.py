"""`parley verify` and a verifier that was written from the page alone agree on every vector, and on files with flipped bits."""

from __future__ import annotations

import ast
import base64
import json
import pathlib
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace
from tests.verifier import geneses, standalone, vectors
from tests.verifier.forgeries import Path, at, put
from tests.verifier.liars import Liars

from parley.application.application import VersionError
from parley.applications import DATA_SHARD, VERSION
from parley.cli.verify import judge
from parley.client.proofs import Proof, decode_proof
from parley.crypto import merkle
from parley.crypto.ed25519 import SecretKey
from parley.crypto.ed25519 import verify as is_signed
from parley.crypto.encoding import enc
from parley.crypto.qc import voters
from parley.model.batches import MessageHeader, decode_message_header, encode
from parley.model.genesis import GenesisError, decode_genesis
from parley.model.refusals import Refused
from parley.modules.publishing.proof import PublicationProof

# What `parley verify` says of a file, by the class of the check that the page names.
REASONS = {
    "form": "not a proof file|not a proof of an (operation|entry)|canonical form|the format is|bytes; .* are allowed",
    "epochs": "governance epochs",
    "network": "belongs to another network",
    "version": "version .* of the application",
    "certificate": "certificate is not of the header|not certified by a quorum|no broker voted",
    "history": "cannot have|another place or another size|not in the certified history",
    "receipts": "receipts shown are not those|a receipt of block .* cannot be read",
    "receipt": "not that of one",
    "digest": "not the one that the receipt names",
    "signature": "is not signed by",
    "ledger": "was made for another ledger",
    "kind": "holds an operation, and no messages",
    "agreement": "than the (batch|operation's batch)$",
    "height": "may not be applied at height",
    "message": "message is not in the batch|message's header cannot be read",
    "operation": "the operation cannot be read",
    "state": "not in the certified state",
    "table": "no part of the certified state|a table that this network does not have|the entry cannot be read",
    "summary": "do not agree with what the rest of it proves",
}
FLIPPED_WHOLE = {(1, "message"), (4, "odd"), (4, "absent")}
ALTERED = 4_000
DEPTH = 2  # of the places whose values are exchanged
SAMPLED = 80  # bits of each other file
HINT = f"the vectors are not what the code gives; run: {vectors.COMMAND}"


@cache
def loaded(brokers: int) -> Any:  # noqa: ANN401 - JSON
    return json.loads(vectors.file_of(brokers).read_text(encoding="utf-8"))


def genesis_of(brokers: int) -> bytes:
    return str(loaded(brokers)["genesis"]).encode()


def files(brokers: int) -> dict[str, bytes]:
    return {one["name"]: one["file"].encode() for one in loaded(brokers)["valid"]}


def by_parley(data: bytes, genesis: bytes) -> str:
    """The class of the refusal; empty: it is valid."""
    verdict, _ = judge(data, decode_genesis(genesis), "genesis.json")
    if verdict.valid:
        return ""
    found = [kind for kind, words in REASONS.items() if re.search(words, str(verdict.reason))]
    assert len(found) == 1, f"{verdict.reason!r} is of the classes {found}"
    return found[0]


def by_the_page(data: bytes, genesis: bytes) -> str:
    try:
        standalone.verify(data, genesis)
    except standalone.Refusal as refusal:
        return refusal.kind
    return ""


def as_json(value: Any) -> Any:  # noqa: ANN401 - what a file shows
    if isinstance(value, bytes):
        return value.hex()
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.fixture(autouse=True)
def _of_this_version() -> None:
    assert {loaded(brokers)["application"] for brokers in vectors.SIZES} == {VERSION}, HINT


VALID = [(brokers, name) for brokers in vectors.SIZES for name in files(brokers)]
INVALID = [(brokers, one["name"]) for brokers in vectors.SIZES for one in loaded(brokers)["invalid"]]
GENESES = {one["name"]: vectors.made_of(genesis_of(4), one) for one in loaded(4)["invalid_genesis"]}


# -- the vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", vectors.SIZES)
def test_the_vectors_are_what_the_code_gives(brokers: int) -> None:
    assert vectors.file_of(brokers).read_text(encoding="utf-8") == vectors.written(brokers), HINT


def test_the_example_and_the_version_on_the_page_are_those_of_the_vectors() -> None:
    text = vectors.PAGE.read_text(encoding="utf-8")
    assert vectors.page(text, loaded(1)) == text, HINT


def test_the_vectors_hold_what_the_page_says_of_them() -> None:
    shown = {
        (brokers, one["name"]): one["shows"] for brokers in vectors.SIZES for one in loaded(brokers)["valid"]
    }
    proofs = {key: decoded(*key) for key in VALID}
    assert {brokers for brokers, _ in VALID} == {1, 4, 7}
    assert [len(shown[brokers, "odd"]["signers"]) for brokers in vectors.SIZES] == [1, 3, 5]
    for brokers in (4, 7):
        assert receipts_of(proofs[brokers, "ruled"]) > 4
        assert proofs[brokers, "failed-view"].anchor.header.tc is not None
    assert [len(shown[brokers, "all-signers"]["signers"]) for brokers in vectors.SIZES] == [1, 4, 7]
    for brokers in vectors.SIZES:
        assert shown[brokers, "odd"]["certified_height"] > shown[brokers, "odd"]["height"] + 5
        assert shown[brokers, "ruled"]["rule"]
        assert not shown[brokers, "open"]["rule"]
        assert shown[brokers, "refused"]["code"] == "PermissionDenied"
        assert not shown[brokers, "absent"]["found"]
        assert 2 in levels_of(proofs[brokers, "one-child"]), (
            "the bitmap of a branch with one child, and no more"
        )
        assert not shown[brokers, "foreign"]["rule"].isascii()
    refused = Counter(one["refusal"] for brokers in vectors.SIZES for one in loaded(brokers)["invalid"])
    assert refused.keys() == REASONS.keys(), "every class has files"


def decoded(brokers: int, name: str) -> Proof:
    return decode_proof(files(brokers)[name])


def receipts_of(proof: Any) -> int:  # noqa: ANN401 - of a publication
    return int(proof.receipt.receipts.size)


def levels_of(proof: Any) -> list[int]:  # noqa: ANN401 - of an entry
    return [len(level) for level in proof.entry.proof.levels]


def test_the_points_of_small_order_in_the_vectors_fulfil_the_equation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a verifier that does not look for them accepts these files, and learns that it must."""
    monkeypatch.setattr(standalone, "is_neutral", lambda _point: False)
    monkeypatch.setattr(standalone, "is_signed", standalone.is_signed.__wrapped__)
    found = [one for one in loaded(4)["invalid"] if "small-order" in one["name"]]
    assert len(found) == 2
    for one in found:
        data = vectors.made_of(files(4)[one["base"]], one)
        assert by_the_page(data, genesis_of(4)) == ""


def judged_by_parley(genesis: bytes) -> None:
    judge(b"", decode_genesis(genesis), "genesis.json")


@pytest.mark.parametrize("name", GENESES)
def test_both_refuse_an_invalid_genesis_file(name: str) -> None:
    with pytest.raises((GenesisError, VersionError)):
        judged_by_parley(GENESES[name])
    with pytest.raises(standalone.Refusal):
        standalone.network_of(GENESES[name])


def test_invalid_genesis_files_are_signed_by_the_anchors_that_they_name() -> None:
    """So that a verifier that leaves out a check accepts the file, and learns that it must not."""
    judged_by_parley(genesis_of(4))
    signed = [data for name, data in GENESES.items() if not name.startswith(("form-", "signature-"))]
    for data in signed:
        file = json.loads(data)
        assert data == geneses.written(file)
        message = enc(b"PSB1/sig/genesis", standalone.h("genesis", standalone.compact(file["genesis"])))
        anchors = [one["anchor"] for one in file["genesis"]["organisations"]]
        assert len(anchors) == len(file["signatures"])
        for anchor, signature in zip(anchors, file["signatures"], strict=True):
            assert is_signed(base64.b64decode(anchor), message, base64.b64decode(signature))
    assert len(signed) > 60
    assert sorted(len(data) > standalone.MAX_GENESIS for data in signed)[-2:] == [False, True]


@pytest.mark.parametrize("brokers", vectors.SIZES)
def test_both_find_the_same_chain(brokers: int) -> None:
    found = standalone.network_of(genesis_of(brokers))
    said = loaded(brokers)
    assert found.chain.hex() == said["chain"] == decode_genesis(genesis_of(brokers)).chain.hex()
    assert found.signed.hex() == said["genesis_signed"]
    (committee,) = found.committees
    assert (committee.faults, committee.quorum) == (said["allowed_faults"], said["quorum"])


@pytest.mark.parametrize(("brokers", "name"), VALID, ids=str)
def test_both_accept_a_valid_file_and_show_the_same(brokers: int, name: str) -> None:
    (one,) = (one for one in loaded(brokers)["valid"] if one["name"] == name)
    data = one["file"].encode()
    assert by_parley(data, genesis_of(brokers)) == ""
    check = standalone.verify(data, genesis_of(brokers))
    assert {key: as_json(value) for key, value in check.shows.items()} == one["shows"]
    assert {key: value.hex() for key, value in check.steps.items()} == one["steps"]


@pytest.mark.parametrize(("brokers", "name"), INVALID, ids=str)
def test_both_refuse_an_invalid_file_at_the_check_that_the_page_names(brokers: int, name: str) -> None:
    (one,) = (one for one in loaded(brokers)["invalid"] if one["name"] == name)
    data = vectors.made_of(files(brokers)[one["base"]], one)
    genesis = genesis_of(brokers)
    if "genesis" in one:
        genesis = genesis_of(int(one["genesis"].partition("-")[0]))
    assert (by_the_page(data, genesis), by_parley(data, genesis)) == (one["refusal"], one["refusal"])


@pytest.mark.parametrize("name", ["refused", "topic"])
def test_both_refuse_a_file_of_one_byte_more_than_a_proof_may_have(name: str) -> None:
    data, genesis = files(4)[name], genesis_of(4)
    place = ("code",) if name == "refused" else ("table",)
    short = standalone.MAX_PROOF - len(put(data, place, ""))
    for more, kind in ((0, "summary"), (1, "form")):
        changed = put(data, place, "x" * (short + more))
        assert len(changed) == standalone.MAX_PROOF + more
        assert (by_the_page(changed, genesis), by_parley(changed, genesis)) == (kind, kind)


@pytest.mark.parametrize(
    ("name", "kind"), [("message", "file"), ("refused", "operation"), ("topic", "entry")]
)
def test_a_file_that_cannot_be_read_is_refused_by_the_name_of_its_own_kind(name: str, kind: str) -> None:
    data = put(files(4)[name], ("height",), "1")
    verdict, _ = judge(data, decode_genesis(genesis_of(4)), "genesis.json")
    assert verdict.what == {"file": "publication"}.get(kind, kind)
    assert re.match(f"this is not a proof (of an )?{kind}: .*`int`, got `str`", str(verdict.reason))


def test_both_refuse_a_file_that_is_too_large() -> None:
    def refused(epochs: int) -> tuple[int, str, str]:
        data = put(files(4)["message"], ("epochs",), ["A" * epochs])
        return len(data), by_the_page(data, genesis_of(4)), by_parley(data, genesis_of(4))

    most = (standalone.MAX_PROOF - refused(0)[0]) // 4 * 4
    size, *found = refused(most)
    assert found == ["epochs", "epochs"]
    assert size <= standalone.MAX_PROOF < size + 4
    assert refused(most + 4)[1:] == ("form", "form")


@pytest.mark.parametrize("depth", [17, 900, 100_000])
def test_both_refuse_what_is_nested_deeply(depth: int) -> None:
    text, packed = b"[" * depth + b"]" * depth, b"\x91" * depth + b"\xc0"
    known, genesis = files(4), genesis_of(4)
    for name, place in (
        ("message", b'"epochs":[]'),
        ("refused", b'"code":'),
        ("topic", b'"key":["wards/er"]'),
    ):
        field = place.partition(b":")[0] + b":"
        for changed in (
            known[name].replace(place, field + text, 1),
            known[name].replace(b"{", b'{"first":' + text + b",", 1),
            known[name][:-2] + b',"last":' + text + b"}\n",
            text,
        ):
            assert changed != known[name]
            assert (by_the_page(changed, genesis), by_parley(changed, genesis)) == ("form", "form")
    deep = genesis.replace(b'"rights": []', b'"rights": ' + text, 1)
    assert deep != genesis
    assert not reads(decode_genesis, deep)
    assert not reads(standalone.network_of, deep)
    for data in (packed, b"\x93" + packed + b"\x90\x90", b"\x93\xc0" + packed + b"\x90"):
        assert not reads(decode_message_header, data)
        assert not reads(standalone.message_header, data)
    for data in (packed, b"\x92\xa5batch" + packed):
        assert not reads(DATA_SHARD.decode_leaf, data)
        assert not reads(standalone.receipt_of, data)
    for data in (packed, b"\x92\xacdelete_topic" + packed):
        assert not reads(DATA_SHARD.decode_operation, data)
        assert not reads(standalone.operation_name, data)


def test_both_look_at_nothing_but_the_payload_of_an_operation_s_message() -> None:
    told = vectors.story(4)
    honest = told.network.operation(told.subscribed)
    other = replace(honest.message, header=b"\xff", rule="no rule at all (")
    made = Liars(told).operated(honest, other)
    assert (by_the_page(made, genesis_of(4)), by_parley(made, genesis_of(4))) == ("", "")


INTEGERS = (-(2**63) - 1, -(2**63), -1, 2**62, 2**63, 2**64 - 1, 2**64, 10**400)


@pytest.mark.parametrize("name", ["message", "refused", "topic"])
def test_both_refuse_integers_beyond_the_limits_wherever_they_stand(name: str) -> None:
    """Also those that 53 bits, 63 bits or 64 bits do not hold."""
    data, genesis = files(4)[name], genesis_of(4)
    numbers = [path for path in all_places(json.loads(data)) if type(at(data, path)) is int]
    assert len(numbers) >= 15
    for path in numbers:
        for value in INTEGERS:
            changed = put(data, path, value)
            assert (by_the_page(changed, genesis), by_parley(changed, genesis)) == ("form", "form"), path


@pytest.mark.parametrize("part", [*INTEGERS, True, None, [1], [[]], 1.5, {}])
def test_both_refuse_the_same_parts_of_a_key(part: object) -> None:
    changed, genesis = put(files(4)["head"], ("key", 1), part), genesis_of(4)
    refused = "summary" if type(part) is int else "form"
    assert (by_the_page(changed, genesis), by_parley(changed, genesis)) == (refused, refused)


@pytest.mark.parametrize("kind", [*INTEGERS, True, None, [], [[]], 1.5, {}, "", "parley entry proof 2"])
def test_both_refuse_a_file_of_no_known_kind(kind: object) -> None:
    changed, genesis = json.dumps({"format": kind}).encode() + b"\n", genesis_of(4)
    assert (by_the_page(changed, genesis), by_parley(changed, genesis)) == ("form", "form")


# -- flipped bits ------------------------------------------------------------------------------------------------------


def flips(brokers: int, name: str, data: bytes) -> Iterator[bytes]:
    """The file with one bit changed: every byte of some files, and bits of all others by a fixed seed."""
    chance = random.Random(f"{brokers}/{name}")
    every = range(len(data))
    places = every if (brokers, name) in FLIPPED_WHOLE else chance.sample(every, SAMPLED)
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        yield bytes(changed)


@pytest.mark.parametrize(("brokers", "name"), VALID, ids=str)
def test_both_refuse_a_file_in_which_a_bit_was_flipped(brokers: int, name: str) -> None:
    genesis = genesis_of(brokers)
    for changed in flips(brokers, name, files(brokers)[name]):
        found = by_the_page(changed, genesis)
        assert found
        assert found == by_parley(changed, genesis), changed


@pytest.mark.parametrize("brokers", vectors.SIZES)
def test_both_refuse_a_genesis_file_in_which_a_bit_was_flipped(brokers: int) -> None:
    genesis = genesis_of(brokers)
    for changed in flips(brokers, "genesis", genesis):
        with pytest.raises(GenesisError):
            decode_genesis(changed)
        with pytest.raises(standalone.Refusal):
            standalone.network_of(changed)


# -- parts of files ----------------------------------------------------------------------------------------------------


def altered(data: bytes, chance: random.Random) -> bytes:
    """With a bit flipped, a byte less, a byte more, or a longer form of a length."""
    place = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
        case 1:
            return data[:place] + data[place + 1 :]
        case 2:
            return (
                data[:place]
                + bytes([chance.choice(b"\x00\x01\x7f\x80\xc0\xc2\xca\xd9\xdc\xff")])
                + data[place:]
            )
        case _:
            return data.replace(b"\xc4\x20", b"\xc5\x00\x20", 1).replace(b"\xa4", b"\xd9\x04", 1)


def reads(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except (ValueError, Refused, standalone.Refusal):
        return False
    return True


def test_both_read_the_same_message_headers() -> None:
    chance = random.Random("message headers")
    known = [header for key in VALID for header in headers_of(decoded(*key))]
    known.append(encode(MessageHeader(bytes(300), (("a", "x" * 40), ("b", -1)), (("h" * 33, bytes(70_00)),))))
    cases = [altered(chance.choice(known), chance) for _ in range(ALTERED)] + known
    found = [reads(standalone.message_header, case) for case in cases]
    assert found == [reads(decode_message_header, case) for case in cases]
    assert 100 < Counter(found)[True] < ALTERED


def test_both_read_the_same_receipts() -> None:
    chance = random.Random("receipts")
    known = [leaf for brokers in vectors.SIZES for leaf in vectors.story(brokers).receipts()]
    cases = [altered(chance.choice(known), chance) for _ in range(ALTERED)] + known
    found = [reads(standalone.receipt_of, case) for case in cases]
    assert found == [reads(DATA_SHARD.decode_leaf, case) for case in cases]
    assert 100 < Counter(found)[True] < ALTERED


def headers_of(proof: Proof) -> list[bytes]:
    if not isinstance(proof, PublicationProof) or proof.message is None:
        return []
    return [proof.message.message.header]


def test_both_follow_the_same_paths_of_several_leaves() -> None:
    chance = random.Random("paths")
    found = Counter[bool]()
    for size in range(1, 40):
        leaves = [b"%d" % at for at in range(size)]
        indices = sorted(chance.sample(range(size), chance.randint(1, size)))
        proof = merkle.prove_many(leaves, indices)
        shown, root = [leaves[at] for at in indices], merkle.root(leaves)
        for other in (size - 1, size, size + 1, 2 * size):
            moved = merkle.MultiProof(other, proof.indices, proof.siblings)
            fields = {"size": other, "indices": indices, "siblings": list(proof.siblings)}
            holds = standalone.root_of_paths(shown, fields) == root
            assert holds == merkle.verify_many(root, shown, moved)
            found[holds] += 1
    assert min(found[True], found[False]) > 20


def test_both_read_the_same_bitmaps() -> None:
    def signers(bitmap: bytes, size: int) -> list[int] | None:
        try:
            return standalone.signers_of(bitmap, size)
        except standalone.Refusal:
            return None

    chance = random.Random("bitmaps")
    cases = [(chance.randbytes(chance.randint(0, 5)), size) for size in range(1, 33) for _ in range(60)]
    known = [voters(*case) for case in cases]
    assert [signers(*case) for case in cases] == [None if one is None else list(one) for one in known]
    assert {len(bitmap) for (bitmap, _), one in zip(cases, known, strict=True) if one} >= {1, 2, 3, 4}


# -- parts of one file in another --------------------------------------------------------------------------------------


def places(value: Any, path: Path = ()) -> Iterator[Path]:  # noqa: ANN401 - JSON
    """Where the values of a file stand, but for single hashes and numbers deep within."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in inner:
        yield (*path, step)
        if len(path) < DEPTH:
            yield from places(part, (*path, step))


def all_places(value: Any, path: Path = ()) -> Iterator[Path]:  # noqa: ANN401 - JSON
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in inner:
        yield (*path, step)
        yield from all_places(part, (*path, step))


@pytest.mark.parametrize("name", files(7))
def test_a_file_with_a_part_of_another_one_proves_nothing_else(name: str) -> None:
    known, genesis = files(7), genesis_of(7)
    honest = proved(known[name], genesis)
    for path in places(json.loads(known[name])):
        mine = at(known[name], path)
        others = {
            json.dumps(other): other for file in known.values() if (other := found_at(file, path)) != mine
        }
        for other in others.values():
            made = put(known[name], path, other)
            refused = by_the_page(made, genesis)
            assert refused == by_parley(made, genesis)
            # Left are other signers, and the file of a batch without the message that it had.
            assert refused or made in known.values() or proved(made, genesis).items() <= honest.items()


def proved(data: bytes, genesis: bytes) -> dict[str, str]:
    shows = standalone.verify(data, genesis).shows
    return {name: repr(value) for name, value in shows.items() if name != "signers"}


def found_at(data: bytes, path: Path) -> Any:  # noqa: ANN401 - JSON
    try:
        return at(data, path)
    except (KeyError, IndexError, TypeError):
        return None


# -- the verifier itself -----------------------------------------------------------------------------------------------


def test_the_verifier_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse(pathlib.Path(standalone.__file__).read_text(encoding="utf-8"))
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {"json", "hashlib"} <= set(named)
    assert {name.partition(".")[0] for name in named} <= sys.stdlib_module_names
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not called & {"__import__", "exec", "eval"}
    assert "importlib" not in named


def test_the_verifier_runs_where_there_is_no_parley(tmp_path: pathlib.Path) -> None:
    genesis, file = tmp_path / "genesis.json", tmp_path / "proof.json"
    genesis.write_bytes(genesis_of(4))
    command = [sys.executable, "-I", "-S", standalone.__file__, str(genesis), str(file)]
    for data, code, word in (
        (files(4)["message"], 0, "Valid in chain"),
        (files(4)["message"][:-1], 1, "NOT VALID"),
    ):
        file.write_bytes(data)
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, ended.stderr) == (code, "")
        assert word in ended.stdout


def edge_cases() -> Iterator[tuple[bytes, bytes, bytes]]:
    folder = vectors.FOLDER.parent
    for name in ("ed25519-rfc8032.json", "ed25519-speccheck.json"):
        for vector in json.loads((folder / name).read_text())["vectors"]:
            yield tuple(bytes.fromhex(vector[part]) for part in ("public", "message", "signature"))  # type: ignore[misc]
    excerpt = json.loads((folder / "ed25519-wycheproof-excerpt.json").read_text())
    for vector in excerpt["tests"]:
        yield bytes.fromhex(excerpt["publicKey"]), bytes.fromhex(vector["msg"]), bytes.fromhex(vector["sig"])


def small_order() -> Iterator[tuple[bytes, bytes, bytes]]:
    """Keys and commitments of small order, in every encoding, with the scalar for which many libraries accept them."""
    p = standalone.P
    torsion = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"
    eighth = int.from_bytes(bytes.fromhex(torsion), "little")
    encodings = {
        (y | sign << 255).to_bytes(32, "little")
        for y in (0, 1, p - 1, p, p + 1, eighth, p - eighth)
        for sign in (0, 1)
    }
    honest = SecretKey.from_seed(bytes(32))
    signature = honest.sign(b"message")
    for one in sorted(encodings):
        for other in sorted(encodings):
            yield one, b"message", other + bytes(32)
        yield one, b"message", signature
        yield honest.public, b"message", one + signature[32:]
    yield honest.public, b"message", signature


def test_the_verifier_s_ed25519_is_parley_s_in_every_odd_case() -> None:
    cases = [*edge_cases(), *small_order()]
    found = [standalone.is_signed(*case) for case in cases]
    assert found == [is_signed(*case) for case in cases]
    assert Counter(found)[True] > 10


def test_the_verifier_knows_all_tables_of_the_state() -> None:
    assert standalone.TABLES.keys() == {name for name, table in DATA_SHARD.tables.items() if not table.index}


def test_the_verifier_knows_the_operations_and_the_version_of_the_page() -> None:
    assert set(standalone.OPERATIONS) == DATA_SHARD.operations.keys()
    assert {VERSION} == standalone.KNOWN_APPLICATIONS
