"""Erasing bodies: those that retention has ended, with what has to stay of them, and those that nobody will ask for (P21)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from parley.ledger import layout
from parley.ledger.application import BodyKeeper
from parley.ledger.bodies import GRACE
from parley.model.codec import DECODE_ERRORS
from parley.replica.chain import Entries
from parley.replica.findings import Finding, Put
from parley.replica.memory import Memory, Overlay
from parley.replica.ports import Write
from parley.replica.scrub import Orphan
from parley.replica.scrub_blocks import Outdated

MAX_ERASED = 256  # bodies a round
MAX_ORPHANS = 4_096  # bodies that are remembered as nobody's
ORPHAN_AGE = 600_000  # ms between two sightings after which a body is nobody's for good


class Eraser:
    """Whoever kept an erased batch can have it ordered again. Those who vote for the block have promised to have its
    body (T20), and if they erased it before all have executed the block, the chain would stop for good. So a body stays
    while it waits, while a block that is not executed names it, and some blocks longer; it is met or listed again later.
    And nothing goes while a member is further behind than that, unless it is away (replica/progress.py).
    """

    def __init__(self, store: Overlay, keeper: BodyKeeper, memory: Memory) -> None:
        self._store = store
        self._keeper = keeper
        self._memory = memory
        self._state = layout.StateView(store)
        self._orphans: OrderedDict[bytes, int] = OrderedDict()  # when they were seen first
        self._recent: tuple[int, frozenset[bytes]] = (
            -1,
            frozenset(),
        )  # the batches of the last blocks up to a height

    def erase(self) -> tuple[Entries, list[Finding]]:
        """What the application says is over: the writes, and the bodies of which nothing could be kept."""
        if not self._memory.all_near():
            return [], []
        try:
            over = self._keeper.erase(self._state, self._memory.executed(), MAX_ERASED)
        except (*DECODE_ERRORS, ValueError):  # the state is damaged, which is found and mended elsewhere
            return [], []
        entries: Entries = [(layout.APPLICATION + key, value) for key, value in over.writes]
        lost: list[Finding] = []
        needed = self._needed(over.batches)
        for name in over.batches:
            if name in needed:
                continue
            gone, damaged = self._gone(name)
            entries += gone
            lost += damaged
        return entries, lost

    def meet(self, item: Orphan | Outdated, now: int, *, filling: bool) -> list[Write]:
        """A body that should not be here. While old records are filled in nobody knows yet which are needed."""
        if filling:
            return []
        if isinstance(item, Outdated):
            if not self._memory.all_near() or self._needed((item.name,)):
                return []
            entries, _ = self._gone(item.name)
            return [self._write(entries)] if entries else []
        first = self._orphans.setdefault(item.name, now)
        if len(self._orphans) > MAX_ORPHANS:
            self._orphans.popitem(last=False)
        if now - first < ORPHAN_AGE:
            return []
        self._orphans.pop(item.name, None)
        return [self._write([(layout.batch(item.name), None)])]

    def _needed(self, names: Sequence[bytes]) -> set[bytes]:
        """Those that wait, or that a block names which may still be executed, or one of those that were executed last."""
        if not names:
            return set()
        needed = {name for name in names if self._store.get(layout.waiting(name)) is not None}
        needed |= self._named_lately().intersection(names)
        for batches in self._unexecuted():
            needed.update(set(names).intersection(batches))
        return needed

    def _named_lately(self) -> frozenset[bytes]:
        executed = self._memory.executed()
        if self._recent[0] != executed:
            heights = range(max(executed - GRACE, 0) + 1, executed + 1)
            found = (self._stored(layout.committed(height)) for height in heights)
            self._recent = executed, frozenset(name for batches in found for name in batches)
        return self._recent[1]

    def _unexecuted(self) -> Iterator[tuple[bytes, ...]]:
        for key, _ in self._store.scan(layout.UNCOMMITTED):
            known = self._memory.block(key[len(layout.UNCOMMITTED) :])  # in memory it is not damaged
            yield self._stored(key) if known is None else known.batches

    def _stored(self, key: bytes) -> tuple[bytes, ...]:
        stored = layout.readable(layout.decode_block, self._store.get(key))
        return () if stored is None else stored.batches

    def _gone(self, name: bytes) -> tuple[Entries, list[Finding]]:
        body = self._store.get(layout.batch(name))
        if body is None:
            return [], []
        gone = (layout.batch(name), None)
        try:
            return [(layout.erased(name), self._keeper.remains(body)), gone], []
        except (*DECODE_ERRORS, ValueError):
            return [gone], [Finding(gone[0], "cannot be read, so nothing of it stays", Put(None))]

    def _write(self, entries: Entries) -> Write:
        self._store.write(entries)
        return Write(tuple(entries), sync=False)
