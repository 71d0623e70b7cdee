"""The whole node on one page: what it is made of, in which order it starts and stops."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from parley.crypto.qc import Ed25519List, Ed25519Signer
from parley.net.frames import FrameStream
from parley.net.listener import Listener, listen
from parley.net.tls import certificate_hash, server_context, tls_name
from parley.node.allowances import Door
from parley.node.archive import Archive
from parley.node.authentication import Authenticator
from parley.node.certificates import PeerRefused, expires, identify_peer
from parley.node.clients import Clients
from parley.node.clock import ClockWatch, advice
from parley.node.config import Config, ConfigError
from parley.node.driver import Driver, wall_clock
from parley.node.feed import Feed
from parley.node.logs import Log, Throttled, open_log
from parley.node.peers import Peers
from parley.node.sessions import Services
from parley.node.status import StatusReport
from parley.node.storage import Storage, open_storage, replica_config
from parley.node.view import Ledger
from parley.pubsub.application import PubSub
from parley.replica.replica import Replica

__all__ = ["run"]

CLOCK_SECONDS = 1.0  # between two looks at the clock
CLOCK_QUIET_MS = 60_000
EXPIRY_WARNING_MS = 30 * 86_400_000


async def run(config: Config, stop: asyncio.Event | None = None) -> int:
    """Run a broker until it is told to stop, by a signal unless `stop` is given. The exit code: 0, or 1 if it failed."""
    with ExitStack() as closing:
        log, log_file = open_log(config)
        if config.log_file is not None:
            closing.callback(log_file.close)
        now = wall_clock()
        _require_certificate(config, log, now())
        storage = open_storage(config)
        closing.callback(storage.close)
        node = _Node(config, storage, log, now)
        return await node.run(stop or _stopped_by_signal(closing))


class _Node:
    """Constructed bottom up: ledger, consensus, brokers, clients."""

    def __init__(self, config: Config, storage: Storage, log: Log, now: Callable[[], int]) -> None:
        genesis, limits = config.genesis, config.limits
        self._config, self._log, self._now = config, log, now

        self._feed = Feed()
        application = PubSub(genesis)
        ledger = Ledger(Archive(storage.store), storage.recent, self._feed)

        self._clock = ClockWatch(len(genesis.brokers), config.index)
        self._peers = Peers(config, self._clock, log, now)
        replica = Replica(
            replica_config(config),
            Ed25519Signer(config.index, config.consensus_key),
            Ed25519List([broker.key for broker in genesis.brokers]),
            application,
            record=storage.record,
            store=storage.store,
        )
        self._driver = Driver(
            replica,
            storage,
            feed=self._feed,
            links=self._peers,
            log=log,
            now=now,
            blame=self._peers.blame,
            seen=lambda certified: self._clock.saw(certified.header.proposer, certified.header.time, now()),
        )

        self._door = Door(limits, log, now)
        status = StatusReport(
            config, self._driver, self._feed, self._peers, self._clock, lambda: self._clients.count, now
        )
        services = Services(
            self._driver, self._feed, ledger, application.open, status, genesis.timeouts.freshness, now
        )
        authenticator = Authenticator(genesis, config.broker.name, certificate_hash(config.certificate_der))
        self._clients = Clients(services, authenticator, limits, self._door, log)

    async def run(self, stop: asyncio.Event) -> int:
        config, log = self._config, self._log
        listener = self._listen()
        files = _announce(config, listener)
        log.info("started", address=str(listener.address), chain=config.genesis.chain.hex(), pid=os.getpid())
        tasks = [*self._peers.start(self._driver.receive), asyncio.create_task(self._watch_clock())]
        told: asyncio.Task[Any] = asyncio.create_task(stop.wait())
        self._driver.start()
        try:
            await asyncio.wait([told, self._driver.failure], return_when=asyncio.FIRST_COMPLETED)
        finally:
            log.info("stopping")
            self._driver.stop()
            await listener.close()
            for task in [*tasks, told]:
                task.cancel()
            await asyncio.wait([*tasks, told])
            for file in files:
                file.unlink(missing_ok=True)
            log.info("stopped")
        failed = self._driver.failure.done() and self._driver.failure.exception() is not None
        return 1 if failed else 0

    def _listen(self) -> Listener:
        config = self._config
        authorities = [organisation.tls_ca for organisation in config.genesis.organisations]
        context = server_context(config.certificate, config.certificate_key, authorities)
        return listen(config.listen, context, self._door, self._serve)

    async def _serve(self, stream: FrameStream) -> None:
        """A broker shows a certificate, a client does not."""
        try:
            if stream.peer_certificate is not None:
                await self._peers.serve(stream, stream.peer_certificate)
            else:
                await self._clients.serve(stream)
        except Exception as error:  # noqa: BLE001 - one connection's fault must not become everybody's
            self._log.error("connection_failed", source=stream.source, why=str(error), exc_info=error)

    async def _watch_clock(self) -> None:
        throttled = Throttled(CLOCK_QUIET_MS)
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            offset = self._clock.wrong_by()
            if offset and throttled.count("clock_off", None, self._now()):
                self._log.error("clock_off", offset_ms=offset, why=advice(offset))


def _require_certificate(config: Config, log: Log, now: int) -> None:
    """What other brokers would refuse is said here, where it can be mended."""
    broker = config.broker
    organisation = config.genesis.organisation(broker.organisation)
    assert organisation is not None, "a genesis file is consistent"
    own = tls_name(broker.name, broker.organisation)
    try:
        found = identify_peer(config.certificate_der, {own: organisation.tls_ca}, now=now)
        assert found == own
    except PeerRefused as refused:
        raise ConfigError(
            config.path, "certificate", f"other brokers would refuse this broker: {refused.fault.value}"
        ) from None
    left = expires(config.certificate_der) - now
    if left < EXPIRY_WARNING_MS:
        log.warning("certificate_expires", days=left // 86_400_000)


def _announce(config: Config, listener: Listener) -> list[Path]:
    """Where to reach this process, for those on the same machine."""
    contents = {"address": str(listener.address), "pid": str(os.getpid())}
    files = []
    for name, text in contents.items():
        path = config.directory / name
        temporary = path.with_name(f".{name}.{os.getpid()}")
        try:
            temporary.write_text(f"{text}\n", "ascii")
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(config.path, "", f"{path} cannot be written: {error.strerror}") from error
        files.append(path)
    return files


def _stopped_by_signal(closing: ExitStack) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
        closing.callback(loop.remove_signal_handler, number)
    return stop
