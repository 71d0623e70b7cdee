"""A Spark session as Parley's own jobs use it: this Python for the workers, and addresses that nobody else can reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL", "settings", "spark_session"]

LOCAL = "local[2]"
LOOPBACK = "127.0.0.1"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def settings(master: str = LOCAL) -> dict[str, str]:
    """What every session gets. Workers on other machines must find the same Python under the same path."""
    chosen = {
        "spark.master": master,
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A worker that waits for a broker has deadlines of its own; one that still stands still is to be noticed.
        "spark.python.worker.faulthandler.enabled": "true",
    }
    if master.startswith("local") or LOOPBACK in master:
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return chosen


def spark_session(
    name: str, master: str = LOCAL, *, warehouse: Path | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A new session, or the one that this process has already. `warehouse` holds tables that are made by name."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a second, which most commands do not need

    # Spark reads these before any setting: the first python3 on the path would otherwise run the workers.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(name)
    chosen = settings(master) | dict(more or {})
    if warehouse is not None:
        chosen["spark.sql.warehouse.dir"] = str(warehouse)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
