"""What handlers of questions work with: the parts of the broker, and who asks on whose account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from parley.application.admission import OpenedBatch
from parley.model.refusals import Invalid, NotReady, Refused
from parley.net.messages import Status
from parley.node.access import Caller
from parley.node.advisories import Advisories
from parley.node.allowances import Unsent
from parley.node.driver import Driver
from parley.node.faults.answers import Faults
from parley.node.feed import Feed
from parley.node.holding import Holding
from parley.node.pieces import Shelf
from parley.node.room import Room
from parley.node.services.held import Held
from parley.node.services.service import Table
from parley.node.telemetry.tally import Tally
from parley.node.view import Ledger, View
from parley.node.workers import Workers

Clock = Callable[[], int]  # ms


class Admission(Protocol):
    """What checks batches before they are ordered: the application's machine."""

    def admit(self, body: bytes) -> OpenedBatch:
        """Raises `Refused`."""


class Reporter(Protocol):
    """What knows how the broker is."""

    def report(self, id_: int) -> Status:
        """The status, as the answer to a question of this number."""


@dataclass(frozen=True, kw_only=True)
class Services:
    """The table of services, and the parts of a broker that they are made of. There is one for each shard."""

    table: Table
    driver: Driver
    feed: Feed
    ledger: Ledger
    admission: Admission
    reporter: Reporter
    freshness: int  # ms
    unsent: Unsent
    room: Room
    faults: Faults
    advisories: Advisories
    now: Clock  # since 1970, for what is dated
    ticks: Clock  # one that is never set, for what lasts
    tally: Tally = field(default_factory=Tally)
    shelf: Shelf = field(default_factory=Shelf)
    workers: Workers | None = None
    holding: Holding = field(default_factory=Holding)

    def newest_view(self) -> View | None:
        """The newest view of the ledger; None: this broker has nothing to show now."""
        try:
            return self.ledger.view()
        except Refused:
            return None

    def fresh_view(self) -> View:
        """The newest view. Raises `NotReady` if it is old: readers may have lost their rights since, and a broker that is cut off
        would not know (P18).
        """
        view = self.ledger.view()
        if (age := self.now() - view.time) > self.freshness:
            raise NotReady("not_fresh", age=age, limit=self.freshness)
        return view


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, and on whose account. `held` is what its connection holds open; None: it gets one answer at once."""

    services: Services
    caller: Caller
    charge: Callable[[int], None]  # what an answer took, in bytes of what the caller may use
    held: Held | None = None

    def holding(self) -> Held:
        """What the connection holds open. Raises `Invalid` if there is none on which an answer could come later."""
        if self.held is None:
            raise Invalid("no_connection")
        return self.held
