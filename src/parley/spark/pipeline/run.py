"""Starts one run of the declarative pipeline and follows it to its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parley.spark.pipeline.folder import Folder
from parley.spark.pipeline.report import Run, read_run
from parley.spark.pipeline.tenants import TENANTS
from parley.spark.session import LOCAL, prepare

GRAPH = Path(__file__).with_name("graph")
FLOWS = 4 * len(TENANTS) + 2  # tables that a run works out
STOP_SECONDS = 20.0
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"  # which every Java reads
# For a run of half a minute, on tables that nobody will miss: code is compiled once and quickly, the catalog is not flushed.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.durability=test"
MAX_REASON = 600  # characters

# What `spark-pipelines` prints of each table, and what Spark and our source print of what went wrong.
COMPLETED = re.compile(r"Flow (?:\S+\.)?(\w+) has COMPLETED")
OURS = re.compile(r"\[(PARLEY_\w+)\] ([^\n]+)")
SPARKS = re.compile(r"\[[A-Z][A-Z0-9_.]{4,}\] [^\n]+")


class PipelineFailed(Exception):  # noqa: N818 - a condition, not a fault of ours
    """Spark gave up. `condition` is that of our own error, if it was one."""

    def __init__(self, condition: str, reason: str, log: Path) -> None:
        super().__init__(f"the pipeline failed: {reason[:MAX_REASON].rstrip('.')}; the log is {log}")
        self.condition = condition


@dataclass(frozen=True, slots=True)
class Feed:
    """Where the pipeline reads: the option `directory` or `context`. As whom: a path by topic. The same on every node."""

    network: Mapping[str, str]
    identities: Mapping[str, Path]


def run_pipeline(
    folder: Folder,
    feed: Feed,
    master: str = LOCAL,
    *,
    java: str = "",
    completed: Callable[[str], None] = lambda _: None,
) -> Run:
    """Bring all tables up to date; `completed` hears of each as it is. Only what is new is read from the network.

    `java` are options of the virtual machines, such as `BRIEF`.
    """
    prepare(master)
    _write_graph(folder, feed)
    command = [sys.executable, "-m", "parley.spark.pipeline.worker", str(folder.path.absolute()), master]
    with os.fdopen(
        os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", buffering=1
    ) as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.PIPE,  # when it closes, we are gone, however that came about
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder.path,
            env={**os.environ, JAVA_OPTIONS: f"{os.environ.get(JAVA_OPTIONS, '')} {java}"},
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if found := COMPLETED.search(line):
                    completed(found[1])
            code = process.wait()
        finally:
            _end(process)
    run = read_run(folder)
    if code != 0 or run is None:
        raise _failure(folder.log)
    return run


def _write_graph(folder: Folder, feed: Feed) -> None:
    """The pipeline as it runs lies beside its tables, for whoever wants to know how they came to be."""
    if folder.graph.exists():
        shutil.rmtree(folder.graph)
    shutil.copytree(GRAPH, folder.graph, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))
    configuration = {
        **{f"spark.parley.{option}": value for option, value in feed.network.items()},
        **{f"spark.parley.{topic}.identity": str(path.absolute()) for topic, path in feed.identities.items()},
    }
    with (folder.graph / "spark-pipeline.yml").open("a") as spec:  # a string of JSON is one of YAML, too
        spec.write(f"storage: {json.dumps(folder.checkpoints.absolute().as_uri())}\nconfiguration:\n")
        spec.writelines(f"  {key}: {json.dumps(value)}\n" for key, value in configuration.items())


def _end(process: subprocess.Popen[str]) -> None:
    """Python, the server and its workers are one group; none of them may outlive the run."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _failure(log: Path) -> PipelineFailed:
    """Our own condition if there is one; else the first that Spark names, else the last words."""
    text = log.read_text(errors="replace")
    if found := OURS.search(text):
        return PipelineFailed(found[1], found[0], log)
    if found := SPARKS.search(text):
        return PipelineFailed("", found[0], log)
    return PipelineFailed("", (text.strip().splitlines() or ["Spark said nothing"])[-1], log)
