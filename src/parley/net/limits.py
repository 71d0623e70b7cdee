"""What strangers may use: rates, connections and patience, all counted in bounded memory.

Time is a parameter, in milliseconds of any clock that does not jump back.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum

from parley.model.bounded import put, take_off

_PARTS = 1_000  # of a token: with whole thousandths, a rate per second is exact in milliseconds


def source_of(host: str) -> str:
    """Whom to count under: an IPv4 address, but an IPv6 network of 64 bits, of which anyone has all addresses."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


def network_of(source: str) -> str:
    """The wider network of a source, of which one party may have many addresses: 24 bits of IPv4, 48 of IPv6."""
    try:
        address = ipaddress.ip_address(source.partition("/")[0])
    except ValueError:
        return source
    bits = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network((int(address), bits), strict=False))


class TokenBucket:
    """`burst` tokens at once, `rate` per second in the long run."""

    __slots__ = ("_full", "_parts", "_rate", "_since")

    def __init__(self, rate: int, burst: int) -> None:
        if rate < 1 or burst < 1:
            raise ValueError(f"a token bucket needs a rate and a burst of at least 1, not {rate} and {burst}")
        self._rate = rate
        self._full = burst * _PARTS
        self._parts = self._full
        self._since: int | None = None  # starts full, at whatever time it is used first

    def take(self, tokens: int, now: int) -> bool:
        """Take all of the tokens or none."""
        if tokens < 0:
            raise ValueError(f"cannot take {tokens} tokens")
        self._refill(now)
        if tokens * _PARTS > self._parts:
            return False
        self._parts -= tokens * _PARTS
        return True

    def charge(self, tokens: int, now: int) -> None:
        """Take tokens for what was used already. There may be fewer: nothing can be taken until the debt is paid."""
        if tokens < 0:
            raise ValueError(f"cannot take {tokens} tokens")
        self._refill(now)
        self._parts -= tokens * _PARTS

    def wait_ms(self, tokens: int, now: int) -> int | None:
        """How long until `take` succeeds; None: never, because it is more than the bucket holds."""
        self._refill(now)
        if tokens * _PARTS > self._full:
            return None
        return -(-max(0, tokens * _PARTS - self._parts) // self._rate)

    def _refill(self, now: int) -> None:
        if self._since is None:
            self._since = now
        elapsed = max(0, now - self._since)
        self._parts = min(self._full, self._parts + elapsed * self._rate)
        self._since += elapsed


class Entry(Enum):
    """What became of a connection at the door."""

    ADMITTED = "admitted"
    SOURCE_FULL = "its source has as many connections as it may have"
    FULL = "there are as many connections as there may be"


class Quota:
    """Connections per source and in all. Remembers only sources that have a connection."""

    def __init__(self, per_source: int, total: int) -> None:
        if not 1 <= per_source <= total:
            raise ValueError(
                f"a quota of {per_source} connections per source and {total} in all admits nobody"
            )
        self._per_source = per_source
        self._total = total
        self._open: Counter[str] = Counter()
        self.count = 0

    def enter(self, source: str) -> Entry:
        """Count a connection in, unless it is one too many."""
        if self.count >= self._total:
            return Entry.FULL
        if self._open[source] >= self._per_source:
            return Entry.SOURCE_FULL
        self._open[source] += 1
        self.count += 1
        return Entry.ADMITTED

    def leave(self, source: str) -> None:
        """Count out a connection that was admitted."""
        take_off(self._open, source)
        self.count -= 1


class Ranking:
    """Counts by key, and which key has most; of several, the one that has had so many for longest. All in constant time."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._keys: dict[int, dict[str, None]] = {}  # by their count
        self.most = 0

    def __getitem__(self, key: str) -> int:
        return self._counts[key]

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def largest(self) -> str:
        """The key with the highest count; there must be one."""
        return next(iter(self._keys[self.most]))

    def add(self, key: str) -> None:
        self._move(key, self._counts[key] + 1)
        self.most = max(self.most, self._counts[key])

    def remove(self, key: str) -> None:
        self._move(key, self._counts[key] - 1)
        if self.most not in self._keys:
            self.most -= 1

    def _move(self, key: str, count: int) -> None:
        if before := self._counts[key]:
            del self._keys[before][key]
            if not self._keys[before]:
                del self._keys[before]
        if count:
            self._counts[key] = count
            self._keys.setdefault(count, {})[key] = None
        else:
            del self._counts[key]


@dataclass(slots=True)
class _Record:
    strikes: int
    since: int


class Strikes:
    """Who sends garbage `limit` times within `window_ms` is banned for `ban_ms`.

    At most `capacity` sources are counted and as many banned; of each the oldest are forgotten first. The two are
    kept apart so that nobody can wash out a ban with garbage from many sources that are not banned yet.
    """

    def __init__(self, *, limit: int, window_ms: int, ban_ms: int, capacity: int) -> None:
        if min(limit, window_ms, ban_ms, capacity) < 1:
            raise ValueError("the limit, the times and the capacity of strikes are at least 1")
        self._limit = limit
        self._window_ms = window_ms
        self._ban_ms = ban_ms
        self._capacity = capacity
        self._records: OrderedDict[str, _Record] = OrderedDict()  # least recently struck first
        self._bans: OrderedDict[str, int] = (
            OrderedDict()
        )  # until when; first to end first, as all last equally long

    def __len__(self) -> int:
        return len(self._records) + len(self._bans)

    def strike(self, source: str, now: int) -> bool:
        """Count garbage from the source. Returns whether it is banned, now or already."""
        if self.banned(source, now):
            return True
        record = self._records.pop(source, None)
        if record is None or now - record.since >= self._window_ms:
            record = _Record(0, now)
        record.strikes += 1
        if record.strikes >= self._limit:
            put(self._bans, source, now + self._ban_ms, self._capacity)
            return True
        put(self._records, source, record, self._capacity)
        return False

    def banned(self, source: str, now: int) -> bool:
        return self.wait_ms(source, now) > 0

    def wait_ms(self, source: str, now: int) -> int:
        """How long the source stays banned; 0: it is not."""
        while self._bans and next(iter(self._bans.values())) <= now:
            self._bans.popitem(last=False)
        return max(0, self._bans.get(source, now) - now)
