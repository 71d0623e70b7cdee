"""A network whose topics may have toy payloads, and how clients come to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.node.network import SECONDS, LocalNetwork

import parley
from parley.applications import VARIABLE as APPLICATION_VARIABLE
from parley.client.topics import VARIABLE as CODECS_VARIABLE
from parley.modules.topics.operations import Policy
from parley.node.provision import identity_path
from parley.privacy.table import Codecs

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    APPLICATION_VARIABLE: "tests.privacy.toy:APPLICATION",
    CODECS_VARIABLE: "tests.privacy.toy:CODECS",
    "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
}
TOY = Policy(payload="toy")


@contextmanager
def toy_network(directory: Path) -> Iterator[LocalNetwork]:
    """Started, with alice registered."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with LocalNetwork(directory, allow_faults=True, by_command=True) as network:
            network.start()
            asyncio.run(_registered(network))
            yield network


def connected(network: LocalNetwork, name: str, codecs: Codecs | None = None) -> parley.Client:
    """With the codecs that the environment names, unless others are given."""
    path = identity_path(network.directory, "alpha", name)
    return parley.connect(directory=network.directory, identity=path, timeout=SECONDS, codecs=codecs)


async def _registered(network: LocalNetwork) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                async with connected(network, "admin") as admin:
                    alice = network.identity("alpha", "alice")
                    await admin.register_client("alice", alice.credential.key, proof=alice.proof())
                    return
            except parley.Unreachable:
                assert all(map(network.is_running, network.names)), "a broker did not start"
                await asyncio.sleep(0.1)
