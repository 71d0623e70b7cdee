"""The page about performance tells what was kept: every file of results, with its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = (ROOT / "docs" / "performance.md").read_text()
TOLD = {
    "failover.json": {
        "kill leader": "1.04 s",
        "kill other": "1.35 s",
        "stop leader": "1.54 s",
        "stop other": "1.36 s",
        "proxies: cut leader": "0.79 s",
        "proxies: cut other": "0.92 s",
    },
    "idle.json": {"median to the certified receipt": "34.8 ms", "99th percentile": "88.9 ms"},
    "latency.json": {"median to the certified receipt": "38.1 ms", "99th percentile": "82.3 ms"},
    "memory.json": {"org-1-1": "125 MB", "org-4-1": "127 MB"},
    "peers-nats.json": {"nats-sync 128 B": "45 183/s"},
    "pub-batches-of-100x1024.json": {"publications_per_s": "21 444/s", "cpu_us_per_publication": "84.8 µs"},
    "pub-batches-of-100x128.json": {"publications_per_s": "49 952/s", "cpu_us_per_publication": "36.8 µs"},
    "pub-single-128.json": {"publications_per_s": "1 586/s", "cpu_us_per_publication": "1 152 µs"},
    "pub-solo.json": {"publications_per_s": "13 138/s", "cpu_us_per_publication": "64 µs"},
    "spark.json": {
        "certified 128 B": "242 550/s",
        "certified 1024 B": "91 393/s",
        "sink 128 B": "29 536/s",
        "audit on 2 cores": "213 352/s",
    },
    "sub.json": {"deliveries": "223 185/s", "CPU per delivery": "11 µs"},
}


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("*.json")))
def test_every_result_that_was_kept_is_told(name: str) -> None:
    result = json.loads((RESULTS / name).read_text())
    cases = {
        one["case"]: one.get("value", one.get("rows_per_s")) for one in reversed(result.get("results", []))
    }
    values = {**cases, **result}
    for case, words in TOLD[name].items():
        assert words in PAGE
        number = re.sub("[^0-9.]", "", words)
        assert float(number) == pytest.approx(values[case], rel=0.01)  # it is rounded


@pytest.mark.parametrize("path", sorted((RESULTS / "growth").glob("*.json")), ids=lambda path: path.stem)
def test_every_point_of_growth_is_told(path: Path) -> None:
    for point in json.loads(path.read_text())["points"]:
        cost = point["cpu_us_per_publication"]
        shown = f"{cost:.1f}" if cost < 100 else f"{cost:,.0f}"
        assert f"| {point['x']:,} | {shown} |" in PAGE
