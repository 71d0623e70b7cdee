"""What a broker is made of, in which order it starts and stops: transport, clients, and a shard for each of its committees."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import parley
from parley.net.frames import FrameStream
from parley.net.limits import source_of
from parley.net.listener import Listener, Visit, listen
from parley.node import rights
from parley.node.admin.actions import Actions, Served
from parley.node.admin.place import bound
from parley.node.admin.server import AdminSocket
from parley.node.allowances import Accounts, Unsent
from parley.node.authentication import Authenticator
from parley.node.clients import Clients
from parley.node.clock import ClockWatch, WallClock, advice, monotonic
from parley.node.config import Config, ConfigError, reload_faults
from parley.node.descriptors import require_descriptors
from parley.node.door import Door
from parley.node.faults.switches import Switches
from parley.node.holding import DISK, START
from parley.node.logs import Log, Throttled, open_log
from parley.node.peers import Peers
from parley.node.placement import DisplacedError
from parley.node.room import Room
from parley.node.shard import Process, Shard, Transport
from parley.node.shown import Showing, Shown
from parley.node.storage import Storage, StorageError, network_application, open_storage
from parley.node.telemetry.health import Life
from parley.node.telemetry.site import Telemetry

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
        # The socket is made before the files are read: a later change of them comes as a reload.
        admin_socket = closing.enter_context(bound(config.directory))
        switches, showing = _as_the_files_say(config, log), Showing(config, log, now)
        admin = Actions(config, switches, showing, log)
        stop = stop or _stopped_by_signal(closing)
        telemetry = Telemetry(config, log)
        closing.enter_context(telemetry.holding.watched())
        process = Process(log=log, now=now, switches=switches, showing=showing, telemetry=telemetry)
        async with telemetry.served(config.metrics_listen, log), AdminSocket(admin_socket, admin.table, log):
            while (code := await _live(config, process, admin, stop)) is None:
                gc.collect()  # a scan that nobody follows any more keeps the old store open, and the new one closed
        return code


async def _live(config: Config, process: Process, admin: Actions, stop: asyncio.Event) -> int | None:
    """Run the replicas until one ends; None: others are to follow, on what these have left on disk."""
    holding = process.telemetry.holding
    with ExitStack() as closing:
        storages: dict[int, Storage] = {}
        for one in map(config.of_shard, config.shards):
            if why := Room(one.data, config.storage.max_bytes).full:
                raise StorageError(why)
            storages[one.shard] = holding.run(START, "the store", partial(open_storage, one))
            closing.callback(storages[one.shard].close)
            if why := rights.warning(one):
                process.log.warning("folder_readable", why=why)
        node = holding.run(START, "the replica", lambda: _Node(config, storages, process))
        holding.run(START, "garbage collection", _set_apart)
        closing.callback(gc.unfreeze)  # or what this life leaves behind would never be freed
        with process.telemetry.showing(node.life):
            async with AsyncExitStack() as serving:
                for shard in node.shards:
                    data = config.of_shard(shard.number).data
                    served = Served(shard.life.status, shard.life.store, data)
                    await serving.enter_async_context(admin.serving(shard.number, served))
                return await node.run(stop)


def _set_apart() -> None:
    """Take what is there by now, the program above all, out of every later collection of cycles, which holds the loop.

    Only when a broker starts and nobody is connected yet: closed connections are cycles, which have to be collected.
    """
    gc.collect()
    gc.freeze()


class _Node:
    """One life of a broker: what its shards share, and the shards."""

    def __init__(self, config: Config, storages: dict[int, Storage], process: Process) -> None:
        genesis, limits, tally = config.genesis, config.limits, process.telemetry.tally
        self._config, self._process = config, process
        self._showing, self._log, self._now = process.showing, process.log, process.now

        self._clock = ClockWatch(len(config.neighbours) + 1, config.place)
        self._peers = Peers(
            config, process.showing.current, self._clock, process.log, process.now, tally=tally
        )
        accounts = Accounts(limits, limits.connections_per_client)
        transport = Transport(
            peers=self._peers, clock=self._clock, clients=accounts, unsent=Unsent(monotonic)
        )
        self.shards = [
            Shard(config.of_shard(number), storage, process, transport)
            for number, storage in storages.items()
        ]
        process.switches.changed = self._switched

        self._door = Door(process.log, monotonic, brokers=_sources(config), tally=tally)
        self._clients = Clients(
            services={shard.number: shard.services for shard in self.shards},
            organisations=len(genesis.organisations),
            limits=limits,
            accounts=accounts,
            door=self._door,
            tally=tally,
            now=process.now,
            ticks=monotonic,
            log=process.log,
        )
        self.life = Life(
            shards=tuple(shard.life for shard in self.shards),
            peers=self._peers,
            clients=accounts,
            clock=self._clock,
            showing=process.showing,
            now=process.now,
        )

    async def run(self, stop: asyncio.Event) -> int | None:
        config, log = self._config, self._log
        failures = [shard.driver.failure for shard in self.shards]
        restarts = [shard.driver.restart for shard in self.shards]
        shown = self._showing.current
        listener = listen(config.listen, shown.server, self._door, partial(self._serve, shown))
        self._showing.changed = partial(self._present, listener)
        tasks: list[asyncio.Task[Any]] = []

        def is_to_follow() -> bool:
            return any(restart.done() for restart in restarts) and not stop.is_set()

        try:
            with _announced(config, listener, stays=is_to_follow):
                log.info(
                    "started",
                    version=parley.__version__,
                    address=str(listener.address),
                    chain=config.genesis.chain.hex(),
                    shards=", ".join(map(str, config.shards)),
                )
                tasks += self._peers.start({shard.number: shard.members for shard in self.shards})
                tasks.append(asyncio.create_task(self._watch_clock()))
                tasks += [asyncio.create_task(shard.workers.run()) for shard in self.shards if shard.workers]
                full = asyncio.create_task(self._watch_room())
                tasks += [full, asyncio.create_task(stop.wait())]
                for shard in self.shards:
                    shard.driver.start()
                ends = [tasks[-1], full, *failures, *restarts]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(listener, tasks)
        whys = [why for failure in failures if failure.done() and (why := failure.exception()) is not None]
        for why in whys:
            if isinstance(why, DisplacedError):
                raise why
        if whys or not full.cancelled():
            return 1
        return None if is_to_follow() else 0

    async def _end(self, listener: Listener, tasks: Sequence[asyncio.Task[Any]]) -> None:
        self._log.info("stopping")
        for shard in self.shards:
            shard.driver.stop()
        try:
            await listener.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # or the storage would be closed under the disk thread
            for shard in self.shards:
                await shard.driver.until_ended()
        for shard in self.shards:
            shard.ledger.drop()
        self._log.info("stopped")

    def _present(self, listener: Listener, shown: Shown) -> None:
        listener.present(shown.server, partial(self._serve, shown))
        self._peers.present(shown)

    def _switched(self) -> None:
        for shard in self.shards:
            shard.ledger.switch()

    async def _serve(self, shown: Shown, stream: FrameStream, visit: Visit) -> None:
        """A broker shows a certificate, a client does not. `shown`: what this broker showed when it was opened."""
        try:
            if stream.peer_certificate is not None:
                await self._peers.serve(stream, stream.peer_certificate, self._door, visit)
            else:
                genesis, broker = self._config.genesis, self._config.broker
                authenticator = Authenticator(genesis, broker.name, self._config.shards, shown.hash)
                await self._clients.serve(stream, visit, authenticator)
        except Exception as error:  # noqa: BLE001 - one connection's fault must not become everybody's
            self._log.error("connection_failed", source=stream.source, why=str(error), exc_info=error)

    async def _watch_room(self) -> None:
        """Return when the disk of a shard is full. Meanwhile the drivers also look whether their files are still in place."""
        quiet, holding = Throttled(ROOM_QUIET_MS), self._process.telemetry.holding
        while not (full := next((shard.room.full for shard in self.shards if shard.room.full), "")):
            for shard in self.shards:
                if (why := shard.room.refusal) and quiet.count("disk_nearly_full", shard.number, monotonic()):
                    self._log.warning("disk_nearly_full", why=why)
            await asyncio.sleep(ROOM_SECONDS)
            for shard in self.shards:
                holding.run(DISK, "free space", shard.room.look)
                shard.driver.look()
        self._log.critical("disk_full", why=full)

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
        if index != config.place:
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
