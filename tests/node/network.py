"""A real network on the loopback interface: four organisations with a broker each, every broker a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec
from tests.node.forked import Forked, run_broker

from parley.applications import application_of
from parley.ledger.proofs import Trust
from parley.model.credentials import Identity
from parley.model.genesis import Broker, Genesis, Limits, Organisation, Timeouts
from parley.node.processes import free_addresses
from parley.node.provision import broker_directory, identity_path, provision_network

ORGANISATIONS = ("alpha", "beta", "gamma", "delta")
# Freshness is long because the machine that tests run on may stand still for a while.
TIMEOUTS = Timeouts(view=1_000, longest_view=4_000, heartbeat=200, ack=3_000, freshness=20_000)
LONG = bool(os.environ.get("PARLEY_LONG"))
SECONDS = 60.0  # longer than anything takes: running out of it is a failure


class LocalNetwork:
    """Provisioned when it is made; brokers run from `start` to `stop`. Use it as a context, so that none is left over."""

    def __init__(
        self,
        directory: Path,
        *,
        organisations: Sequence[str] = ORGANISATIONS,
        clients: Sequence[str] = ("alice",),
        timeouts: Timeouts = TIMEOUTS,
        limits: Limits | None = None,
        settings: str = "",
        allow_faults: bool = False,
        leaders: Literal["round-robin", "cwa", "cwa+"] = "cwa+",
        auditors: Sequence[str] = (),
        shards: Sequence[Sequence[str]] | None = None,
        by_command: bool = LONG,
    ) -> None:
        self.directory = directory
        # Ports that the system gives nobody: a broker that was killed finds its own again.
        self.addresses = free_addresses(len(organisations), directory)
        self.genesis: Genesis = provision_network(
            directory,
            organisations=organisations,
            network="test",
            start_time=int(time.time() * 1_000),
            timeouts=timeouts,
            clients=clients,
            addresses=self.addresses,
            limits=limits or Limits(),
            allow_faults=allow_faults,
            leaders=leaders,
            auditors=auditors,
            shards=shards,
        )
        for broker in self.genesis.brokers:
            if settings:
                path = self.config(broker.name)
                path.write_text(f"{path.read_text()}\n{settings}")
        self.trust = Trust(self.genesis, application_of(self.genesis).decode_leaf)
        self._by_command = by_command  # or as forks, which is faster
        self._processes: dict[str, subprocess.Popen[bytes] | Forked] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def names(self) -> list[str]:
        return [broker.name for broker in self.genesis.brokers]

    def config(self, broker: str) -> Path:
        return broker_directory(self.directory, broker) / "broker.toml"

    def log(self, broker: str) -> list[dict[str, object]]:
        """The events that a broker has logged."""
        lines = (broker_directory(self.directory, broker) / "log.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line) for line in lines]

    def identity(self, organisation: str, name: str) -> Identity:
        path = identity_path(self.directory, organisation, name)
        return msgspec.json.decode(path.read_bytes(), type=Identity)

    def broker(self, name: str) -> tuple[Broker, Organisation]:
        broker = next(one for one in self.genesis.brokers if one.name == name)
        organisation = self.genesis.organisation(broker.organisation)
        assert organisation is not None
        return broker, organisation

    # -- processes ---------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start these brokers, or all; they are reachable a little later, see `raw_client.reach`."""
        for name in names or self.names:
            assert name not in self._processes, f"{name} runs"
            config = str(self.config(name))
            if self._by_command:
                command = [sys.executable, "-m", "parley.node", config]
                self._processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            else:
                self._processes[name] = Forked(run_broker, [config])

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def wait(self, name: str) -> int:
        """The exit code of a broker that ends by itself."""
        return self._processes.pop(name).wait(SECONDS)

    def stop(self, name: str) -> int:
        """Ask a broker to stop; its exit code."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(SECONDS)

    def kill(self, name: str) -> None:
        """As when the power fails."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(SECONDS)

    def stop_all(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def memory(self, name: str) -> int:
        """Bytes of memory that a broker has in use now."""
        pages = int(Path(f"/proc/{self.pid(name)}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
