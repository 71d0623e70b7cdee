"""A real network to be put under faults: brokers as processes, and a proxy on every link between them and from every client."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from parley.chaos.gauges import Peaks, peak_memory, scrape
from parley.chaos.identities import administrator, new_identity
from parley.localnet.proxy import Proxy
from parley.model.credentials import Identity
from parley.model.genesis import Genesis, Timeouts
from parley.node.admin.client import AdminError, NotListening, reload
from parley.node.processes import free_addresses, local_brokers, stop
from parley.node.provision import provision_network

ORGANISATIONS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")
# Short, so that every fault lasts longer than it takes to notice it. A lease outlives the longest run.
TIMEOUTS = Timeouts(
    view=700, longest_view=3_000, heartbeat=250, ack=1_500, freshness=4_000, lease=24 * 3_600_000
)
POLL_SECONDS = 0.05


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds in time. What processes and clients do is not told to us, so this looks again and again."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


class Network:
    """Provisioned when it is made. Brokers run from `start` to `stop`, which has to be called in every case."""

    def __init__(self, directory: Path, brokers: int, *, proxies: bool = True) -> None:
        self.directory = directory
        self._has_proxies = proxies  # without, links cannot be cut and take less time
        addresses = free_addresses(2 * brokers, directory)
        self.genesis: Genesis = provision_network(
            directory,
            organisations=ORGANISATIONS[:brokers],
            network="chaos",
            start_time=time.time_ns() // 1_000_000,
            timeouts=TIMEOUTS,
            clients=(),
            addresses=addresses[:brokers],
            allow_faults=True,
        )
        self.brokers = {broker.name: broker for broker in local_brokers(directory, self.genesis)}
        self.names = list(self.brokers)
        self.metrics = dict(zip(self.names, addresses[brokers:], strict=True))  # where each tells them
        self.links: dict[tuple[str, str], Proxy] = {}  # from one broker to another
        self.doors: dict[tuple[str, str], Proxy] = {}  # from a client to a broker
        self._proxies = AsyncExitStack()
        self._plain = {name: broker.config.read_text() for name, broker in self.brokers.items()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._faults: dict[str, tuple[str, ...]] = {}
        self._room: dict[str, int] = {}
        self._paused: set[str] = set()
        self._untold: set[str] = set()  # paused brokers whose files have changed
        self._telling: list[asyncio.Task[None]] = []

    # -- links -------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """A proxy for each direction between two brokers, named in the configuration of the one that dials."""
        for source in self.names:
            for target in self.names:
                if self._has_proxies and source != target:
                    self.links[source, target] = await self._proxy(target)
        for name in self.names:
            self._configure(name)

    async def door(self, client: str) -> Mapping[str, str]:
        """Addresses of all brokers for one client alone."""
        if not self._has_proxies:
            return {name: broker.address for name, broker in self.brokers.items()}
        for name in self.names:
            if (client, name) not in self.doors:
                self.doors[client, name] = await self._proxy(name)
        return {name: self.doors[client, name].address for name in self.names}

    async def _proxy(self, target: str) -> Proxy:
        return await self._proxies.enter_async_context(Proxy(self.brokers[target].address))

    def heal_links(self) -> None:
        for proxy in (*self.links.values(), *self.doors.values()):
            proxy.heal()

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names or self.names:
            if not self.is_running(name):
                self._processes[name] = self.brokers[name].start()

    def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def kill(self, name: str) -> None:
        """As when the power fails."""
        if (process := self._processes.pop(name, None)) is not None:
            process.kill()
            process.wait()
        self._paused.discard(name)

    def pause(self, name: str) -> None:
        if self.is_running(name):
            self._processes[name].send_signal(signal.SIGSTOP)
            self._paused.add(name)

    def resume(self, name: str) -> None:
        if name in self._paused and self.is_running(name):
            self._processes[name].send_signal(signal.SIGCONT)
            if name in self._untold:
                self._telling.append(asyncio.create_task(self._tell(name)))
        self._paused.discard(name)
        self._untold.discard(name)

    def ended(self, expected: Container[str]) -> list[tuple[str, int]]:
        """The other brokers whose process has ended by itself since the last look, with their exit codes."""
        over = [
            (name, code)
            for name, process in self._processes.items()
            if name not in expected and (code := process.poll()) is not None
        ]
        for name, _ in over:
            del self._processes[name]
        return over

    async def until_ended(self, name: str, seconds: float) -> bool:
        """Whether a broker's process ends by itself in this time; it is forgotten then."""
        process = self._processes.get(name)
        ended = await until(lambda: process is None or process.poll() is not None, seconds)
        return ended and self._processes.pop(name, None) is not None

    async def stop(self) -> None:
        """End all processes, in order if they can, and close all proxies."""
        for name in list(self._paused):
            self.resume(name)
        try:
            await asyncio.gather(*self._telling)
            await asyncio.to_thread(stop, list(self.brokers.values()))
        finally:
            self.kill_all()
            await self._proxies.aclose()

    def kill_all(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    async def measure(self, peaks: Peaks) -> None:
        """Note memory and metrics of each running broker."""
        running = [name for name in self.names if self.is_running(name) and name not in self._paused]
        told = await asyncio.gather(*(scrape(self.metrics[name]) for name in running))
        for name, samples in zip(running, told, strict=True):
            process = self._processes.get(name)
            peaks.note(name, None if process is None else peak_memory(process.pid), samples)

    # -- configuration -----------------------------------------------------------------------------------------------

    async def lie(self, name: str, faults: Sequence[str]) -> None:
        """Let a broker show these faults, and no others, from now on."""
        if self._faults.get(name, ()) == tuple(faults):
            return
        self._faults[name] = tuple(faults)
        self._configure(name)
        if name in self._paused:
            self._untold.add(name)
        elif self.is_running(name):
            await self._tell(name)

    async def _tell(self, name: str) -> None:
        """Have a broker read its file again. A broker that does not listen yet reads it at its start."""
        process = self._processes.get(name)
        try:
            await asyncio.to_thread(reload, self.brokers[name].folder)
        except NotListening:
            return
        except AdminError:
            if self._processes.get(name) is process and self.is_running(name):
                raise

    def limit(self, name: str, max_bytes: int | None) -> None:
        """What a broker's store may take, from its next start on; None: as much as it likes."""
        if max_bytes is None:
            self._room.pop(name, None)
        else:
            self._room[name] = max_bytes
        self._configure(name)

    def size(self, name: str) -> int:
        """Bytes of a broker's store."""
        return sum(path.stat().st_size for path in self.brokers[name].folder.glob("data/*") if path.is_file())

    def _configure(self, name: str) -> None:
        faults = self._faults.get(name, ())
        lines = [f"faults = {json.dumps(faults)}\n"] if faults else []
        lines += [self._plain[name], "\n[peers]\n"]
        lines += [
            f"{target} = {json.dumps(proxy.address)}\n"
            for (source, target), proxy in self.links.items()
            if source == name
        ]
        lines.append(f"\n[metrics]\nlisten = {json.dumps(self.metrics[name])}\n")
        if name in self._room:
            lines.append(f"\n[storage]\nmax_bytes = {self._room[name]}\n")
        path = self.brokers[name].config
        temporary = path.with_suffix(".new")
        temporary.write_text("".join(lines))
        temporary.replace(path)

    # -- clients -----------------------------------------------------------------------------------------------------

    def identity(self, organisation: str, name: str) -> Identity:
        """A new key, admitted by the organisation's anchor."""
        return new_identity(self.directory, self.genesis, organisation, name)

    def administrator(self, organisation: str) -> Identity:
        return administrator(self.directory, organisation)
