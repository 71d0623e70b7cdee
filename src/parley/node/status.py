"""A broker's own word on how it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import parley
from parley.ledger import layout
from parley.ledger.application import KeyValue
from parley.net.messages import MAX_TOLD, MAX_WORDS, Misbehaviour, PeerStatus, Status
from parley.node.clock import ClockWatch, WallClock, advice
from parley.node.config import Config
from parley.node.driver import Driver
from parley.node.faults.switches import Switches
from parley.node.feed import Feed
from parley.node.peers import Peers
from parley.node.room import Room
from parley.replica import evidence
from parley.replica.replica import Replica

FAR_BEHIND = 16  # committed blocks that wait for execution before a broker calls itself lagging


@dataclass(frozen=True)
class StatusReport:
    config: Config
    driver: Driver
    feed: Feed
    peers: Peers
    clock: ClockWatch
    switches: Switches
    store: KeyValue
    room: Room
    clients: Callable[[], int]
    now: WallClock
    expiry: Callable[[int], str]  # what to say of the certificate at a time

    def __call__(self, id_: int) -> Status:
        genesis, replica = self.config.genesis, self.driver.replica
        broker, anchor = self.config.broker, self.feed.anchor
        return Status(
            id_,
            broker=broker.name,
            organisation=broker.organisation,
            index=self.config.index,
            version=parley.__version__,
            state=self.state(),
            note=self.note(),
            epoch=0,
            view=replica.view,
            height=replica.executed_height,
            certified=self.feed.height,
            leader="" if anchor is None else genesis.brokers[anchor.header.proposer].name,
            time=self.now(),
            clients=self.clients(),
            peers=tuple(
                PeerStatus(other.name, self.peers.connected(index))
                for index, other in enumerate(genesis.brokers)
                if index != self.config.index
            ),
            misbehaviour=self.misbehaviour(),
            damage=tuple(
                f"{found.entry} {found.what}{'; mended' if found.mended else ''}"[:MAX_WORDS]
                for found in self.driver.found
            ),
        )

    def misbehaviour(self) -> tuple[Misbehaviour, ...]:
        """What this broker can prove of others; the records themselves are in its store."""
        brokers = self.config.genesis.brokers
        return tuple(
            Misbehaviour(brokers[one.member].name, one.kind, one.view)
            for one in islice(evidence.held(self.store), MAX_TOLD)
        )

    def state(self) -> str:
        if self.driver.halted is not None:
            return "halted"
        if self.abstaining():
            return "recovering"
        if any(self.store.get(mark) is not None for mark in (layout.JOINING, layout.BACKFILL)):
            return "rebuilding"
        anchor, replica = self.feed.anchor, self.driver.replica
        if anchor is None or anchor.header.executed_height == 0:
            return "starting"
        stale = self.now() - anchor.header.time > self.config.genesis.timeouts.freshness
        behind = replica.committed_height - replica.executed_height > FAR_BEHIND
        return "lagging" if stale or behind else "ready"

    def note(self) -> str:
        """What an operator should know, if anything."""
        notes = [self.driver.halted or self.abstaining()]
        if self.switches.active:
            notes.append(f"Faults are switched on: {', '.join(self.switches.faults)}.")
        if offset := self.clock.wrong_by():
            notes.append(advice(offset))
        notes += [self.now.set_back(), self.expiry(self.now()), self.room.note]
        return " ".join(filter(None, notes))[:MAX_WORDS]

    def abstaining(self) -> str:
        """Why this broker signs nothing; empty if it takes part."""
        replica = self.driver.replica
        return replica.abstaining if isinstance(replica, Replica) else ""
