"""The search for damage: one look after another at everything in the local store, a small step at a time.

What is believed is what the replica has in memory: the history range, and the roots of its last blocks. Everything on
disk has to agree with that. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from parley.consensus.errors import Refused
from parley.consensus.types import Block
from parley.crypto.merkle import root
from parley.ledger import layout, state_map
from parley.ledger.application import Mounted
from parley.model.codec import DECODE_ERRORS
from parley.replica import evidence
from parley.replica.chain import Mark, decode_mark
from parley.replica.findings import Finding, Put
from parley.replica.memory import Memory, Overlay
from parley.replica.scrub_blocks import BlockScrub, Outdated
from parley.replica.scrub_state import StateScrub

# Of cost, well below 1 ms: an entry costs its bytes and at least ENTRY_COST, a block HEIGHT_COST.
STEP = 8 * 1024
PAUSE = 30_000  # ms between two passes, which matters only where there is little to look at
ENTRY_COST = 1024
HEIGHT_COST = 4 * 1024
_KEYS = 64  # read at a time: no scan stays open from one step to the next


@dataclass(frozen=True, slots=True)
class Orphan:
    """A body that no block that was or may be executed names, and that does not wait."""

    name: bytes


Item = Finding | Outdated | Orphan


class Scrub:
    """`look` goes on where it stopped; when everything was looked at it begins again, after a pause."""

    def __init__(self, index: int, store: Overlay, mounted: Mounted, memory: Memory) -> None:
        self._index = index
        self._store = store
        self._machine, self._keeper = mounted
        self._memory = memory
        self._blocks = BlockScrub(store, mounted.keeper, memory)
        self._state = StateScrub(store)
        # Applications that do not keep the state map have nothing under these keys that could be checked.
        self._mapped = mounted.machine.genesis().state_root == state_map.EMPTY_ROOT
        self._pass = self._all()
        self._rests_until = 0
        self._alarmed = False
        # The batches of blocks that are not executed, in this step.
        self._named: frozenset[bytes] | None = None
        self.passes = 0

    def alarm(self) -> None:
        """Something was found: damage hides damage, so no pause after this pass."""
        self._alarmed = True

    def is_resting(self, now: int) -> bool:
        return now < self._rests_until

    def look(self, now: int) -> tuple[list[Item], int]:
        """What one step has found, and what it has cost; no cost: this pass is over."""
        found: list[Item] = []
        cost = 0
        self._named = None
        while cost < STEP and not self.is_resting(now):
            try:
                step = next(self._pass, None)
            except (*DECODE_ERRORS, ValueError):
                step = None  # what is derived from a damaged entry: the next pass finds that one first
            if step is None:
                self._pass = self._all()
                self._rests_until = now if self._alarmed else now + PAUSE
                self._alarmed = False
                self.passes += 1
                return found, 0
            if isinstance(step, int):
                cost += step
            else:
                found.append(step)
        return found, cost

    def state_damage(self) -> Finding | None:
        steps = self._state_entries() if self._mapped else ()
        return next((step for step in steps if isinstance(step, Finding)), None)

    def needed(self, block: Block) -> Generator[int, None, frozenset[bytes]]:
        """The batches of an executed block whose bodies are still to be kept."""
        return self._blocks.needed(block)

    def _all(self) -> Iterator[Item | int]:
        yield from self._marks()
        yield from self._waiting()
        yield from self._uncommitted()
        yield from self._evidence()
        if self._mapped:
            yield from self._state_entries()
        yield from self._executed()
        if self._mapped:
            yield from self._erasures()
            yield from self._orphans()

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        """Keys only: what is under them may have changed by the time they are looked at."""
        start = prefix
        while found := [key for key, _ in islice(self._store.scan(prefix, start), _KEYS)]:
            yield from found
            start = found[-1] + b"\0"

    def _entries(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Those that have not gone since their keys were listed."""
        for key in self._keys(prefix):
            if (value := self._store.get(key)) is not None:
                yield key, value

    # -- single entries --------------------------------------------------------------------------------------------------

    def _marks(self) -> Iterator[Item | int]:
        memory = self._memory
        head = layout.encode(layout.Head(memory.executed, memory.replica.history.encode()))
        if self._store.get(layout.HEAD) != head:
            yield Finding(layout.HEAD, "is not what was executed last", Put(head))
        joins = self._store.get(layout.JOINS)
        if joins is not None and layout.readable(layout.decode_joins, joins) is None:
            yield Finding(layout.JOINS, "cannot be read", Put(None))
        yield from self._blocks.genesis()
        yield ENTRY_COST

    def _waiting(self) -> Iterator[Item | int]:
        for key, mark in self._entries(layout.WAITING):
            name = key[len(layout.WAITING) :]
            body = self._store.get(layout.batch(name))
            yield ENTRY_COST + len(body or b"")
            if body is None or not self._keeper.is_body(body, name):
                kept = self._memory.body(name)
                what = "is missing" if body is None else "is not the batch that it is named after"
                yield Finding(layout.batch(name), what, Put(kept))
                if kept is None:
                    yield Finding(key, "marks a batch that is not here", Put(None))
            elif layout.readable(decode_mark, mark) is None:
                renewed = Mark(self._index, self._memory.executed, self._machine.admit(body).author)
                yield Finding(key, "cannot be read", Put(layout.encode(renewed)))

    def _uncommitted(self) -> Iterator[Item | int]:
        for key, value in self._entries(layout.UNCOMMITTED):
            id_, stored = key[len(layout.UNCOMMITTED) :], layout.readable(layout.decode_block, value)
            if (
                stored is None
                or stored.block().id != id_
                or root(stored.batches) != stored.header.batches_root
            ):
                # What was voted for is on other disks, too, if it is certified; whoever needs it asks for it (decision 1).
                known = self._memory.block(id_)
                mend = None if known is None else layout.encode(layout.StoredBlock.of(known))
                yield Finding(key, "is not the block that it is named after", Put(mend))
            yield ENTRY_COST + len(value)

    def _evidence(self) -> Iterator[Item | int]:
        for key, value in self._entries(layout.EVIDENCE):
            try:
                said = evidence.verify(evidence.decode(value), self._memory.verifier)
                holds = layout.evidence(said.member, said.view) == key
            except Refused:
                holds = False
            if not holds:
                yield Finding(key, "does not prove that a member broke the rules", Put(None))
            yield HEIGHT_COST + len(value)

    # -- many entries ----------------------------------------------------------------------------------------------------

    def _state_entries(self) -> Iterator[Item | int]:
        for path in (b"", *(key[len(layout.NODE) :] for key in self._keys(layout.NODE))):
            yield from self._state.node(path, self._memory.state_root())
            yield ENTRY_COST
        for key, value in self._entries(layout.STATE):
            yield from self._state.entry(key[len(layout.STATE) :], value, self._memory.state_root())
            yield ENTRY_COST + len(value)

    def _executed(self) -> Iterator[Item | int]:
        height = self._lowest()
        while height <= self._memory.executed:
            yield HEIGHT_COST
            yield from self._blocks.height(height)
            height = max(height + 1, self._lowest())

    def _lowest(self) -> int:
        """What is below is still to be filled in."""
        value = self._store.get(layout.BACKFILL)
        return 1 if value is None else max(1, int.from_bytes(value, "big"))

    def _erasures(self) -> Iterator[Item | int]:
        for prefix in self._keeper.passing():
            for key in self._keys(layout.APPLICATION + prefix):
                value = self._store.get(key)
                if value is not None and not self._blocks.is_readable(key, value):
                    yield Finding(key, "cannot be read", Put(None))
                yield ENTRY_COST
        for key in self._keys(layout.erased(b"")):
            value = self._store.get(key)
            if value is not None:
                yield from self._blocks.remains(key, value)
            yield ENTRY_COST

    def _orphans(self) -> Iterator[Item | int]:
        for key in self._keys(layout.batch(b"")):
            name = key[len(layout.batch(b"")) :]
            if self._store.get(layout.waiting(name)) is None and not self._is_placed(name):
                yield Orphan(name)
            yield ENTRY_COST

    def _is_placed(self, name: bytes) -> bool:
        """Whether a block that was executed, or may still be, names the batch."""
        if self._blocks.is_executed(name):
            return True
        if self._named is None:
            self._named = frozenset(chain.from_iterable(unexecuted(self._store, self._memory)))
        return name in self._named


def unexecuted(store: Overlay, memory: Memory) -> Iterator[tuple[bytes, ...]]:
    """The batches of each block that is stored and not executed."""
    for key, value in store.scan(layout.UNCOMMITTED):
        known = memory.block(key[len(layout.UNCOMMITTED) :])  # in memory it is not damaged
        stored = layout.readable(layout.decode_block, value) if known is None else known
        yield () if stored is None else stored.batches
