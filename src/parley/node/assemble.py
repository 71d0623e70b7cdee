"""The whole node on one page: what it is made of, in which order it starts and stops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import parley
from parley.crypto.qc import Ed25519List, Ed25519Signer
from parley.ledger.application import Mounted
from parley.model.batches import open_batch
from parley.net.frames import FrameStream
from parley.net.limits import source_of
from parley.net.listener import Listener, Visit, listen
from parley.node import rights
from parley.node.admin.actions import Actions, Served
from parley.node.admin.place import bound
from parley.node.admin.server import AdminSocket
from parley.node.advisories import Advisories
from parley.node.allowances import Unsent
from parley.node.archive import Archive
from parley.node.authentication import Authenticator
from parley.node.clients import Clients
from parley.node.clock import ClockWatch, WallClock, advice, monotonic
from parley.node.config import Config, ConfigError, reload_faults
from parley.node.descriptors import require_descriptors
from parley.node.door import Door
from parley.node.driver import MAX_FOUND, Driver
from parley.node.execution import MeasuredMachine
from parley.node.faults.answers import Faults
from parley.node.faults.links import FaultyLinks
from parley.node.faults.stale import StaleLedger
from parley.node.faults.switches import Switches
from parley.node.feed import Feed
from parley.node.holding import DISK, START
from parley.node.logs import Log, Throttled, open_log
from parley.node.peers import Peers
from parley.node.placement import DisplacedError
from parley.node.room import Room
from parley.node.sessions import Services
from parley.node.shown import Showing, Shown
from parley.node.status import StatusReport
from parley.node.storage import (
    Storage,
    StorageError,
    network_application,
    open_storage,
    replica_config,
)
from parley.node.telemetry.health import Life
from parley.node.telemetry.site import Telemetry
from parley.node.workers import Workers
from parley.replica.participants import awaken
from parley.replica.ports import Found

CLOCK_SECONDS = 1.0  # between two looks at the clock
CLOCK_QUIET_MS = ROOM_QUIET_MS = 60_000
ROOM_SECONDS = 1.0  # between two looks at the disk
EXPIRY_QUIET_MS = 86_400_000


async def run(config: Config, stop: asyncio.Event | None = None) -> int:
    """Run a broker until it is told to stop, by a signal unless `stop` is given. The exit code: 0, or 1 if it failed.

    Raises what keeps it from starting, and `DisplacedError` if its folder goes away: then the process has to end at once.
    """
    network_application(config)  # before anything is opened
    with ExitStack() as closing:
        log, log_file = open_log(config.log_place)
        if config.log_file is not None:
            closing.callback(log_file.close)
        now = WallClock()
        require_descriptors(config)
        # First the socket, then the files: a change of them is either read now or told there.
        admin_socket = closing.enter_context(bound(config.directory))
        switches, showing = _as_the_files_say(config, log), Showing(config, log, now)
        admin = Actions(config, switches, showing, log)
        stop = stop or _stopped_by_signal(closing)
        found: deque[Found] = deque(maxlen=MAX_FOUND)  # also what one life found and another has mended
        telemetry = Telemetry(config, log)
        closing.enter_context(telemetry.holding.watched())
        async with telemetry.served(config.metrics_listen, log), AdminSocket(admin_socket, admin.table, log):
            while (
                code := await _live(
                    config,
                    switches,
                    log,
                    now,
                    stop,
                    showing=showing,
                    telemetry=telemetry,
                    found=found,
                    admin=admin,
                )
            ) is None:
                gc.collect()  # a scan that nobody follows any more keeps the old store open, and the new one closed
        return code


async def _live(
    config: Config,
    switches: Switches,
    log: Log,
    now: WallClock,
    stop: asyncio.Event,
    *,
    showing: Showing,
    telemetry: Telemetry,
    found: deque[Found],
    admin: Actions,
) -> int | None:
    """Run one replica until it ends; None: another one is to follow, on what this one has left on disk."""
    with ExitStack() as closing:
        if why := Room(config.data, config.storage.max_bytes).full:
            raise StorageError(why)
        storage = telemetry.holding.run(START, "the store", lambda: open_storage(config))
        closing.callback(storage.close)
        if why := rights.warning(config):
            log.warning("folder_readable", why=why)
        make = partial(_Node, config, storage, switches, log, now)
        node = telemetry.holding.run(
            START, "the replica", lambda: make(showing=showing, telemetry=telemetry, found=found)
        )
        telemetry.holding.run(START, "garbage collection", _set_apart)
        closing.callback(gc.unfreeze)  # or what this life leaves behind would never be freed
        with telemetry.showing(node.life):
            async with admin.serving(0, Served(node.life.status, storage.store, config.data)):
                return await node.run(stop)


def _set_apart() -> None:
    """Take what is there by now, the program above all, out of every later collection of cycles, which holds the loop.

    Only when a broker starts and nobody is connected yet: closed connections are cycles, which have to be collected.
    """
    gc.collect()
    gc.freeze()


class _Node:
    """Constructed bottom up: ledger, consensus, brokers, clients."""

    def __init__(
        self,
        config: Config,
        storage: Storage,
        switches: Switches,
        log: Log,
        now: WallClock,
        *,
        showing: Showing,
        telemetry: Telemetry,
        found: deque[Found],
    ) -> None:
        genesis, limits = config.genesis, config.limits
        tally, self._holding = telemetry.tally, telemetry.holding
        self._config, self._showing, self._log, self._now = config, showing, log, now
        self._room = Room(config.data, config.storage.max_bytes)

        self._feed = Feed()
        application = network_application(config)
        mounted = application.mount(genesis)
        machine = mounted.machine
        archive = Archive(storage.store, application)
        self._ledger = StaleLedger(
            archive, storage.recent, self._feed, switches=switches, freeze=storage.store.frozen, now=now
        )
        switches.changed = self._ledger.switch

        count = config.workers.verify
        self._workers = Workers(count, genesis.chain, machine.vouch, log) if count else None
        ahead = self._workers.ahead if self._workers else None

        self._clock = ClockWatch(len(genesis.brokers), config.index)
        self._peers = Peers(config, showing.current, self._clock, log, now, ahead=ahead)
        signer = Ed25519Signer(config.index, config.consensus_key)
        self._links = FaultyLinks(
            self._peers,
            switches,
            signer,
            replica_config(config).instance,
            partial(open_batch, chain=genesis.chain),
            archive.key_of,
        )
        replica = awaken(
            replica_config(config),
            signer,
            Ed25519List([broker.key for broker in genesis.brokers]),
            Mounted(MeasuredMachine(machine, self._holding, storage.recent, tally), mounted.keeper),
            record=storage.record,
            store=storage.store,
            nonce=os.urandom(16),
        )
        self._driver = Driver(
            replica,
            storage,
            feed=self._feed,
            links=self._links,
            log=log,
            now=now,
            blame=self._peers.blame,
            names=[broker.name for broker in genesis.brokers],
            archive=archive,
            found=found,
            tally=tally,
            holding=self._holding,
        )

        self._door = Door(
            log,
            monotonic,
            brokers=_sources(config),
            tally=tally,
        )
        status = StatusReport(
            config,
            self._driver,
            self._feed,
            self._peers,
            self._clock,
            switches,
            storage.store,
            self._room,
            lambda: self._clients.count,
            now,
            showing.expiry,
        )
        services = Services(
            self._driver,
            self._feed,
            self._ledger,
            machine.admit,
            status,
            genesis.timeouts.freshness,
            Unsent(monotonic),
            self._room,
            Faults(switches, self._ledger, genesis.timeouts.freshness),
            Advisories(genesis, now, monotonic),
            now,
            monotonic,
            tally,
            ahead=ahead,
            holding=self._holding,
        )
        self._clients = Clients(services, len(genesis.organisations), limits, self._door, log)
        self.life = Life(status, storage.store, machine, lambda: showing.current.ends, showing.authority_ends)

    async def run(self, stop: asyncio.Event) -> int | None:
        config, log = self._config, self._log
        failure, restart = self._driver.failure, self._driver.restart
        shown = self._showing.current
        listener = listen(config.listen, shown.server, self._door, partial(self._serve, shown))
        self._showing.changed = partial(self._present, listener)
        tasks: list[asyncio.Task[Any]] = []
        try:
            with _announced(config, listener, stays=lambda: restart.done() and not stop.is_set()):
                log.info(
                    "started",
                    version=parley.__version__,
                    address=str(listener.address),
                    chain=config.genesis.chain.hex(),
                )
                tasks += self._peers.start(
                    self._links.hearing(self._driver.receive),
                    lambda index, up: self._driver.peer_changed(index, up=up),
                )
                tasks.append(asyncio.create_task(self._watch_clock()))
                if self._workers is not None:
                    tasks.append(asyncio.create_task(self._workers.run()))
                full = asyncio.create_task(self._watch_room())
                tasks += [full, asyncio.create_task(stop.wait())]
                self._driver.start()
                await asyncio.wait([tasks[-1], full, failure, restart], return_when=asyncio.FIRST_COMPLETED)
        finally:
            log.info("stopping")
            self._driver.stop()
            try:
                await listener.close()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # or the storage would be closed under the disk thread
                await self._driver.until_ended()
            self._ledger.drop()
            log.info("stopped")
        why = failure.exception() if failure.done() else None
        if isinstance(why, DisplacedError):
            raise why
        if why is not None or not full.cancelled():
            return 1
        return None if restart.done() and not stop.is_set() else 0

    def _present(self, listener: Listener, shown: Shown) -> None:
        listener.present(shown.server, partial(self._serve, shown))
        self._peers.present(shown)

    async def _serve(self, shown: Shown, stream: FrameStream, visit: Visit) -> None:
        """A broker shows a certificate, a client does not. `shown`: what this broker showed when it was opened."""
        try:
            if stream.peer_certificate is not None:
                await self._peers.serve(stream, stream.peer_certificate, self._door, visit)
            else:
                genesis, broker = self._config.genesis, self._config.broker
                await self._clients.serve(stream, visit, Authenticator(genesis, broker.name, shown.hash))
        except Exception as error:  # noqa: BLE001 - one connection's fault must not become everybody's
            self._log.error("connection_failed", source=stream.source, why=str(error), exc_info=error)

    async def _watch_room(self) -> None:
        """Until the disk is full. Whether it is still there is looked at here, too."""
        quiet = Throttled(ROOM_QUIET_MS)
        while not self._room.full:
            if (why := self._room.refusal) and quiet.count("disk_nearly_full", None, monotonic()):
                self._log.warning("disk_nearly_full", why=why)
            await asyncio.sleep(ROOM_SECONDS)
            self._holding.run(DISK, "free space", self._room.look)
            self._driver.look()
        self._log.critical("disk_full", why=self._room.full)

    async def _watch_clock(self) -> None:
        clock, certificate = Throttled(CLOCK_QUIET_MS), Throttled(EXPIRY_QUIET_MS)
        while True:
            offset = self._clock.wrong_by()
            if offset and clock.count("clock_off", None, monotonic()):
                self._log.error("clock_off", offset_ms=offset, why=advice(offset))
            if (why := self._now.set_back()) and clock.count("clock_set_back", None, monotonic()):
                self._log.error("clock_set_back", why=why)
            if (why := self._showing.expiry(self._now())) and certificate.count("expiry", None, monotonic()):
                self._log.warning("certificate_expires", why=why)
            await asyncio.sleep(CLOCK_SECONDS)


def _sources(config: Config) -> Counter[str]:
    """How many other brokers come from which address, as far as their names can be looked up now."""
    found: Counter[str] = Counter()
    for index, address in enumerate(config.addresses):
        if index != config.index:
            with suppress(OSError, UnicodeError):
                found.update({source_of(str(one[4][0])) for one in socket.getaddrinfo(address.host, None)})
    return found


@contextmanager
def _announced(config: Config, listener: Listener, stays: Callable[[], bool]) -> Iterator[None]:
    """Files that say where to reach this process, for those on the same machine; between two lives they stay, or it
    could not be found and stopped then.
    """
    pid = os.getpid()
    contents = {config.directory / "address": listener.address, config.directory / "pid": pid}
    try:
        for path, content in contents.items():
            temporary = path.with_name(f".{path.name}.{pid}")
            temporary.write_text(f"{content}\n", "ascii")
            temporary.replace(path)
    except OSError as error:
        raise ConfigError(config.path, "", f"{error.filename} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        if not stays():
            for path, content in contents.items():
                _remove_own(path, f"{content}\n")


def _remove_own(path: Path, content: str) -> None:
    """Unless another file lies there, as where the folder was replaced and another process runs in it."""
    with suppress(OSError):
        if path.read_text("ascii", errors="replace") == content:
            path.unlink()


def _as_the_files_say(config: Config, log: Log) -> Switches:
    """The faults, read again: since the configuration was read they may have changed."""
    switches = Switches(reload_faults(config))
    if switches.faults:
        log.warning("faults", faults=", ".join(switches.faults))
    return switches


def _stopped_by_signal(closing: ExitStack) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
        closing.callback(loop.remove_signal_handler, number)
    return stop
