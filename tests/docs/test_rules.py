"""Rules in pages and in programs for readers name organisations, and what f counts is said to be brokers (P27)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.cli import demo_records
from parley.consensus.committee import faults
from parley.model.expressions import required_values

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RULE = re.compile(r"(?:--publish|--subscribe|--rule|\b(?:publish|subscribe|rule) ?=) ?'([^']+)'")
HELP = re.compile(r'Who may read it: (.+?)\."""')


def rules() -> list[tuple[str, str]]:
    found = [
        (page.name, rule)
        for page in PAGES
        for block in FENCE.findall(page.read_text(encoding="utf-8"))
        for rule in RULE.findall(block)
    ]
    command = (ROOT / "src" / "parley" / "cli" / "pubsub_publish.py").read_text(encoding="utf-8")
    found += [("the help of pub", rule) for rule in HELP.findall(command)]
    return [*found, ("the demo", demo_records.RULE), ("the demo", demo_records.PUBLISH)]


def test_no_rule_that_a_reader_may_copy_takes_the_word_of_every_organisation() -> None:
    found = rules()
    assert [one for one in found if required_values(one[1], "org") is None] == []
    assert {"quickstart.md", "deploy.md", "privacy.md", "the help of pub"} <= {where for where, _ in found}


@pytest.mark.parametrize("page", ["README.md", "docs/deploy.md"])
def test_f_is_said_to_count_brokers_and_not_organisations(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert re.search(r"[Oo]f n brokers, (up to )?f = ⌊\(n-1\)/3⌋ may be faulty", text)
    assert re.search(r"one of (four|4),? (or )?two of (seven|7)", text)
    assert (faults(4), faults(7)) == (1, 2)
    for claim in re.finditer(r"fewer than a third of (?:them|the organisations)", text):
        assert "one broker for each organisation" in text[: claim.start()][-80:]
