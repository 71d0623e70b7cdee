"""The pipeline on a cluster: a master and two workers as processes of their own, on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from parley.cli import demo_pipeline
from parley.cli.pipeline import feed
from parley.client.contexts import read_genesis
from parley.spark.pipeline.folder import Folder
from parley.spark.pipeline.run import run_pipeline

HOST = "127.0.0.1"
SECONDS = 120.0
WORKERS = 2


@contextmanager
def cluster(java: Path, folder: Path) -> Iterator[str]:
    """`spark-class` is all that an installed Spark has for it. The address of the master, once both workers are there."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    url, log = f"spark://{HOST}:{port}", folder / "master.log"
    master = ["master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0"]
    worker = ["worker.Worker", "--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
    works = [[*worker, "--work-dir", str(folder / f"worker-{number}"), url] for number in range(WORKERS)]
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    environment = os.environ | {
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }
    with log.open("wb") as sink:
        processes = [
            subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *words],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
                start_new_session=True,
            )
            for name, *words in (master, *works)
        ]
    try:
        _await_workers(log)
        yield url
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_workers(log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while len(re.findall("Registering worker", log.read_text())) < WORKERS:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)  # a log has no way to call us


@pytest.mark.long
def test_the_pipeline_runs_on_a_cluster_with_two_workers(java: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    with cluster(java, tmp_path) as url, demo_pipeline.staged() as chosen:
        outcome = demo_pipeline.perform(chosen, folder, lambda _: None, url)
        assert outcome.holds
        assert outcome.run.master == url
        executors = [
            path for number in range(WORKERS) for path in (tmp_path / f"worker-{number}").glob("app-*/*")
        ]
        assert {path.parts[-3] for path in executors} == {f"worker-{number}" for number in range(WORKERS)}
        with folder.held(read_genesis(chosen.file.genesis).chain.hex()):
            again = run_pipeline(folder, feed(chosen), url)
        assert all(rows.new == 0 for rows in again.tables.values())
