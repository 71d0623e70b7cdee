"""One Spark session for all tests of a run, and one network that they read from and write to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parley.spark.session import spark_session
from tests.node.network import LocalNetwork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "tests", "local[2,4]", warehouse=tmp_path_factory.mktemp("warehouse")
    )  # four attempts for a task, as a cluster has
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory: Path = tmp_path_factory.mktemp("network")
    with LocalNetwork(directory, clients=("alice", "bob"), allow_faults=True) as started:
        started.start()
        yield started
