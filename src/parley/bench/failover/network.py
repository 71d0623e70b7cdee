"""A network whose brokers are killed, stopped and cut off, and come back."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from parley.bench.errors import Unavailable
from parley.bench.failover.gaps import Fault, Victim
from parley.bench.network import POLL_SECONDS, Network, Settings, configure
from parley.bench.watch import Statuses, Watch
from parley.localnet.proxy import Flow, Proxy

RETURN_SECONDS = 90.0  # for a broker to be ready, connected and caught up


class FailingNetwork(Network):
    """With `proxies` brokers dial each other through one for each direction of each link, so that links can be cut."""

    def __init__(self, directory: Path, brokers: int, settings: Settings, *, proxies: bool) -> None:
        super().__init__(directory, brokers, settings)
        self.names = [broker.name for broker in self.brokers]
        self._has_proxies = proxies
        self._links: dict[tuple[str, str], Proxy] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            for source in self.brokers if self._has_proxies else ():
                peers = {}
                for target in self.brokers:
                    if target is not source:
                        proxy = await stack.enter_async_context(Proxy(target.address))
                        self._links[source.name, target.name] = proxy
                        peers[target.name] = proxy.address
                configure(source.config, {"peers": peers})
            async with super().running():
                yield self

    async def fail(self, fault: Fault, victim: Victim) -> None:
        match fault:
            case Fault.KILL:
                process = self._processes.pop(victim.name)
                process.kill()
                await asyncio.to_thread(process.wait)
            case Fault.STOP:
                self._processes[victim.name].send_signal(signal.SIGSTOP)
            case Fault.CUT | Fault.ISOLATE:
                for proxy in self._proxies_of(victim):
                    proxy.cut(Flow.SWALLOWED)

    def mend(self, fault: Fault, victim: Victim) -> None:
        match fault:
            case Fault.KILL:
                broker = next(one for one in self.brokers if one.name == victim.name)
                self._processes[victim.name] = broker.start()
            case Fault.STOP:
                self._processes[victim.name].send_signal(signal.SIGCONT)
            case Fault.CUT | Fault.ISOLATE:
                for proxy in self._proxies_of(victim):
                    proxy.heal()

    async def returned(self, watch: Watch, fault: Fault, certified: int) -> None:
        """Until all brokers are ready, connected to each other, and at this height or above."""
        deadline = time.monotonic() + RETURN_SECONDS
        while missing := not_back(self.names, await watch.ask(), certified):
            self.require_running()
            if time.monotonic() >= deadline:
                name, problem = next(iter(missing.items()))
                tail = next(broker.tail() for broker in self.brokers if broker.name == name)
                raise Unavailable(
                    f"{name} {problem} {RETURN_SECONDS:.0f} s after the end of the fault ({fault}). Look into its log with "
                    f"--dir. It said last:\n{tail}"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _proxies_of(self, victim: Victim) -> list[Proxy]:
        return [
            self._links[link] for far in victim.far_ends for link in ((victim.name, far), (far, victim.name))
        ]


def not_back(names: list[str], statuses: Statuses, certified: int) -> dict[str, str]:
    """What is wrong with brokers that are not as they were before, by name; first those that others miss."""
    found = {}
    for name in sorted(names, key=lambda name: name in statuses):
        status = statuses.get(name)
        if status is None:
            found[name] = "does not answer"
        elif status.state != "ready":
            found[name] = f"is {status.state}"
        elif status.certified < certified:
            found[name] = f"is at height {status.certified}, below {certified},"
        elif lacking := [peer.name for peer in status.peers if not peer.connected]:
            found[name] = f"has no connection to {' and '.join(lacking)}"
    return found
