"""Connection limits before authentication: which connections may be open while it is not known who they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from parley.net.limits import Ranking, Strikes, network_of
from parley.net.listener import Visit
from parley.node.logs import Log, Throttled
from parley.node.telemetry.tally import DISPLACED, FULL, HANDSHAKE, Tally

STRIKES = 20  # pieces of garbage, within
STRIKE_WINDOW_MS = 60_000  # after which a client is turned away for
BAN_MS = 60_000
MAX_STRUCK = 10_000  # clients that are remembered for garbage
HANDSHAKES = 256  # connections whose other side has not shown yet who it is
HANDSHAKES_PER_BROKER = 16  # besides, kept for the address of each other broker
ENDING = 64  # connections that were ended and are not closed yet: a moment later they are
PLACES_PER_BROKER = 4  # a link that is dialled again comes before the old one is known to be dead


def places_for_brokers(brokers: int) -> int:
    """Connections of other brokers that are known to be theirs."""
    return PLACES_PER_BROKER * brokers


def handshakes(brokers: int) -> int:
    """Connections that may be open at once without it being known whose they are."""
    return HANDSHAKES + ENDING + HANDSHAKES_PER_BROKER * brokers


class Crowd:
    """Connections that are not authenticated yet, by source and by the wider network that the source is part of."""

    def __init__(self) -> None:
        self._visits: dict[str, dict[Visit, None]] = {}  # by source, oldest first
        self._sources: dict[str, Ranking] = {}  # by network
        self._networks = Ranking()
        self.count = 0

    def add(self, visit: Visit) -> None:
        network = network_of(visit.source)
        self._visits.setdefault(visit.source, {})[visit] = None
        self._sources.setdefault(network, Ranking()).add(visit.source)
        self._networks.add(network)
        self.count += 1

    def remove(self, visit: Visit) -> bool:
        """Remove a connection, and return whether it was there."""
        source, network = visit.source, network_of(visit.source)
        if visit not in self._visits.get(source, ()):
            return False
        del self._visits[source][visit]
        if not self._visits[source]:
            del self._visits[source]
        self._sources[network].remove(source)
        if not len(self._sources[network]):
            del self._sources[network]
        self._networks.remove(network)
        self.count -= 1
        return True

    def makes_room_for(self, source: str) -> Visit:
        """The connection that is ended for a new one from `source`. There must be at least one.

        It is the oldest connection of the source with the most, within the network with the most. A source that has as
        many as any other loses its own. So no number of connections of others keeps a source away.
        """
        network = network_of(source)
        if self._networks[network] < self._networks.most:
            network = self._networks.largest
        sources = self._sources[network]
        if not sources[source] or sources[source] < sources.most:
            source = sources.largest
        return next(iter(self._visits[source]))


class Door:
    """Admits connections before the costly handshake. Once it is known who came, other limits count it.

    `brokers` says how many other brokers come from an address: it has places that no other address can take. All other
    places are shared; when none is left, the source that has most of them loses one to the next connection.
    """

    def __init__(
        self,
        log: Log,
        ticks: Callable[[], int],
        *,
        brokers: Mapping[str, int] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._log = log
        self._ticks = ticks
        self._tally = tally or Tally()
        self._places = {source: HANDSHAKES_PER_BROKER * number for source, number in (brokers or {}).items()}
        self._kept: dict[str, set[Visit]] = {source: set() for source in self._places}
        self._crowd = Crowd()
        self._ending: set[Visit] = set()
        self._throttled = Throttled()
        self.strikes = Strikes(limit=STRIKES, window_ms=STRIKE_WINDOW_MS, ban_ms=BAN_MS, capacity=MAX_STRUCK)

    def enter(self, visit: Visit) -> bool:
        source = visit.source
        if source in self._kept and len(self._kept[source]) < self._places[source]:
            self._kept[source].add(visit)
            return True
        if self._crowd.count >= HANDSHAKES and not self._make_room(source):
            return False
        self._crowd.add(visit)
        return True

    def leave(self, visit: Visit) -> None:
        kept = self._kept.get(visit.source)
        if kept is not None and visit in kept:
            kept.remove(visit)
        elif not self._crowd.remove(visit):
            self._ending.remove(visit)

    def failed(self, visit: Visit, reason: str) -> None:
        if visit not in self._ending:  # or it was counted already
            self._tally.turned_away[HANDSHAKE] += 1
            self._say("handshake_failed", visit.source, reason)

    @contextmanager
    def known(self, visit: Visit) -> Iterator[None]:
        """Do not count a connection as unauthenticated while this context is open."""
        self.leave(visit)
        try:
            yield
        finally:
            self._crowd.add(visit)

    def _make_room(self, source: str) -> bool:
        if len(self._ending) >= ENDING:
            self._tally.turned_away[FULL] += 1
            self._say("connection_refused", source, "there are as many connections as there may be")
            return False
        visit = self._crowd.makes_room_for(source)
        self._crowd.remove(visit)
        self._ending.add(visit)
        visit.end()
        self._tally.turned_away[DISPLACED] += 1
        self._say(
            "connection_displaced",
            visit.source,
            "its address has most of the places for handshakes, and all are taken",
        )
        return True

    def _say(self, event: str, source: str, why: str) -> None:
        if count := self._throttled.count(event, source, self._ticks()):
            self._log.warning(event, source=source, why=why, count=count)
