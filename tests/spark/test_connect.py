"""Spark Connect finds the format by itself, for batches and for streams. The pipeline goes through Connect in every run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.node.network import LocalNetwork
from tests.spark.running import published, run_job


@pytest.mark.long
def test_a_connect_session_reads_and_streams_with_no_register_call(
    java: Path, network: LocalNetwork, tmp_path: Path
) -> None:
    job = published(network, "connect", ["one", "two", "three"], tmp_path)
    said = run_job("through_connect", job)
    assert said.stdout.splitlines() == [
        "pyspark.sql.connect.session ['one', 'three', 'two']",
        "nothing []",
        "streamed ['one', 'three', 'two']",
    ], said.stderr
