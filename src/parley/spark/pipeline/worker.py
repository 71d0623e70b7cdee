"""The process in which a run of the pipeline happens: `python -m parley.spark.pipeline.worker`, started by `run`.

It is a Spark Connect server on an address that nobody else can reach, `spark-pipelines` as its client, and then the one
who reads the tables. Spark's own command would listen on a fixed port, on all addresses, and take no cluster.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from parley.spark.pipeline.folder import Folder
from parley.spark.pipeline.report import write_run
from parley.spark.session import settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = "127.0.0.1"
NAME = "localhost"  # the only name to which a client gives its token without TLS
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of the variable


def main() -> int:
    begin = time.monotonic()
    threading.Thread(target=_watch_parent, daemon=True).start()
    folder, master = Folder(Path(sys.argv[1])), sys.argv[2]
    os.environ[TOKEN] = secrets.token_hex(
        16
    )  # of this run: no other user of the machine may speak to the server
    spark = _server(folder, master)
    try:
        code = _pipelines(spark, folder)
        if code == 0:
            write_run(spark, folder, master, begin)
        return code
    finally:
        spark.stop()


def _watch_parent() -> None:
    """Whoever started this holds the other end. If it is killed, nothing of the run may go on by itself."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _server(folder: Folder, master: str) -> SparkSession:
    java = settings(master)["spark.driver.extraJavaOptions"]
    folder.catalog.mkdir(exist_ok=True)
    # Options of Java stand in one text: a space in the name of a folder would begin another option.
    home = str(folder.catalog).replace("\\", "\\\\").replace('"', '\\"')
    more = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",
        # What other programs read as a moment, too; Spark's older way has no time zone.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # The catalog in memory would forget the tables, and a second run would find their folders in its way.
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.exec.scratchdir": str(folder.catalog / "scratch"),
        "spark.driver.extraJavaOptions": f'{java} -Dderby.system.home="{home}"',
    }
    return spark_session("parley-pipeline", master, warehouse=folder.tables, more=more)


def _pipelines(spark: SparkSession, folder: Folder) -> int:
    """The command `spark-pipelines`, without the shell script and the virtual machine around it."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")  # noqa: SLF001
    port = service.__getattr__("MODULE$").localPort()
    command = [
        sys.executable,
        "-m",
        "pyspark.pipelines.cli",
        "run",
        "--spec",
        str(folder.graph / "spark-pipeline.yml"),
    ]
    environment = {**os.environ, "SPARK_REMOTE": f"sc://{NAME}:{port}"}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode  # noqa: S603 - our own interpreter


if __name__ == "__main__":
    sys.exit(main())
