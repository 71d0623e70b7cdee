"""CWA with protections: members fall into tiers by their record, and a draw by weight decides (P8, R6-R9).

The record counts failures, and a failure is a skipped view held against the leader that this very scheme gave it. Over a
sliding window that would never end, since each leader depends on an older window. So records live in periods of fixed
heights, each starting from nothing: decision 6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from parley.consensus.committee import faults
from parley.consensus.leader.cwa import DELAY
from parley.consensus.leader.line import Line, embedded_voters, remember
from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.leader.round_robin import RoundRobin
from parley.consensus.types import Header
from parley.crypto.encoding import u64
from parley.crypto.hashing import digest

PERIOD = 64  # W: blocks of a period, for each member; a faulty leader is tried again about once in it
SILENCE = 4  # blocks without a vote or a proposal after which a member is inactive, for each member
ACTIVE, INACTIVE, FAILED = 1000, 100, 1  # weights: nobody's is zero, so everybody can come back (R6)
TOLERATED_FAILURES = (
    3  # a failed member failed more than one in so many of its views: liars can frame fewer (R9)
)


@dataclass(frozen=True)
class Record:
    """What the blocks of a period, up to the one at `height`, say about each member."""

    height: int
    proposals: tuple[int, ...]
    failures: tuple[int, ...]
    last_seen: tuple[int, ...]  # the newest block that it proposed, or that holds its vote

    @cached_property
    def weights(self) -> tuple[int, ...]:
        silent = self.height - SILENCE * len(self.proposals)
        return tuple(
            FAILED
            if failures * TOLERATED_FAILURES > proposals + failures
            else (INACTIVE if last_seen < silent else ACTIVE)
            for proposals, failures, last_seen in zip(
                self.proposals, self.failures, self.last_seen, strict=True
            )
        )


class CwaPlus:
    """A draw among all but the newest f proposers, weighted by the record up to the reference block."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._faults = faults(size)
        self._period = PERIOD * size
        self._fallback = RoundRobin(size)
        self._records: dict[bytes, Record] = {}
        # From a parent down to the start of its reference's period; the first gap that is charged there lies above
        # D + 1 blocks of the period, and the newest f proposers at that point may reach below the start.
        self.memory = self._period + max(DELAY, self._faults - 1)

    def leader(self, view: int, entered_by: EnteredBy, ancestry: Iterable[Header]) -> int:
        line = Line(ancestry)
        if entered_by is EnteredBy.TC or line.height <= DELAY:
            return self._fallback.leader(view, entered_by, ())
        return self._draw(view, line, line.height)

    def _draw(self, view: int, line: Line, parent: int) -> int:
        """The leader of `view` over the block at height `parent`, whose reference block is not block 0."""
        reference = line.header(parent - DELAY)
        weights = list(self._record(line, reference.height).weights)
        for proposer in line.proposers(parent, self._faults):  # chain quality
            weights[proposer] = 0  # n - f members are left, and no weight is zero
        sums = list(accumulate(weights))
        # Nothing that a member can choose enters the seed: a proposer would try blocks until a friend leads (R8).
        seed = digest("leader/cwa+", reference.chain, u64(reference.epoch), u64(view))
        return bisect_right(sums, int.from_bytes(seed, "big") % sums[-1])

    # -- the record -------------------------------------------------------------------------------------------------------

    def _record(self, line: Line, height: int) -> Record:
        """Folded over the period of the block at `height` up to it, from the newest record that is remembered."""
        first = self._first_of_period(height)
        known = height
        while known >= first and line.id(known) not in self._records:
            known -= 1
        record = self._records[line.id(known)] if known >= first else self._empty(first)
        for above in range(known + 1, height + 1):
            record = remember(self._records, line.id(above), self._extend(record, line, above))
        return record

    def _empty(self, first: int) -> Record:
        nothing = (0,) * self._size
        return Record(first, nothing, nothing, (first,) * self._size)

    def _extend(self, record: Record, line: Line, height: int) -> Record:
        header = line.header(height)
        proposals, last_seen = list(record.proposals), list(record.last_seen)
        proposals[header.proposer] += 1
        last_seen[header.proposer] = height
        for voter in embedded_voters(header, self._size):
            last_seen[voter] = height
        return Record(height, tuple(proposals), self._charge(record.failures, line, height), tuple(last_seen))

    def _charge(self, failures: tuple[int, ...], line: Line, height: int) -> tuple[int, ...]:
        """Hold the views skipped below a block against their leaders: the first by QC, the later ones by TC (P8)."""
        header = line.header(height)
        skipped = range(header.justify.view + 1, header.view)
        if not skipped:
            return failures
        later = skipped[1:]
        turns, rest = divmod(len(later), self._size)
        charged = [count + turns for count in failures]
        failed = [self._fallback.leader(view, EnteredBy.TC, ()) for view in later[:rest]]
        for leader in failed + self._failed_by_qc(skipped[0], line, height):
            charged[leader] += 1
        return tuple(charged)

    def _failed_by_qc(self, view: int, line: Line, height: int) -> list[int]:
        """Who led the view after the parent's, unless only the period before can tell: then nobody is charged."""
        parent = height - 1
        if parent <= DELAY:
            return [self._fallback.leader(view, EnteredBy.QC, ())]
        if parent - DELAY < self._first_of_period(height):
            return []
        return [self._draw(view, line, parent)]

    def _first_of_period(self, height: int) -> int:
        return height - (height - 1) % self._period
