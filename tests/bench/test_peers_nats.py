"""A real comparison with NATS where it is installed, and a word on how to get it where it is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parley.bench.peers.compare import Plan, compare
from parley.bench.peers.nats import Nats


@pytest.mark.long
def test_a_tiny_comparison_with_nats_has_all_its_figures_or_says_how_to_get_it(tmp_path: Path) -> None:
    plan = Plan(("nats",), (128,), messages=400, runs=1)
    result = asyncio.run(compare(tmp_path, plan, lambda _: None))
    if not all(need.is_there() for need in Nats.needs):
        assert [one.name for one in result.skipped] == ["nats"]
        assert "pip install" in result.skipped[0].reason
        assert not result.results
        return
    variants = {"nats", "nats-batch", "nats-sync", "nats-sync-batch"} - {one.name for one in result.skipped}
    assert {"nats", "nats-sync"} <= variants, result.skipped  # servers before 2.12 know no batches
    assert {one.case for one in result.results} == {f"{name} 128 B" for name in variants}
    assert all(one.value > 0 and one.baseline > 0 for one in result.results)
    assert result.versions["nats"].startswith("nats-server 2")
    assert not list(tmp_path.glob("round-*")), "the folders of all systems are removed"
