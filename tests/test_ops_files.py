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
from tests.ops.rule_files import alerts, parsed

from parley.node.telemetry.catalogue import CATALOGUE

OPS = Path(__file__).parents[1] / "ops"
ROWS = [
    "Verdict",
    "Brokers by name",
    "Throughput",
    "Latency",
    "Consensus",
    "Storage",
    "Clients",
    "Security",
]
OF_PROMETHEUS = {"instance", "job", "le"}  # labels that are not ours
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
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
KINDS = {entry.name: entry.kind for entry in CATALOGUE}


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
    groups = re.findall(r"\b(?:by|without|on|ignoring|group_left) \(([^)]*)\)", expression)
    return {
        *(label for part in selectors for label in re.findall(r"(\w+)\s*[=!]", part)),
        *(label for part in groups for label in re.split(r",\s*", part) if label),
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
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert summary.endswith("."), rule["alert"]
        assert description.endswith("."), rule["alert"]
        assert re.search(r"\$labels\.(instance|peer|network)", summary), (
            f"{rule['alert']} names no broker or network"
        )


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("ParleyStalled", "parley_certified_age_seconds"),
        ("ParleyLagging", "parley_replica_lag_blocks"),
        ("ParleyNoQuorum", "parley_peers_connected"),
        ("ParleyMisbehaviour", "parley_byzantine_evidence_total"),
        ("ParleyDamageUnmended", "parley_damage_open"),
        ("ParleyPeerDown", "parley_peer_up"),
        ("ParleyPeerSlow", "parley_peer_slow"),
        ("ParleyPeerSendsGarbage", "parley_messages_refused_total"),
        ("ParleyQuorumMarginLost", "parley_quorum_size"),
        ("ParleyVersionSkew", "parley_info"),
        ("ParleyLoopLag", "parley_loop_lag_seconds"),
        ("ParleyWritesStopped", "parley_rocksdb_write_stopped"),
        ("ParleyBatchesWait", "parley_mempool_oldest_seconds"),
        ("ParleyAuthorityEndsSoon", "parley_authority_expiry_seconds"),
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


def test_the_sample_gives_targets_no_label_of_a_broker() -> None:
    """Prometheus would rename the broker's own, and no rule would find it."""
    (job,) = parsed((OPS / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    given = {label for group in job["static_configs"] for label in group.get("labels", ())}
    assert given.isdisjoint(label for entry in CATALOGUE for label in entry.labels)


def test_rates_are_of_counters_and_slopes_of_gauges() -> None:
    found: set[str] = set()
    for where, expression in expressions():
        for function, name in re.findall(r"\b([a-z_]+)\((parley_\w+)(?:\{[^}]*\})?\[", expression):
            found.add(function)
            kind = KINDS.get(name, "histogram")
            wanted = {"counter", "histogram"} if function in {"rate", "increase"} else {"gauge"}
            assert kind in wanted, f"{where}: {function} of {name}, which is a {kind}"
    assert {"rate", "increase", "deriv", "predict_linear"} <= found


def accepted(what: str, path: Path) -> None:
    command = ["promtool", "check", what, str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_prometheus_itself_accepts_them() -> None:
    accepted("rules", OPS / "prometheus" / "alerts.yml")
    accepted("config", OPS / "prometheus" / "prometheus.yml")


@needs_promtool
def test_prometheus_itself_accepts_what_the_dashboard_asks(tmp_path: Path) -> None:
    rules = []
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "5m")
            rules.append({"record": f"panel:{panel['id']}_{target['refId']}", "expr": expression})
    assert len(rules) > 50
    path = tmp_path / "panels.json"  # JSON is YAML, too
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    accepted("rules", path)


def test_the_dashboard_can_be_imported_anywhere() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 36
    assert (board["id"], board["title"]) == (None, "Parley")
    variables = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
    assert variables == {
        "datasource": "datasource",
        "network": "query",
        "organisation": "query",
        "broker": "query",
        "instance": "query",
    }
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["targets"]
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_what_is_chosen_above_the_dashboard_is_what_its_panels_show() -> None:
    """The verdict is on the whole network, the rest on the brokers that were chosen, which it names."""
    chosen = {one["name"]: one.get("definition", "") for one in dashboard()["templating"]["list"]}
    assert chosen["instance"] == (
        'label_values(parley_info{network=~"$network",organisation=~"$organisation",broker=~"$broker"}, instance)'
    )
    row = ""
    for panel in dashboard()["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        for target in panel.get("targets", ()):
            selector = 'network=~"$network"' if row == "Verdict" else 'instance=~"$instance"'
            assert selector in target["expr"], panel["title"]
            assert "{{instance}}" not in target["legendFormat"], panel["title"]


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
