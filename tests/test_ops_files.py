"""The files for Prometheus and Grafana: well-formed, and every number that they name is one that a broker tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from parley.node.telemetry.catalogue import CATALOGUE

OPS = Path(__file__).parents[1] / "ops"
ROWS = ["Throughput", "Latency", "Consensus", "Storage", "Clients", "Security"]
OF_PROMETHEUS = {"instance", "job", "le"}  # labels that are not ours
DURATION = re.compile(r"[1-9][0-9]*[smhd]")


def exported() -> dict[str, set[str]]:
    """The series that expressions may name, with their labels."""
    found: dict[str, set[str]] = {}
    for entry in CATALOGUE:
        ends = ("_bucket", "_sum", "_count") if entry.kind == "histogram" else ("",)
        found |= {f"{entry.name}{end}": set(entry.labels) for end in ends}
    for family in ProcessCollector(registry=CollectorRegistry()).collect():
        found |= {sample.name: set() for sample in family.samples}
    return found


SERIES = exported()


def alerts() -> list[dict[str, Any]]:
    (group,) = parsed((OPS / "prometheus" / "alerts.yml").read_text())["groups"]
    assert group["name"] == "parley"
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    return dict(json.loads((OPS / "grafana" / "parley.json").read_text()))


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_expressions_name_series_and_labels_that_are_exported() -> None:
    found = list(expressions())
    assert len(found) > 40
    for where, expression in found:
        assert is_balanced(expression), where
        bare = re.sub(r'"[^"]*"', '""', expression)
        names = set(re.findall(r"\b(?:parley|process)_\w+", bare))
        assert names <= set(SERIES), where
        assert names or re.fullmatch(r"up\{.*\} == 0", expression), where
        known = OF_PROMETHEUS.union(*(SERIES[name] for name in names))
        assert labels_in(bare) <= known, where


def labels_in(expression: str) -> set[str]:
    """Those that it selects by, and those that it groups by."""
    selectors = re.findall(r"\{([^}]*)\}", expression)
    groups = re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression)
    return {
        *(label for part in selectors for label in re.findall(r"(\w+)\s*[=!]", part)),
        *(label for part in groups for label in re.split(r",\s*", part)),
    }


def is_balanced(expression: str) -> bool:
    waiting: list[str] = []
    pairs = {")": "(", "]": "[", "}": "{"}
    for sign in re.sub(r'"[^"]*"', "", expression):
        if sign in pairs.values():
            waiting.append(sign)
        elif sign in pairs and (not waiting or waiting.pop() != pairs[sign]):
            return False
    return not waiting


def test_rules_have_a_name_of_their_own_a_severity_and_words_for_whoever_is_woken() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Parley[A-Z][A-Za-z]+", rule["alert"])
        assert DURATION.fullmatch(rule.get("for", "1m")), rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(words.endswith(".") for words in rule["annotations"].values()), rule["alert"]
        assert "$labels.instance" in rule["annotations"]["summary"], rule["alert"]


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("ParleyNoProgress", "parley_committed_height"),
        ("ParleyLagging", "parley_replica_lag_blocks"),
        ("ParleyNoQuorum", "parley_peers_connected"),
        ("ParleyMisbehaviour", "parley_byzantine_evidence_total"),
        ("ParleyDamageUnmended", "parley_damage_total"),
        ("ParleyCertificateEndsSoon", "parley_certificate_expiry_seconds"),
        ("ParleyCertificateEndsNow", "parley_certificate_expiry_seconds"),
        ("ParleyDiskNearlyFull", "parley_storage_free_bytes"),
        ("ParleyClockOff", "parley_clock_offset_seconds"),
        ("ParleyViewChangesHigh", "parley_view_changes_total"),
        ("ParleyRequestsRefused", "parley_requests_refused_total"),
    ],
)
def test_what_an_operator_must_hear_of_has_a_rule(alert: str, series: str) -> None:
    assert series in {rule["alert"]: rule["expr"] for rule in alerts()}[alert]


def test_the_sample_scrapes_what_a_broker_serves_under_the_name_that_the_rules_use() -> None:
    sample = parsed((OPS / "prometheus" / "prometheus.yml").read_text())
    (job,) = sample["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("parley", "/metrics")
    assert sample["rule_files"] == ["alerts.yml"]
    assert DURATION.fullmatch(sample["global"]["scrape_interval"])
    targets = [target for group in job["static_configs"] for target in group["targets"]]
    assert targets
    assert all(target.startswith("127.0.0.1:") for target in targets)
    assert any('job="parley"' in expression for _, expression in expressions())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_itself_accepts_them() -> None:
    for what, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        command = ["promtool", "check", what, str(OPS / "prometheus" / name)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboard_can_be_imported_anywhere() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 36
    assert (board["id"], board["title"]) == (None, "Parley")
    variables = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query"}
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["targets"]
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
            assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"])


def test_the_dashboard_has_its_rows_and_no_two_panels_in_one_place() -> None:
    panels = dashboard()["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ROWS
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = any(
            first[start] + first[size] <= second[start]
            for start, size in (("x", "w"), ("y", "h"))
            for first, second in ((one, other), (other, one))
        )
        assert apart, (one, other)
        assert one["x"] + one["w"] <= 24


# -- YAML, as far as these files use it: blocks by indentation, lists, plain and double-quoted words ----------------


def parsed(text: str) -> dict[str, Any]:
    lines = [
        line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    value, rest = _block(lines, 0)
    assert not rest
    assert isinstance(value, dict)
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    """The value that begins here, and the lines after it."""
    if lines[0].lstrip().startswith("- "):
        items = []
        while lines and _indent(lines[0]) == indent and lines[0].lstrip().startswith("- "):
            content = lines[0].lstrip()[2:]
            if re.match(r"\w+:( |$)", content):  # a mapping begins on the line of its dash
                item, lines = _block([" " * (indent + 2) + content, *lines[1:]], indent + 2)
            else:
                item, lines = _scalar(content), lines[1:]
            items.append(item)
        return items, lines
    found: dict[str, Any] = {}
    while lines and _indent(lines[0]) == indent:
        key, _, content = lines[0].strip().partition(":")
        assert key.isidentifier(), lines[0]
        assert key not in found, lines[0]
        if content:
            assert content.startswith(" "), lines[0]
            found[key], lines = _scalar(content[1:]), lines[1:]
        else:
            assert _indent(lines[1]) > indent, lines[0]
            found[key], lines = _block(lines[1:], _indent(lines[1]))
    return found, lines


def _scalar(text: str) -> str:
    if text.startswith('"'):
        return str(json.loads(text))
    assert not re.search(r": |\s#", text), f"to be quoted: {text}"
    assert text[0] not in "&*!|>'%@`[{,-?", f"to be quoted: {text}"
    return text
