"""Ledger tables of a module that this file declares: its operations, leaves, changes and codes need no word in Spark's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.application.world import ADMINS, ORGANISATIONS, Actor, World
from tests.ledger.shard import ALICE, GENESIS
from tests.spark.ledger import verified

from parley import applications
from parley.application.application import OWN_VERSIONS, Application
from parley.application.module import Module
from parley.application.operations import Operation, encode_operation
from parley.application.rows import EVIDENCE, LEDGER_TABLES, ChangeTable
from parley.client.ledger import VerifiedBlock
from parley.model.batches import open_batch
from parley.model.receipts import BatchReceipt, Done, Leaf, Outcome, Rejected, encode_leaf
from parley.model.refusals import Refused
from parley.node.provision import provision_network
from parley.spark.detect_rules import counted, suspicion_of
from parley.spark.errors import BadOption
from parley.spark.ledger_columns import ledger_tables, record_batches
from parley.spark.options import application_at, table_options, tables_of
from parley.spark.tables import table_schema


class Remember(Operation, frozen=True):
    """Keep a note for some hours."""

    note: str
    hours: int
    about: bytes


class NoteTaken(Refused, retry="changed", status=409, suspicion="refusal"):
    """There is such a note already."""


class Forgotten(Leaf, frozen=True):
    """A note whose time is over."""

    note: str

    def row(self) -> dict[str, object]:
        return {"count": 1, "detail": self.note}


def _row(operation: Operation) -> Mapping[str, Any] | None:
    match operation:
        case Remember():
            return {"note": operation.note, "hours": operation.hours, "about": operation.about}
        case _:
            return None


def _remember(*_: object) -> Done:
    raise NotImplementedError("no block is executed here")


NOTES = Module(
    name="notes",
    operations={Remember: _remember},
    leaves=(Forgotten,),
    refusals=(NoteTaken,),
    texts={"NoteTaken": "there is a note {note} already"},
    changes=(
        ChangeTable("notes", {"note": "text", "hours": "int", "about": "bytes", "urgent": "flag"}, _row),
    ),
)
OWN = Application("with notes", OWN_VERSIONS, (*applications.MODULES, NOTES))
FIRST, SECOND = Remember("bread", 3, b"\x01\x02"), Remember("bread", 5, b"")


def _block() -> VerifiedBlock:
    """A client's operation that took effect, an administrator's, one that was refused, and a leaf of the module."""
    world = World()
    world.chain = GENESIS.chain
    asked: list[tuple[Actor, str, Operation, Outcome]] = [
        (ALICE, "alpha/alice", FIRST, Done()),
        (ADMINS[ORGANISATIONS[1]], "", SECOND, Done()),
        (ALICE, "alpha/alice", SECOND, Rejected.of(NoteTaken(note="bread"), 3)),
    ]
    bodies, leaves = [], []
    for author, client, operation, outcome in asked:
        signed = world.control(author, operation)
        digest, batch = open_batch(signed.body, GENESIS.chain, 0)
        assert batch.messages[0].payload == encode_operation(operation)
        bodies.append((digest, signed.body, batch))
        leaves.append(encode_leaf(BatchReceipt(digest, author.key, client, "", (0, 0), 0, 1, outcome)))
    return replace(
        verified()[0],
        batches=tuple(digest for digest, _, _ in bodies),
        raw_leaves=(*leaves, encode_leaf(Forgotten("milk"))),
        bodies=tuple(body for _, body, _ in bodies),
        opened=tuple(batch for _, _, batch in bodies),
        remains=(None,) * len(bodies),
        decode_leaf=OWN.decode_leaf,
    )


def rows(table: str) -> list[dict[str, Any]]:
    (batch,) = record_batches(ledger_tables(OWN)[table], [_block()], GENESIS, OWN)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_operations_of_a_module_are_told_with_their_name_arguments_and_refusal() -> None:
    found = rows("operations")
    assert [row["operation"] for row in found] == ["remember"] * 3
    assert found[0]["arguments"] == '{"note":"bread","hours":3,"about":"0102"}'
    assert [(row["outcome"], row["code"]) for row in found] == [
        ("done", "Ok"),
        ("done", "Ok"),
        ("refused", "NoteTaken"),
    ]
    assert found[2]["detail"] == "there is a note bread already"


def test_a_module_has_a_table_of_its_own_of_what_took_effect() -> None:
    found = rows("notes")
    names = ["by", "by_key", "change", "organisation", "note", "hours", "about", "urgent"]
    assert list(found[0]) == ["height", "position", "time", *names]
    assert [tuple(row[name] for name in names) for row in found] == [
        ("alpha/alice", ALICE.key, "remember", "alpha", "bread", 3, b"\x01\x02", None),
        (
            f"administrator of {ORGANISATIONS[1]}",
            ADMINS[ORGANISATIONS[1]].key,
            "remember",
            ORGANISATIONS[1],
            "bread",
            5,
            b"",
            None,
        ),
    ]


def test_leaves_of_a_module_are_receipts_with_what_they_say_of_themselves() -> None:
    last = rows("receipts")[-1]
    assert (last["kind"], last["count"], last["detail"]) == ("forgotten", 1, "milk")
    assert last["leaf"] == encode_leaf(Forgotten("milk"))
    assert last["topic"] is None


def test_codes_of_a_module_count_as_it_says() -> None:
    assert suspicion_of(NoteTaken.code) == "refusal"
    assert NoteTaken.code in counted()


def test_the_tables_of_a_network_are_those_of_its_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tables_of(OWN) == (*LEDGER_TABLES, "clients", "topics", "notes", EVIDENCE)
    assert set(ledger_tables(OWN)) | {EVIDENCE} == set(tables_of(OWN))
    options = {"directory": str(tmp_path / "net"), "table": "notes"}
    made: dict[str, Any] = {"organisations": ["alpha"], "network": "own", "start_time": 1_700_000_000_000}
    provision_network(tmp_path / "net", **made, allow_faults=True)
    monkeypatch.setenv(applications.VARIABLE, f"{__name__}:OWN")
    assert application_at(table_options(options).network) is OWN
    assert table_schema(options).fieldNames()[-4:] == ["note", "hours", "about", "urgent"]
    monkeypatch.setenv(applications.VARIABLE, "nowhere:OWN")
    with pytest.raises(BadOption, match="PARLEY_APPLICATION"):
        table_options(options)
    monkeypatch.delenv(applications.VARIABLE)
    with pytest.raises(BadOption, match="There is no table 'notes'"):
        table_options(options)


def test_a_module_cannot_take_the_name_of_a_table_of_every_ledger() -> None:
    twice = replace(NOTES, changes=(ChangeTable("blocks", {}, _row),))
    with pytest.raises(AssertionError, match="ledger table blocks is declared twice"):
        Application("wrong", applications.VERSION, (*applications.MODULES, twice))
