"""Erasing bodies: those that retention has ended, with what has to stay of them, and those that nobody will ask for (P21)."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence

from parley.ledger import layout
from parley.ledger.application import BodyKeeper, Erasure
from parley.ledger.bodies import GRACE
from parley.model.codec import DECODE_ERRORS
from parley.replica.chain import Entries
from parley.replica.findings import Finding, Put
from parley.replica.memory import Memory, Overlay
from parley.replica.ports import Write
from parley.replica.scrub import Orphan, unexecuted
from parley.replica.scrub_blocks import Outdated

MAX_ERASED = 256  # bodies a round, of which
AT_A_TIME = 16  # are looked for in one step
BLOCKS_READ = 4  # in one step, to know which batches the last blocks name
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
        self._recent: deque[tuple[bytes, ...]] = deque()  # the batches of the last blocks up to a height
        self._recent_height = 0
        self._named: Counter[bytes] = Counter()  # in how many of them

    def steps(self) -> Iterator[tuple[Entries, list[Finding]]]:
        """What the application says is over: the writes, and the bodies of which nothing could be kept. A step each."""
        for _ in range(0, GRACE, BLOCKS_READ):
            if self._read_recent(BLOCKS_READ):
                break
            yield [], []
        for _ in range(MAX_ERASED // AT_A_TIME):
            over = self._over()
            if not over.batches and not over.writes:
                return
            # What is listed goes from the list with its body: if the broker stops in between it is met again.
            yield self._erased(over)

    def _over(self) -> Erasure:
        if not self._memory.all_near():
            return Erasure((), ())
        try:
            return self._keeper.erase(self._state, self._memory.executed, AT_A_TIME)
        except (*DECODE_ERRORS, ValueError):  # the state is damaged, which is found and mended elsewhere
            return Erasure((), ())

    def _erased(self, over: Erasure) -> tuple[Entries, list[Finding]]:
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
        if not self._read_recent(GRACE):
            return set(names)  # nobody knows yet what the last blocks name
        needed |= {name for name in names if name in self._named}
        for batches in unexecuted(self._store, self._memory):
            needed.update(set(names).intersection(batches))
        return needed

    def _read_recent(self, most: int) -> bool:
        """Read so many of the last blocks that were not read yet; whether all are known now."""
        executed = self._memory.executed
        self._recent_height = max(self._recent_height, executed - GRACE)
        for height in range(self._recent_height + 1, min(executed, self._recent_height + most) + 1):
            stored = layout.readable(layout.decode_block, self._store.get(layout.committed(height)))
            if stored is None:  # it is fetched or mended
                return False
            self._recent.append(stored.batches)
            self._named.update(stored.batches)
            self._recent_height = height
        while len(self._recent) > GRACE:
            for name in self._recent.popleft():
                self._named[name] -= 1
                if not self._named[name]:
                    del self._named[name]
        return self._recent_height >= executed

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
