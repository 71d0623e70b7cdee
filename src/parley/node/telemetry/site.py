"""The broker's pages for machines that watch: /metrics, /public_metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from parley.net.tls import Address
from parley.node.clock import monotonic
from parley.node.config import Config
from parley.node.holding import METRICS, Holding, times_of_thread
from parley.node.logs import Log
from parley.node.room import bytes_in
from parley.node.telemetry.catalogue import CATALOGUE
from parley.node.telemetry.collector import BrokerCollector
from parley.node.telemetry.health import Life, Pulse, ailment, obstacles
from parley.node.telemetry.server import Answer, is_loopback, listen_http
from parley.node.telemetry.tally import Tally
from parley.node.telemetry.watch import Watch

# A page of numbers takes the loop some milliseconds, so that it is made no more often than this.
FRESH_MS = 200

_PUBLIC = frozenset(entry.name.removesuffix("_total") for entry in CATALOGUE if entry.public)


class Telemetry:
    """One for the process; it shows the life of the broker that is going on, if one is."""

    def __init__(self, config: Config, log: Log | None = None) -> None:
        self._data = [config.of_shard(shard).data for shard in config.shards]
        self.holding = Holding(log, times=times_of_thread())
        self._pulse = Pulse(monotonic, self.holding)
        self.tally = Tally()
        genesis, broker = config.genesis, config.broker
        about = (genesis.network, broker.name, broker.organisation)
        self._collector = BrokerCollector(
            self.tally, self._pulse, self.holding, genesis.chain, config.metrics.topics, about
        )
        # A registry of its own: the library's global one would show whatever else is imported.
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._pages: dict[str, tuple[int, Answer]] = {}  # of numbers, and when they were made
        self._making = asyncio.Lock()

    @contextmanager
    def showing(self, life: Life) -> Iterator[None]:
        """While this life goes on."""
        self._collector.life = life
        try:
            yield
        finally:
            self._collector.life = self._collector.storage_bytes = None

    @asynccontextmanager
    async def served(self, address: Address | None, log: Log) -> AsyncIterator[None]:
        """Meanwhile the pages can be had at the address, if there is one, and changes are written to the log.

        Raises `ListenError`.
        """
        watch = Watch(log, monotonic)
        tasks = [
            asyncio.create_task(self._pulse.run()),
            asyncio.create_task(watch.run(lambda: self._collector.life)),
        ]
        try:
            if address is None:
                yield
            else:
                async with self._listening(address, log):
                    yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    @asynccontextmanager
    async def _listening(self, address: Address, log: Log) -> AsyncIterator[None]:
        server = await listen_http(address, self.page, log)
        log.info("metrics", address=str(server.address))
        if not is_loopback(address):
            why = "it answers in clear and asks nobody who they are: let only those who watch reach it"
            log.warning("metrics_open", address=str(server.address), why=why)
        try:
            yield
        finally:
            await server.close()

    async def page(self, path: str) -> Answer | None:
        match path:
            case "/metrics" | "/public_metrics":
                return await self._numbers(path)
            case "/healthz":
                why = ailment(self._pulse, self._collector.life)
                return _judged([why] if why else [])
            case "/readyz":
                return _judged(obstacles(self._collector.life))
            case _:
                return None

    async def _numbers(self, path: str) -> Answer:
        """Made now, or a moment ago for somebody else."""
        async with self._making:
            made, answer = self._pages.get(path, (0, None))
            if answer is None or monotonic() - made >= FRESH_MS:
                answer = await self._made(path)
                self._pages[path] = monotonic(), answer
            return answer

    async def _made(self, path: str) -> Answer:
        if path == "/public_metrics":
            return self.holding.run(METRICS, path, lambda: _shown(_Public(self._registry)))
        with suppress(OSError):  # what cannot be measured now is as it was
            self._collector.storage_bytes = await asyncio.to_thread(lambda: sum(map(bytes_in, self._data)))
        return self.holding.run(METRICS, path, lambda: _shown(self._registry))


class _Public:
    """The few numbers that say how a broker is and not what it does for whom."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._registry.collect() if family.name in _PUBLIC)


def _shown(registry: CollectorRegistry | _Public) -> Answer:
    return Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)


def _judged(reasons: list[str]) -> Answer:
    if not reasons:
        return Answer(HTTPStatus.OK, b"ok\n")
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{why}\n" for why in reasons).encode())
