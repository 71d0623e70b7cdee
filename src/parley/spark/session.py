"""A Spark session as Parley's own jobs use it: this Python for the workers, addresses that nobody else can reach, little noise."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from parley.spark.errors import BadOption
from parley.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[2]"
CONNECT = "sc://"  # a server of Spark Connect, to which a client needs no Java
MASTERS = ("local", "local[", "local-cluster[", "spark://", "yarn", "k8s://", CONNECT)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOGGING = Path(__file__).with_name("log4j2.properties")

# What may be changed while Spark runs, so a Connect server takes it, too.
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    "spark.sql.shuffle.partitions": "4",
}


def settings(master: str = LOCAL) -> dict[str, str]:
    """What every session gets. Workers on other machines must find the same Python under the same path."""
    chosen = ALWAYS | {
        "spark.master": master,
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        # A worker that waits for a broker has deadlines of its own; one that still stands still is to be noticed.
        "spark.python.worker.faulthandler.enabled": "true",
    }
    if is_here(master):
        chosen |= {"spark.driver.host": LOOPBACK[0], "spark.driver.bindAddress": LOOPBACK[0]}
    return chosen


def is_here(master: str) -> bool:
    """Whether all of this Spark runs on this machine, so that nothing of it needs to be reached from another."""
    return master.startswith("local") or any(f"//{address}:" in master for address in LOOPBACK)


def prepare(master: str = LOCAL) -> None:
    """Set in the environment what Spark reads before any setting: also for commands such as `spark-pipelines`."""
    if not (master.startswith(MASTERS[1:]) or master in MASTERS):
        raise BadOption(
            f"{master!r} is not where a Spark runs: local[2], local-cluster[2,1,1024], spark://HOST:PORT, or "
            f"{CONNECT}HOST:PORT for Spark Connect."
        )
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise BadOption('Spark is not installed here; run: pip install "parley[spark]"')
    # The first python3 on the path would otherwise run the workers.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith(CONNECT):
        return
    os.environ["JAVA_HOME"] = str(require_java())
    if is_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK[0])
    if master.startswith("local-cluster"):  # its executors are started from there
        os.environ.setdefault("SPARK_HOME", str(Path(found.origin).parent))


def spark_session(
    name: str, master: str = LOCAL, *, warehouse: Path | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A new session, or the one that this process has already. `warehouse` holds tables that are made by name."""
    prepare(master)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a second, which most commands do not need

    builder = SparkSession.builder.appName(name)
    if master.startswith(CONNECT):
        builder, chosen = builder.remote(master), dict(ALWAYS)
    else:
        chosen = settings(master)
    chosen |= more or {}
    if warehouse is not None:
        chosen["spark.sql.warehouse.dir"] = str(warehouse)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
