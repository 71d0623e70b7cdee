"""The page of the format of proof files says what the code does: its tables are compared with the code, both ways."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tests.verifier import standalone, vectors

from parley.application import tables
from parley.applications import DATA_SHARD, VERSION
from parley.client.proofs import EntryProof, OperationProof
from parley.consensus import types
from parley.consensus.committee import faults, quorum
from parley.crypto import hashing, merkle
from parley.ledger import proofs, state_map
from parley.model import batches, genesis, leaves, names
from parley.model.expressions import parse_constraint
from parley.model.receipts import BatchReceipt
from parley.modules.publishing import proof as publication

ROOT = Path(__file__).parents[2]
PAGE = vectors.PAGE.read_text(encoding="utf-8")
# Where the hashes and the signed bytes of a proof are made.
SOURCES = (
    "crypto/merkle.py",
    "ledger/state_map.py",
    "model/genesis.py",
    "model/batches.py",
    "model/leaves.py",
    "consensus/types.py",
)
UNSIGNED = {"PSB1/sig/timeout", "PSB1/sig/proposal"}  # which brokers sign, and no proof file needs
CONSTANTS = {
    "MAX_PROOF": publication.MAX_PROOF,
    "MAX_GENESIS": genesis.MAX_GENESIS,
    "MAX_BROKERS": genesis.MAX_BROKERS,
    "MAX_MESSAGES": batches.MAX_MESSAGES,
    "MAX_NOT_AFTER": batches.MAX_NOT_AFTER,
    "MAX_LEAVES": merkle.MAX_LEAVES,
    "MAX_PATH": merkle.MAX_PATH,
    "MAX_SHOWN_LEAVES": proofs.MAX_LEAVES,
    "MAX_DEPTH": state_map.MAX_DEPTH,
    "MAX_LEVEL": state_map.MAX_LEVEL,
    "GROUP": leaves.GROUP,
    "SALT": get_args(names.Salt)[1].max_length,
    "DIGEST_SIZE": hashing.DIGEST_SIZE,
    "BATCH_FORMAT": batches.FORMAT,
    "GENESIS_FORMAT": genesis.FORMAT,
    "APPLICATION": VERSION,
}
LAYOUTS: dict[str, type[msgspec.Struct]] = {
    "Genesis file": genesis.GenesisFile,
    "Genesis": genesis.Genesis,
    "Organisation": genesis.Organisation,
    "Broker": genesis.Broker,
    "QC": types.QC,
    "TC": types.TC,
    "Header": types.Header,
    "Block proof": proofs.BlockProof,
    "Entry of the state": proofs.StateEntry,
    "Batch header": batches.BatchHeader,
    "Message": batches.Message,
    "Message header": batches.MessageHeader,
    "Leaf proof": leaves.LeafProof,
    "Receipt": BatchReceipt,
    "Publication file": publication.PublicationProof,
    "Operation file": OperationProof,
    "Entry file": EntryProof,
}
PARTS = {
    id(tables.TEXT): "text",
    id(tables.NUMBER): "`u32`",
    id(tables.LARGE): "`u64`",
    id(tables.POSITION): "`u64`, `u32`",
    id(tables.HASH): "32 bytes",
    id(tables.SESSION): "16 bytes",
    id(tables.REST): "rest",
}


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {title}"
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the table of a section, without its heading."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def named(title: str) -> list[str]:
    return [row[0].strip("`") for row in rows(title) if row[0].startswith("`")]


@cache
def literals() -> tuple[set[str], set[str]]:
    """The domains of hashes, and the beginnings of signed bytes, in the code that proofs are made by."""
    domains: set[str] = set()
    beginnings: set[str] = set()
    for name in SOURCES:
        for node in ast.walk(ast.parse((ROOT / "src" / "parley" / name).read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, bytes)
                and node.value[:5] == b"PSB1/"
            ):
                beginnings.add(node.value.decode())
            if isinstance(node, ast.Call) and _called(node) in {"digest", "domain_prefix"}:
                domain = node.args[0]
                assert isinstance(domain, ast.Constant), f"{name} hashes under a domain that is no literal"
                domains.add(str(domain.value))
    return domains, beginnings


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def used() -> set[str]:
    """What the verifier of the page hashes and signs under, for all vectors and one message of each."""
    standalone.used.clear()
    for brokers in vectors.SIZES:
        found = vectors.made(brokers)
        standalone.Network(found["genesis"].encode())
        for one in found["valid"]:
            standalone.verify(one["file"].encode(), found["genesis"].encode())
    return set(standalone.used)


def test_every_hash_and_signature_of_a_proof_has_a_row_and_no_other() -> None:
    domains, beginnings = literals()
    assert {"merkle/node", "state/branch", "block/id", "batch"} <= domains, "the search finds too little"
    assert set(named("Hashes")) == domains
    assert set(named("Signatures")) == beginnings - UNSIGNED
    assert beginnings >= UNSIGNED
    # No vector is of an empty tree.
    assert used() | {"merkle/empty", "state/empty"} == domains | beginnings - UNSIGNED


def test_the_example_of_a_hash_is_its_input() -> None:
    shown = re.search(r"`([0-9a-f]{8} [0-9a-f]+)`", section("Hashes"))
    assert shown
    assert bytes.fromhex(shown[1]) == hashing.domain_prefix("merkle/empty")


def test_constants_are_those_of_the_code() -> None:
    assert {row[0].strip("`"): int(row[1]) for row in rows("Constants")} == CONSTANTS


def test_quorums_are_those_of_the_code() -> None:
    shown = [tuple(map(int, row)) for row in rows("The committee")]
    assert shown == [(n, faults(n), quorum(n)) for n, _, _ in shown]
    assert {1, 4, 7, genesis.MAX_BROKERS} <= {n for n, _, _ in shown}


@pytest.mark.parametrize("title", LAYOUTS)
def test_a_layout_has_the_fields_of_the_code_in_their_order(title: str) -> None:
    kind = LAYOUTS[title]
    fields = list(kind.__struct_encode_fields__)
    if kind.__struct_config__.tag_field == "format":
        fields.insert(0, "format")
    assert named(title) == fields


@pytest.mark.parametrize("kind", [publication.FORMAT, OperationProof, EntryProof])
def test_the_formats_of_the_files_are_those_of_the_code(kind: Any) -> None:  # noqa: ANN401 - a text or a struct
    name = kind if isinstance(kind, str) else kind.__struct_config__.tag
    assert sum(f"| `format` | `{name}` |" in line for line in PAGE.splitlines()) == 1
    assert name in standalone.KINDS


def test_settings_of_the_genesis_are_those_of_the_code() -> None:
    cells = {row[0].strip("`"): row[1] for row in rows("Genesis")}
    for field, kind in (("timeouts", genesis.Timeouts), ("limits", genesis.Limits)):
        assert re.findall(r"`(\w+)`", cells[field]) == list(kind.__struct_fields__)


def test_outcomes_are_those_of_the_application() -> None:
    declared = {str(kind.__struct_config__.tag): kind for kind in DATA_SHARD.outcomes}
    assert set(named("Outcomes")) == declared.keys() == standalone.OUTCOMES.keys()
    for row in rows("Outcomes"):
        kind = declared[row[0].strip("`")]
        fields = [name for name in re.findall(r"`(\w+)`", row[1]) if name in kind.__struct_fields__]
        assert fields == list(kind.__struct_fields__)


def test_tables_of_the_state_are_those_of_the_application() -> None:
    declared = {
        name: ", ".join(PARTS.get(id(part), "?") for part in table.parts) or "none"
        for name, table in DATA_SHARD.tables.items()
        if not table.index
    }
    assert {row[0].strip("`"): row[1] for row in rows("Entries")} == declared


def test_the_keys_that_clients_see_have_a_name_for_each_part() -> None:
    declared = {
        name: len(table.parts)
        for name, table in DATA_SHARD.tables.items()
        if table.visible is not tables.HIDDEN
    }
    found = {row[0].strip("`"): len(row[1].split(",")) for row in rows("Keys that clients see")}
    assert found == declared


def test_the_id_of_a_constraint_is_the_hash_that_the_page_names() -> None:
    constraint = parse_constraint('not ward != "er" and urgent')
    domain = re.search(r'`H\("(.+)", text\)`', section("Keys that clients see"))
    assert domain is not None
    assert constraint.id == hashing.digest(domain[1], constraint.text.encode())


def test_operations_are_those_of_the_application() -> None:
    line = r"^(?:`\w+`,? ?)+$"
    lines = re.findall(line, section("Operations"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(lines))) == DATA_SHARD.operations.keys()


def test_files_are_nested_as_deeply_as_the_page_says() -> None:
    found = [vectors.made(brokers) for brokers in vectors.SIZES]
    files = [json.loads(one["file"]) for made in found for one in made["valid"]]
    said = re.findall(r"at most (\d+) deep", section("Depth"))
    assert max(map(depth, files)) == int(said[0])
    assert {depth(json.loads(made["genesis"])) for made in found} == {int(said[0])}
    leaves = [leaf for brokers in vectors.SIZES for leaf in vectors.story(brokers).receipts()]
    assert max(depth(msgspec.msgpack.decode(leaf)) for leaf in leaves) == int(said[1])


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def test_all_that_a_vector_has_is_explained() -> None:
    found = [vectors.made(brokers) for brokers in vectors.SIZES]
    names = set(re.findall(r"`(\w+)`", " ".join(row[0] for row in rows("Vectors"))))
    assert all(names == made.keys() for made in found)
    cells = {row[0].strip("`"): row[1] for row in rows("Vectors")}
    for kind in ("valid", "invalid", "invalid_genesis"):
        fields = {field for made in found for one in made[kind] for field in one}
        assert fields == set(re.findall(r"`(\w+)`", cells[kind]))


def test_what_a_vector_shows_is_explained_for_its_kind_of_file() -> None:
    kinds = {"publication": "topic", "operation": "operation", "entry": "table"}
    for kind, mark in kinds.items():
        shown = [
            one["shows"] for n in vectors.SIZES for one in vectors.made(n)["valid"] if mark in one["shows"]
        ]
        explained = {
            name
            for row in rows("What the vectors show")
            for name in re.findall(r"`(\w+)`", row[0])
            if row[1] == "all" or kind in row[1]
        }
        assert set[str]().union(*shown) == explained


def test_every_check_has_a_class_that_the_vectors_use() -> None:
    classes = [part.strip() for row in rows("The checks in order") for part in row[0].split(",")]
    refused = {one["refusal"] for brokers in vectors.SIZES for one in vectors.made(brokers)["invalid"]}
    assert set(classes) == refused
    assert len(set(classes)) == len(classes)


def test_every_intermediate_value_is_explained() -> None:
    given = {
        step for brokers in vectors.SIZES for one in vectors.made(brokers)["valid"] for step in one["steps"]
    }
    assert set(named("Intermediate values")) == given


def test_lines_of_the_page_are_short() -> None:
    prose = [line for line in PAGE.splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 100] == []
