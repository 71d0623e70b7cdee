"""Running the jobs of `jobs.py` against the network of the tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.node.network import SECONDS, LocalNetwork
from tests.spark.jobs import Job
from tests.spark.sinks import client, create_topic

from parley.node.provision import identity_path

JOBS = Path(__file__).with_name("jobs.py")
JOB_SECONDS = 240.0


def published(network: LocalNetwork, topic: str, texts: Sequence[str], folder: Path) -> Job:
    """A topic that holds these, one more to write to, and the job that reads and writes them as alice."""
    create_topic(network, topic)
    create_topic(network, f"{topic}-sink")

    async def story() -> None:
        async with asyncio.timeout(SECONDS), client(network, "alice") as alice:
            for text in texts:
                await alice.publish(topic, text)

    asyncio.run(story())
    options = {
        "genesis": str(network.directory / "genesis.json"),
        "identity": str(identity_path(network.directory, "alpha", "alice")),
        "subscribe": topic,
    }
    return Job(options, f"{topic}-sink", str(folder / "job"))


def run_job(name: str, job: Job) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(JOBS), name, msgspec.json.encode(job).decode()]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))
    }
    return subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=JOB_SECONDS
    )
