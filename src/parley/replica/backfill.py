"""Filling in what a snapshot leaves out: the records of the blocks below it, newest first, and the bodies still to be kept.

`m/backfill` holds the height below which records may be missing. It moves down as they come, so a restart goes on there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from parley.consensus.types import Block, Roots
from parley.crypto.encoding import u64
from parley.ledger import history, layout
from parley.ledger.application import BodyKeeper
from parley.ledger.bodies import kept_batches, repeated
from parley.replica.chain import Entries
from parley.replica.memory import Memory, Overlay
from parley.replica.records import Sound, Trusted, fits, leaf_node, read_block, read_leaves
from parley.sync.messages import MAX_HEIGHTS

WINDOW = 2 * MAX_HEIGHTS  # blocks whose bodies are still awaited
FETCHES = 4  # of them whose bodies are asked for at a time
FOUND_HERE = 64  # records that are looked at in one go because they may be here already


@dataclass(slots=True)
class _Filled:
    """A block whose record is here, and the bodies that it still waits for."""

    block: Block
    missing: tuple[bytes, ...]
    asked: bool = False


class Backfill:
    """Nothing is left to do once there is no `m/backfill`."""

    def __init__(self, store: Overlay, keeper: BodyKeeper, memory: Memory) -> None:
        self._store = store
        self._keeper = keeper
        self._memory = memory
        self._state = layout.StateView(store)
        self._waiting: deque[_Filled] = deque()  # newest block first
        self._next = 0  # the height below which records are to be got; 0: not known yet

    @property
    def is_needed(self) -> bool:
        return self._store.get(layout.BACKFILL) is not None

    @property
    def waits(self) -> bool:
        """Whether bodies are awaited."""
        return bool(self._waiting)

    def begin(self) -> None:
        """The stored height; if it cannot be right, everything is looked at."""
        value = self._store.get(layout.BACKFILL) or b""
        highest = self._memory.executed() + 1
        stored = int.from_bytes(value, "big")
        self._next = stored if len(value) == len(u64(0)) and 1 <= stored <= highest else highest

    def heights(self) -> tuple[int, ...]:
        """Whose records are to be asked for next."""
        if not self.is_needed:
            return ()
        room = min(WINDOW - len(self._waiting), MAX_HEIGHTS)
        return tuple(range(self._next - 1, max(self._next - 1 - room, 0), -1))

    def found_here(self, trusted: Trusted) -> Entries:
        """What to write for the next blocks, as far as their records are here already."""
        entries: Entries = []
        for _ in range(FOUND_HERE):
            height = self._next - 1
            if not self.is_needed or height < 1 or len(self._waiting) >= WINDOW:
                break
            block, leaves = read_block(self._store, height), read_leaves(self._store, height)
            if block is None or leaves is None:
                break
            if not fits(self._store, (0, height - 1), leaf_node(block, leaves), trusted):
                break
            proof = history.prove(layout.history_nodes(self._store), height - 1, trusted.size)
            entries += self.take(Sound(block, leaves, proof))
        return entries

    def take(self, sound: Sound) -> Entries:
        """What a record that is sound adds to the store."""
        block, leaves = sound.block, sound.leaves
        if block.height != self._next - 1:
            return []  # a gap above it: it will be asked for again
        entries: Entries = [*sound.entries().items()]
        header = block.header
        if header.executed_height and self._store.get(layout.roots(header.executed_height)) is None:
            roots = Roots(header.state_root, header.history_root)
            entries.append((layout.roots(header.executed_height), layout.encode(roots)))
        indices = self._keeper.indices(block.height, leaves, self._state)
        entries += [(layout.APPLICATION + key, value) for key, value in indices]
        self._store.write(entries)
        self._waiting.append(_Filled(block, self._kept(block, leaves)))
        self._next = block.height
        return entries

    def settle(self) -> tuple[Entries, list[Block]]:
        """How far it is complete now, and blocks that have only those batches whose bodies are to be fetched."""
        before = None
        while self._waiting and not self._missing(self._waiting[0]):
            before = self._waiting.popleft().block.height
        fetch: list[Block] = []
        for filled in list(self._waiting)[:FETCHES]:
            if not filled.asked and (missing := self._missing(filled)):
                filled.asked = True
                fetch.append(Block(filled.block.header, missing))
        entries: Entries = []
        if self._next <= 1 and not self._waiting:
            entries.append((layout.BACKFILL, None))
        elif before is not None:
            entries.append((layout.BACKFILL, u64(before)))
        return entries, fetch

    def ask_again(self) -> None:
        """Bodies that did not come for long: whoever was asked may have forgotten it, or their time is over since."""
        for filled in self._waiting:
            filled.asked = False
            filled.missing = self._kept(filled.block, read_leaves(self._store, filled.block.height) or ())

    def _kept(self, block: Block, leaves: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """A batch that came again has its body with its first block: whether that is over is known when it is here."""
        kept = kept_batches(block, leaves, self._keeper, self._state, highest=self._memory.executed())
        again = repeated(leaves, self._keeper)
        return tuple(name for name in kept if name not in again)

    def _missing(self, filled: _Filled) -> tuple[bytes, ...]:
        filled.missing = tuple(name for name in filled.missing if self._store.get(layout.batch(name)) is None)
        return filled.missing
