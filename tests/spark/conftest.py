"""One Spark session for all tests of a run, and one network that they read from and write to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.node.network import LocalNetwork

from parley.spark.java import INSTALL, find_java
from parley.spark.pipeline.run import BRIEF, JAVA_OPTIONS
from parley.spark.session import STATE_STORE, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def java() -> Iterator[Path]:
    """For tests that start a Spark, in this process or in another; none of them lives long enough to be compiled well."""
    found = find_java() or pytest.skip(f"Spark needs Java: {INSTALL}")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(JAVA_OPTIONS, BRIEF)
        yield found


@pytest.fixture(scope="session")
def spark(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "tests", "local[2,4]", warehouse=tmp_path_factory.mktemp("warehouse")
    )  # four attempts for a task, as a cluster has
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def few(spark: SparkSession) -> SparkSession:
    """The same Spark; but state is kept in one part, because every part takes time for every micro-batch."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    return session


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory: Path = tmp_path_factory.mktemp("network")
    with LocalNetwork(directory, clients=("alice", "bob"), allow_faults=True, auditors=("alpha",)) as started:
        started.start()
        yield started
