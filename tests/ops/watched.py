"""A network of four brokers as Prometheus sees it: the series of a healthy one, what a fault does to them, and promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.node.telemetry.catalogue import KINDS

BROKERS = ("alpha-1", "beta-1", "gamma-1", "delta-1")
STEP = 15  # seconds between two scrapes, and between two evaluations of the rules
FAULT = 40  # the scrape from which on a fault is seen: after ten minutes
SCRAPES = 600  # two hours and a half
DAY = 86_400

Series = dict[str, str]  # by name and labels, in the notation of promtool


def series(name: str, of: str, **labels: str) -> str:
    """A series that is scraped from a broker."""
    told = {"instance": f"{of}:9464", "job": "parley", **labels}
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in told.items())}}}"


def growing(by: float, start: float = 0, scrapes: int = SCRAPES) -> str:
    """By so much at each scrape."""
    return f"{start:f}{by:+f}x{scrapes}"


def steady(value: float) -> str:
    return growing(0, value)


def changing(before: float, after: float, by: float = 0) -> str:
    """To another value when the fault begins, and from then on by so much at each scrape."""
    return f"{growing(0, before, FAULT - 1)} {growing(by, after, SCRAPES - FAULT)}"


def ending(value: float) -> str:
    """Until the fault begins."""
    return f"{growing(0, value, FAULT - 1)} stale"


def beginning(value: float) -> str:
    """Since the fault has begun."""
    return f"_x{FAULT} {growing(0, value, SCRAPES - FAULT)}"


def healthy() -> Series:
    """All that the rules look at, of brokers that are well."""
    found: Series = {}
    for one in BROKERS:
        found |= _of_broker(one)
        for other in BROKERS:
            found |= _of_member(one, other)
            if other != one:
                found |= _of_peer(one, other)
    return found


def info(of: str, version: str = "1.0", network: str = "wards") -> str:
    organisation = of.partition("-")[0]
    return series(
        "parley_info", of, network=network, broker=of, organisation=organisation, chain="c0", version=version
    )


def _of_broker(one: str) -> Series:
    gauges = {
        "up": 1,
        "parley_ready": 1,
        "parley_loop_lag_seconds": 0.02,
        "parley_peers_connected": 3,
        "parley_storage_bytes": 2e9,
        "parley_storage_limit_bytes": 0,
        "parley_storage_free_bytes": 5e10,
        "parley_rocksdb_write_stopped": 0,
        "parley_damage_open": 0,
        "parley_certificate_expiry_seconds": 200 * DAY,
        "parley_authority_expiry_seconds": 3_000 * DAY,
        "parley_clock_offset_seconds": 0.01,
    }
    of_shard = {
        "parley_certified_age_seconds": 0.5,
        "parley_replica_lag_blocks": 1,
        "parley_quorum_size": 3,
        "parley_committee_size": 4,
        "parley_mempool_oldest_seconds": 0,
    }
    return {
        info(one): steady(1),
        **{series(name, one): steady(value) for name, value in gauges.items()},
        **{series(name, one, shard="0"): steady(value) for name, value in of_shard.items()},
        series("parley_view_changes_total", one, shard="0"): steady(2),
        series("parley_requests_refused_total", one, reason="Busy"): growing(15),
        series("parley_publish_latency_seconds_bucket", one, le="0.1"): growing(150),
        series("parley_publish_latency_seconds_bucket", one, le="10.0"): growing(150),
        series("parley_publish_latency_seconds_bucket", one, le="+Inf"): growing(150),
    }


def _of_member(one: str, other: str) -> Series:
    return {
        series("parley_recent_votes_ratio", one, shard="0", peer=other): steady(0.9),
        series("parley_failed_views_total", one, shard="0", peer=other): steady(1),
    }


def _of_peer(one: str, other: str) -> Series:
    refused = {"bad_signature": steady(0), "malformed": steady(0), "stale": growing(1)}
    return {
        series("parley_peer_up", one, peer=other): steady(1),
        series("parley_peer_slow", one, peer=other): steady(0),
        **{
            # What was caught long ago, before these hours, is no news.
            series("parley_byzantine_evidence_total", one, kind=kind, peer=other): steady(7)
            for kind in KINDS
        },
        **{
            series("parley_messages_refused_total", one, reason=reason, peer=other): values
            for reason, values in refused.items()
        },
    }


@dataclass(frozen=True)
class Expected:
    """An alert that fires: by which labels, and how the number in its words is written."""

    alert: str
    labels: Mapping[str, str]
    value: str = ""


@dataclass(frozen=True)
class Check:
    """What promtool is asked: which alerts of this name fire after so many scrapes."""

    alert: str
    scrape: int
    expected: tuple[Expected, ...] = ()


@dataclass
class Story:
    """Series, and what is expected of the rules meanwhile."""

    series: Series
    checks: list[Check] = field(default_factory=list)


def examined(rules: Path, known: Mapping[str, Mapping[str, Any]], folder: Path, story: Story) -> str:
    """What promtool finds wrong; empty if all is as expected. `known` are the rules by name."""
    asked = [
        {
            "eval_time": f"{check.scrape * STEP}s",
            "alertname": check.alert,
            "exp_alerts": [_expected(known[one.alert], one) for one in check.expected],
        }
        for check in story.checks
    ]
    told = [{"series": name, "values": values} for name, values in story.series.items()]
    # JSON is YAML, too.
    path = folder / "rules.test.json"
    path.write_text(
        json.dumps(
            {
                "rule_files": [str(rules)],
                "evaluation_interval": f"{STEP}s",
                "tests": [{"interval": f"{STEP}s", "input_series": told, "alert_rule_test": asked}],
            }
        )
    )
    run = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    return "" if run.returncode == 0 else run.stdout + run.stderr


def _expected(rule: Mapping[str, Any], one: Expected) -> dict[str, object]:
    """With its words as Prometheus fills them in."""

    def filled(words: str) -> str:
        words = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: one.labels[found[1]], words)
        return re.sub(r"\{\{ \$value[^}]*\}\}", one.value, words)

    return {
        "exp_labels": {**rule["labels"], **one.labels},
        "exp_annotations": {name: filled(words) for name, words in rule["annotations"].items()},
    }
