"""What one shard of a broker is made of: a committee, a disk, the replica between them, and what clients are shown of it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass, field

from parley.application.machine import Machine
from parley.consensus.committee import signer_of
from parley.ledger.application import Mounted
from parley.node.advisories import Advisories
from parley.node.allowances import Unsent
from parley.node.archive import Archive
from parley.node.clock import ClockWatch, WallClock, monotonic
from parley.node.config import Config
from parley.node.driver import MAX_FOUND, Driver
from parley.node.execution import MeasuredMachine
from parley.node.faults.answers import Faults
from parley.node.faults.links import FaultyLinks
from parley.node.faults.stale import StaleLedger
from parley.node.faults.switches import Switches
from parley.node.feed import Feed
from parley.node.logs import Log
from parley.node.members import Members
from parley.node.peers import Peers
from parley.node.room import Room
from parley.node.services.asking import Services
from parley.node.services.service import Table
from parley.node.services.table import TABLE
from parley.node.shown import Showing
from parley.node.status import StatusReport
from parley.node.storage import Storage, network_application, replica_config
from parley.node.telemetry.health import ShardLife
from parley.node.telemetry.site import Telemetry
from parley.node.workers import Workers
from parley.replica.participants import awaken
from parley.replica.ports import Found


@dataclass(frozen=True)
class Process:
    """What all shards of a broker have in common, and what outlives their replicas."""

    log: Log
    now: WallClock
    switches: Switches
    showing: Showing
    telemetry: Telemetry
    # The damage that replicas found in their stores, by shard: a later replica may have to say that it is repaired.
    found: dict[int, deque[Found]] = field(default_factory=dict)


@dataclass(frozen=True)
class Transport:
    """How a shard reaches other brokers, and what it shares with others in serving clients."""

    peers: Peers
    clock: ClockWatch
    clients: Sized
    unsent: Unsent


class Shard:
    """One shard of a broker, constructed bottom up: ledger, consensus, brokers, clients. `config` is that of the shard."""

    def __init__(self, config: Config, storage: Storage, process: Process, transport: Transport) -> None:
        genesis, log, now = config.genesis, _named(process.log, config), process.now
        switches, tally, holding = process.switches, process.telemetry.tally, process.telemetry.holding
        self.number, self.committee = config.shard, config.committee
        self.room = Room(config.data, config.storage.max_bytes)

        feed = Feed()
        application = network_application(config)
        mounted = application.mount(genesis, config.shard)
        archive = Archive(storage.store, application)
        self.ledger = StaleLedger(
            archive, storage.recent, feed, switches=switches, store=storage.store, now=now
        )

        self.workers = _workers(config, mounted.machine, log)
        self.members = Members(transport.peers, config.committee, config.brokers, self.workers)
        signer = signer_of(config.index, config.consensus_key)
        links = FaultyLinks(
            links=self.members,
            switches=switches,
            signer=signer,
            instance=config.committee.instance,
            machine=mounted.machine,
            clients=archive,
        )
        replica = awaken(
            replica_config(config),
            signer,
            config.committee.scheme,
            Mounted(MeasuredMachine(mounted.machine, holding, storage.recent, tally), mounted.keeper),
            record=storage.record,
            store=storage.store,
            nonce=os.urandom(16),
        )
        self.driver = Driver(
            replica,
            storage,
            feed=feed,
            links=links,
            log=log,
            now=now,
            names=config.committee.names,
            archive=archive,
            found=process.found.setdefault(config.shard, deque(maxlen=MAX_FOUND)),
            tally=tally,
            holding=holding,
        )
        self.members.hear(links.before(self.driver))

        status = StatusReport(
            config=config,
            driver=self.driver,
            feed=feed,
            peers=self.members,
            clock=transport.clock,
            switches=switches,
            store=storage.store,
            room=self.room,
            clients=transport.clients,
            now=now,
            showing=process.showing,
        )
        self.services = Services(
            table=Table(TABLE),
            driver=self.driver,
            feed=feed,
            ledger=self.ledger,
            admission=mounted.machine,
            reporter=status,
            freshness=genesis.timeouts.freshness,
            unsent=transport.unsent,
            room=self.room,
            faults=Faults(switches, self.ledger, genesis.timeouts.freshness),
            advisories=Advisories(genesis, now, monotonic),
            now=now,
            ticks=monotonic,
            tally=tally,
            workers=self.workers,
            holding=holding,
        )
        self.life = ShardLife(status, storage.store, mounted.machine)


def _named(log: Log, config: Config) -> Log:
    """The log of a shard, whose lines name it unless it is the broker's only one."""
    return log.bind(shard=config.shard) if len(config.shards) > 1 else log


def _workers(config: Config, machine: Machine, log: Log) -> Workers | None:
    count = config.workers.verify
    return Workers(count, config.genesis.chain, machine.vouch, log) if count else None
