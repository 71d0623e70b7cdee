"""Equivocation, the table of alerts, and what is made of it: all without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import flat, parley
from tests.consensus.chains import Committee

from parley.model.genesis import Broker
from parley.replica import evidence
from parley.replica.evidence import Record
from parley.spark.detect_brokers import accuse
from parley.spark.detect_report import markdown, report
from parley.spark.detect_rules import Alert, Kind
from parley.spark.detect_table import AlertTable, AlertTableError, read_alerts

COMMITTEE = Committee()
FIRST = COMMITTEE.block()
TWIN = COMMITTEE.block(time=FIRST.header.time + 1)
MEMBERS = tuple(
    Broker(f"{name}-1", name, bytes(32), "127.0.0.1:1") for name in ("alpha", "beta", "gamma", "delta")
)
NOW = 1_700_000_000_000


def alert(name: str, **changes: object) -> Alert:
    fields: dict[str, object] = {
        "alert": name,
        "kind": Kind.REFUSALS,
        "subject": "alpha/mallory",
        "organisation": "alpha",
        "phase": "began",
        "severity": "warning",
        "height_from": 3,
        "height_to": 7,
        "time": NOW,
        "count": 20,
        "words": "alpha/mallory, a burst of refusals: 20 operations were refused.",
        "evidence": (3, 7),
    }
    return Alert(**{**fields, **changes})  # type: ignore[arg-type]


ENDED = alert("two", phase="ended", severity="notice", height_to=9, time=NOW + 60_000, count=31)
BROKER = {"subject": "beta-1", "organisation": "beta"}
SILENT = alert("three", kind=Kind.SILENT, time=NOW + 90_000, height_from=20, height_to=40, **BROKER)
TWO_WORDS = alert(
    "four", kind=Kind.EQUIVOCATION, severity="critical", time=NOW + 5_000, height_from=0, **BROKER
)
ALERTS = [alert("one"), TWO_WORDS, ENDED, SILENT]


# -- equivocation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "subject", "words"),
    [
        (
            Record("proposals", COMMITTEE.proposal(FIRST), COMMITTEE.proposal(TWIN)),
            MEMBERS[FIRST.header.proposer].name,
            "two proposals of view 1",
        ),
        (
            Record("votes", COMMITTEE.vote(FIRST, 3), COMMITTEE.vote(TWIN, 3)),
            "delta-1",
            "two votes of view 1",
        ),
    ],
)
def test_two_contradicting_messages_accuse_whoever_signed_both(
    found: Record, subject: str, words: str
) -> None:
    records = [evidence.encode(found)] * 2  # as two brokers hold it
    (accused,) = accuse(records, MEMBERS, COMMITTEE.verifier(), NOW)
    assert (accused.kind, accused.subject, accused.severity) == (Kind.EQUIVOCATION, subject, "critical")
    assert words in accused.words
    assert accuse(records, MEMBERS, COMMITTEE.verifier(), NOW + 1)[0].alert == accused.alert


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"no record",
        evidence.encode(Record("votes", COMMITTEE.vote(FIRST, 1), COMMITTEE.vote(TWIN, 2))),
        evidence.encode(Record("votes", COMMITTEE.vote(FIRST, 1), COMMITTEE.vote(FIRST, 1))),
    ],
)
def test_what_does_not_verify_accuses_nobody(record: bytes) -> None:
    assert accuse([record], MEMBERS, COMMITTEE.verifier(), NOW) == []


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_same_part_twice_is_there_once(tmp_path: Path) -> None:
    table = AlertTable(tmp_path / "alerts", tmp_path / "delta")
    assert table.write("query", 3, ALERTS[:2])
    assert not table.write("query", 3, ALERTS[:2])
    assert not table.write("query", 4, [])
    # Another query saw some of it again, from the beginning of the ledger.
    assert table.write("another", 0, ALERTS)
    assert read_alerts(tmp_path / "alerts") == ALERTS


def test_what_a_crash_left_half_written_is_passed_over(tmp_path: Path) -> None:
    AlertTable(tmp_path).write("query", 0, ALERTS)
    (tmp_path / ".query-000000001.parquet").write_bytes(b"half")
    assert read_alerts(tmp_path) == ALERTS


def test_a_file_that_is_no_part_of_a_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.parquet").write_bytes(b"no table")
    with pytest.raises(AlertTableError, match=r"other\.parquet is not a part of a table of alerts"):
        read_alerts(tmp_path)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(AlertTableError, match=r"other\.parquet is not a part of a table of alerts"):
        read_alerts(tmp_path)


# -- the report ------------------------------------------------------------------------------------------------------


def test_what_began_and_ended_is_one_episode() -> None:
    found = report(ALERTS)
    assert found.kinds == {"refusals": 1, "silent-broker": 1, "equivocation": 1}
    assert [(one.kind, one.ongoing, one.count) for one in found.episodes] == [
        ("refusals", False, 31),
        ("equivocation", False, 20),
        ("silent-broker", True, 20),
    ]
    assert (found.ongoing, found.critical, found.quiet) == (1, 1, False)


def test_names_in_a_page_do_not_become_markup() -> None:
    page = markdown(report([alert("one", words="<img src=x> | [click](http://x) \x1b[2J `x`")]), "chart.png")
    assert "![When, who, what](chart.png)" in page
    assert "&lt;img src=x> \\| \\[click](http://x) \\x1b\\[2J \\`x\\`" in page.replace("\\\\", "\\")


def test_a_quiet_ledger_makes_a_quiet_page() -> None:
    assert markdown(report([])) == "# Misbehaviour\n\nNothing was noticed.\n"


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_table_is_reported_with_a_chart_and_a_page(tmp_path: Path) -> None:
    AlertTable(tmp_path / "alerts").write("query", 0, ALERTS)
    chart, page = tmp_path / "chart.png", tmp_path / "page.md"
    options = ("--check", "--table", str(tmp_path / "alerts"), "--chart", str(chart), "--report", str(page))
    told = json.loads(parley("audit", "watch", *options, "--json", home=tmp_path, code=1).out)
    assert [one["alert"] for one in told["alerts"]] == ["one", "four", "two", "three"]
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert "![When, who, what](chart.png)" in page.read_text()
    shown = parley("audit", "watch", *options, home=tmp_path, code=1).out
    assert "silent-broker" in shown
    assert "goes on" in shown


def test_a_table_without_alerts_is_well(tmp_path: Path) -> None:
    (tmp_path / "_checkpoint").mkdir()
    ended = parley("audit", "watch", "--check", "--table", ".", "--chart", "c.png", home=tmp_path, code=0)
    assert "Nothing was noticed." in ended.out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--once", "--check"), "say --once or --check"),
        (("--check", "--report", "nowhere/page.md"), "there is no folder nowhere"),
        (("--check", "--chart", "chart.svg"), "charts are PNG files"),
        (("--check", "--table", "alrets"), "no watch has written to alrets yet"),
        (("--probed", "33"), "less than or equal to 32"),
    ],
)
def test_wrong_use_is_said_before_anything_starts(
    options: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    assert problem in flat(parley("audit", "watch", *options, home=tmp_path, code=2).err)
