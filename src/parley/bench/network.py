"""A network to be measured: brokers as processes with TLS between them on the loopback interface, and clients of theirs."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from parley.bench.errors import Unavailable
from parley.bench.usage import Usage, usage
from parley.bench.watch import Watch
from parley.client import Client, connect
from parley.client.errors import ParleyError
from parley.model.credentials import Identity
from parley.model.genesis import Genesis, Limits
from parley.modules.topics.operations import Policy
from parley.node.config import load
from parley.node.processes import free_addresses, local_brokers, stop
from parley.node.provision import create_identity, identity_path, provision_network

# Which policy a topic gets; more come with the kinds of payload that brokers learn.
PRESETS = {"bps": Policy(), "chios-p": Policy()}

START_SECONDS = 30.0  # for brokers to be ready, and
SECONDS_PER_BROKER = 5.0  # more for each
POLL_SECONDS = 0.1
CREDENTIAL_MS = 7 * 86_400_000
AT_ONCE = 64  # operations under way while clients are registered
# All load comes from one address, which is counted as one stranger otherwise.
ROOM: Mapping[str, Any] = {
    "limits": {
        "connections_per_address": 2_000,
        "requests_per_second": 1_000_000,
        "bytes_per_second": 4 * 1024 * 1024 * 1024,
    }
}

Settings = Mapping[str, Any]  # of broker.toml: keys, and tables of keys


class Network:
    """Provisioned when it is made; brokers run within `running`. What it leaves on the disk goes with `remove`."""

    def __init__(self, directory: Path, brokers: int, settings: Settings | None = None) -> None:
        self.directory = directory
        self.organisations = [f"org-{number}" for number in range(1, brokers + 1)]
        addresses = free_addresses(brokers, directory)
        if len(addresses) < brokers:
            raise Unavailable(f"There are not {brokers} free ports for brokers on this machine.")
        self.genesis: Genesis = provision_network(
            directory,
            organisations=self.organisations,
            network="bench",
            start_time=time.time_ns() // 1_000_000,
            clients=(),
            addresses=addresses,
            limits=Limits(subscriptions_per_client=10_000),
        )
        self.brokers = local_brokers(directory, self.genesis)
        for broker in self.brokers:
            configure(broker.config, ROOM, settings or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Brokers that are ready; they are asked to stop at the end, and killed if something went wrong."""
        try:
            for broker in self.brokers:
                self._processes[broker.name] = broker.start()
            await self._ready()
            yield self
            await asyncio.to_thread(stop, self.brokers)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            self._processes.clear()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- what is measured --------------------------------------------------------------------------------------------

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def usage(self) -> dict[str, Usage]:
        """Of each broker since it began. A broker that has ended makes a measurement worthless."""
        self.require_running()
        return {name: usage(pid) for name, pid in self.pids.items()}

    def require_running(self) -> None:
        for broker in self.brokers:
            process = self._processes.get(broker.name)
            if process is not None and process.poll() is not None:
                raise Unavailable(
                    f"{broker.name} ended by itself with code {process.returncode}:\n{broker.tail()}"
                )

    # -- clients -----------------------------------------------------------------------------------------------------

    def administrator(self, organisation: int = 0) -> Client:
        path = identity_path(self.directory, self.organisations[organisation], "admin")
        return connect(genesis=self.genesis, identity=path)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Watch]:
        """Connections through which brokers are asked how they are."""
        path = identity_path(self.directory, self.organisations[0], "admin")
        clients = {
            broker.name: connect(genesis=self.genesis, identity=path, brokers=[broker.name])
            for broker in self.brokers
        }
        try:
            yield Watch(clients)
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))

    async def register(self, name: str, count: int) -> list[Path]:
        """So many new clients, each at another organisation than the one before; the files of their identities."""
        parties = [self.organisations[number % len(self.organisations)] for number in range(count)]
        not_after = time.time_ns() // 1_000_000 + CREDENTIAL_MS
        made = [
            create_identity(self.directory, party, f"{name}-{number}", not_after=not_after)
            for number, party in enumerate(parties)
        ]
        for place, party in enumerate(dict.fromkeys(parties)):
            async with self.administrator(place) as admin:
                await _all_registered(admin, [one for one in made if one.credential.organisation == party])
        return [
            identity_path(self.directory, party, f"{name}-{number}") for number, party in enumerate(parties)
        ]

    async def create_topics(self, names: Sequence[str], preset: str = "bps") -> None:
        async with self.administrator() as admin:
            for start in range(0, len(names), AT_ONCE):
                wanted = names[start : start + AT_ONCE]
                await asyncio.gather(*(admin.create_topic(name, policy=PRESETS[preset]) for name in wanted))

    async def _ready(self) -> None:
        """Until every broker says that it is ready."""
        limit = START_SECONDS + SECONDS_PER_BROKER * len(self.brokers)
        client = self.administrator()
        try:
            async with asyncio.timeout(limit):
                while not await _all_ready(client):
                    self.require_running()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            tails = "\n".join(f"{broker.name} said last:\n{broker.tail()}" for broker in self.brokers)
            raise Unavailable(f"The brokers are not ready after {limit:.0f} s.\n{tails}") from None
        finally:
            await client.close()


async def _all_ready(client: Client) -> bool:
    try:
        found = await client.status()
    except ParleyError:
        return False
    return all(one.status is not None and one.status.state == "ready" for one in found)


async def _all_registered(admin: Client, identities: list[Identity]) -> None:
    for start in range(0, len(identities), AT_ONCE):
        await asyncio.gather(
            *(
                admin.register_client(one.credential.name, one.credential.key, proof=one.proof())
                for one in identities[start : start + AT_ONCE]
            )
        )


def configure(path: Path, *additions: Settings) -> None:
    """Add settings to a broker's configuration; later ones win."""
    found: dict[str, Any] = tomllib.loads(path.read_text())
    for addition in additions:
        for key, value in addition.items():
            before = found.get(key)
            joined = isinstance(before, dict) and isinstance(value, Mapping)
            found[key] = before | value if joined else value
    tables = {key: value for key, value in found.items() if isinstance(value, dict)}
    lines = [_line(key, value) for key, value in found.items() if key not in tables]
    for name, table in tables.items():
        lines += [f"\n[{name}]\n", *(_line(key, value) for key, value in table.items())]
    path.write_text("".join(lines))
    load(path)  # what a broker would not take is said before one is started


def _line(key: str, value: object) -> str:
    return (
        f"{key} = {json.dumps(value)}\n"  # what is a number, a word or a list of them in TOML is so in JSON
    )
