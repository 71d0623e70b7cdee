"""A broker's own word on how it is."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from itertools import islice

import parley
from parley.ledger import layout
from parley.net.messages import MAX_TOLD, MAX_WORDS, Misbehaviour, PeerStatus, Status
from parley.node.clock import ClockWatch, WallClock, advice
from parley.node.config import Config
from parley.node.driver import Driver
from parley.node.faults.switches import Switches
from parley.node.feed import Feed
from parley.node.members import Members
from parley.node.room import Room
from parley.node.shown import Showing
from parley.replica import evidence
from parley.replica.ports import Found
from parley.replica.replica import Replica
from parley.store.interface import KeyValue

FAR_BEHIND = 16  # committed blocks that wait for execution before a broker calls itself lagging
# Certified blocks that are not final yet: a network that stands still after a failed view has some.
UNSETTLED = 3


@dataclass(frozen=True)
class StatusReport:
    config: Config
    driver: Driver
    feed: Feed
    peers: Members
    clock: ClockWatch
    switches: Switches
    store: KeyValue
    room: Room
    clients: Sized
    now: WallClock
    showing: Showing

    def report(self, id_: int) -> Status:
        committee, replica = self.config.committee, self.driver.replica
        broker, anchor = self.config.broker, self.feed.anchor
        return Status(
            id_,
            broker=broker.name,
            organisation=broker.organisation,
            index=self.config.index,
            version=parley.__version__,
            state=self.state(),
            note=self.note(),
            shard=committee.shard,
            epoch=committee.epoch,
            view=replica.view,
            height=replica.executed_height,
            certified=self.feed.height,
            leader="" if anchor is None else committee.names[anchor.header.proposer],
            time=self.now(),
            clients=len(self.clients),
            peers=tuple(
                PeerStatus(
                    other,
                    self.peers.connected(index),
                    self.peers.is_slow(index),
                    self.peers.round_trip_ms(index),
                )
                for index, other in enumerate(committee.names)
                if index != self.config.index
            ),
            misbehaviour=self.misbehaviour(),
            damage=tuple(map(_damage, self.driver.found)),
            blocks=replica.votes.blocks if isinstance(replica, Replica) else 0,
            votes=tuple(replica.votes.counts) if isinstance(replica, Replica) else (),
            failed_views=tuple(replica.failed_views) if isinstance(replica, Replica) else (),
        )

    def misbehaviour(self) -> tuple[Misbehaviour, ...]:
        """What this broker can prove of others; the records themselves are in its store."""
        names = self.config.committee.names
        return tuple(
            Misbehaviour(names[one.member], one.kind, one.view)
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
        if replica.committed_height - replica.executed_height > FAR_BEHIND:
            return "lagging"
        if self.header_age() <= self.config.genesis.timeouts.freshness:
            return "ready"
        return "lagging" if self._is_behind() else "waiting"

    def header_age(self) -> int:
        """How old the newest certified header is, in ms by this machine's clock; 0 if there is none."""
        anchor = self.feed.anchor
        return 0 if anchor is None else self.now() - anchor.header.time

    def _is_behind(self) -> bool:
        """Whether an old header is this broker's own affair: others have certified more, or its clock is ahead."""
        replica = self.driver.replica
        if isinstance(replica, Replica) and replica.behind > UNSETTLED:
            return True
        corrected = self.header_age() + self.clock.wrong_by()  # an offset is negative if this clock is ahead
        return corrected <= self.config.genesis.timeouts.freshness

    def unreachable(self) -> list[str]:
        """The other brokers that this one is not connected to."""
        return [
            other
            for index, other in enumerate(self.config.committee.names)
            if index != self.config.index and not self.peers.connected(index)
        ]

    def standstill(self) -> str:
        """Why nothing is certified, if that is not this broker's own affair; empty if something is."""
        state = self.state()
        if state not in ("starting", "waiting"):
            return ""
        committee, missing = self.config.committee, self.unreachable()
        size, needed = committee.size, committee.quorum
        if size - len(missing) < needed:
            return f"No quorum: cannot reach {' and '.join(missing)}; {needed} of {size} brokers are needed."
        if state == "starting":
            return ""
        others = f"it reaches {size - 1 - len(missing)} of {size - 1} others"
        return (
            f"The network stands still: nothing was certified for {self.header_age() // 1_000} s; {others}."
        )

    def note(self) -> str:
        """What an operator should know, if anything."""
        notes = [self.driver.halted or self.abstaining() or self.standstill()]
        if self.switches.active:
            notes.append(f"Faults are switched on: {', '.join(self.switches.faults)}.")
        if offset := self.clock.wrong_by():
            notes.append(advice(offset))
        notes += [self.now.set_back(), self.showing.expiry(self.now()), self.room.note]
        return " ".join(filter(None, notes))[:MAX_WORDS]

    def abstaining(self) -> str:
        """Why this broker signs nothing; empty if it takes part."""
        replica = self.driver.replica
        return replica.abstaining if isinstance(replica, Replica) else ""


def _damage(found: Found) -> str:
    """Everybody who may connect can read it, so the keys of entries stay in the log."""
    return f"{layout.without_key(found.entry)} {found.what}{'; mended' if found.mended else ''}"[:MAX_WORDS]
