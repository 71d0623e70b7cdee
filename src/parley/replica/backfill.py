"""Filling in what a snapshot leaves out: the records of the blocks below it, newest first, and the bodies still to be kept.

`m/backfill` holds the height below which records may be missing. It moves down as they come, so a restart goes on there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from parley.consensus.types import Block, Roots
from parley.crypto.encoding import u64
from parley.ledger import history, layout
from parley.ledger.application import BodyKeeper
from parley.ledger.bodies import judge
from parley.ledger.derived import in_parts
from parley.ledger.steps import each
from parley.replica.chain import Entries
from parley.replica.memory import Memory, Overlay
from parley.replica.records import (
    Sound,
    Trusted,
    fits,
    leaf_node_in_parts,
    read_block,
    read_leaves,
)
from parley.sync.messages import MAX_HEIGHTS

WINDOW = 2 * MAX_HEIGHTS  # blocks whose bodies are still awaited
FETCHES = 4  # of them whose bodies are asked for at a time
FOUND_HERE = 64  # records that are looked at in one round because they may be here already
BODIES = 32  # that are looked for in one step

T = TypeVar("T")


@dataclass(slots=True)
class _Filled:
    """A block whose record is here, and the bodies that it still waits for."""

    block: Block
    missing: list[bytes]
    asked: bool = False


class Backfill:
    """Nothing is left to do once there is no `m/backfill`."""

    def __init__(self, store: Overlay, keeper: BodyKeeper, memory: Memory) -> None:
        self._store = store
        self._keeper = keeper
        self._memory = memory
        self._state = layout.StateView(store)
        self._waiting: deque[_Filled] = deque()  # newest block first
        self._arrived: deque[Sound] = deque()
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
        highest = self._memory.executed + 1
        stored = int.from_bytes(value, "big")
        self._next = stored if len(value) == len(u64(0)) and 1 <= stored <= highest else highest

    @property
    def has_arrived(self) -> bool:
        """Whether there are records that were not taken yet."""
        return bool(self._arrived)

    def arrived(self, sounds: Iterable[Sound]) -> None:
        """Records that are sound. There are never more than one answer holds: the next one is asked for afterwards."""
        self._arrived.extend(sounds)

    def heights(self) -> tuple[int, ...]:
        """Whose records are to be asked for next."""
        if not self.is_needed or self._arrived:
            return ()
        room = min(WINDOW - len(self._waiting), MAX_HEIGHTS)
        return tuple(range(self._next - 1, max(self._next - 1 - room, 0), -1))

    def taking(self) -> Iterator[Entries]:
        """Take what has arrived, step by step."""
        while self._arrived:
            yield from self._take(self._arrived.popleft())

    def found_here(self, trusted: Trusted) -> Iterator[Entries]:
        """Take the records of the next blocks as far as they are here already, step by step."""
        for _ in range(FOUND_HERE):
            height = self._next - 1
            if not self.is_needed or height < 1 or len(self._waiting) >= WINDOW:
                break
            block, leaves = read_block(self._store, height), read_leaves(self._store, height)
            if block is None or leaves is None:
                break
            yield []
            node = yield from _empty(leaf_node_in_parts(block, leaves))
            if not fits(self._store, (0, height - 1), node, trusted):
                break
            proof = history.prove(layout.history_nodes(self._store), height - 1, trusted.size)
            yield from self._take(Sound(block, leaves, proof, node))

    def _take(self, sound: Sound) -> Iterator[Entries]:
        """What a record that is sound adds to the store. The mark moves on last: interrupted, it is taken again."""
        block, leaves = sound.block, sound.leaves
        if block.height != self._next - 1:
            return  # a gap above it: it will be asked for again
        entries: Entries = [*sound.entries().items()]
        header = block.header
        if header.executed_height and self._store.get(layout.roots(header.executed_height)) is None:
            roots = Roots(header.state_root, header.history_root)
            entries.append((layout.roots(header.executed_height), layout.encode(roots)))
        for step in in_parts(self._keeper.indexing(block.height, self._state), leaves):
            if isinstance(step, int):
                yield entries
                entries = []
            else:
                entries.append((layout.APPLICATION + step[0], step[1]))
        kept = yield from _empty(self._kept(block, leaves))
        if block.height != self._next - 1:
            return
        self._waiting.append(_Filled(block, kept))
        self._next = block.height
        yield entries

    def settling(self) -> Iterator[Entries | Block]:
        """How far it is complete now, and blocks that have only those batches whose bodies are to be fetched."""
        before = None
        while self._waiting and (yield from _empty(self._is_complete(self._waiting[0]))):
            before = self._waiting.popleft().block.height
        if self._next <= 1 and not self._waiting and self.is_needed:
            yield [(layout.BACKFILL, None)]
        elif before is not None:
            yield [(layout.BACKFILL, u64(before))]
        for filled in list(islice(self._waiting, FETCHES)):
            if not filled.asked:
                filled.asked = True
                missing = yield from _empty(self._missing(filled))
                if missing:
                    yield Block(filled.block.header, tuple(missing))

    def ask_again(self) -> Iterator[Entries]:
        """Bodies that did not come for long: whoever was asked may have forgotten it, or their time is over since."""
        for filled in list(self._waiting):
            leaves = read_leaves(self._store, filled.block.height) or ()
            filled.missing = yield from _empty(self._kept(filled.block, leaves))
            filled.asked = False

    def _kept(self, block: Block, leaves: tuple[bytes, ...]) -> Generator[int, None, list[bytes]]:
        """A batch that came again has its body with its first block: whether that is over is known when it is here."""
        judged = yield from judge(block, leaves, self._keeper, self._state, highest=self._memory.executed)
        return [name for name in judged.kept if name not in judged.repeated]

    def _is_complete(self, filled: _Filled) -> Generator[int, None, bool]:
        looked = 0
        while filled.missing and self._store.get(layout.batch(filled.missing[-1])) is not None:
            filled.missing.pop()
            looked += 1
            if looked % BODIES == 0:
                yield BODIES
        return not filled.missing

    def _missing(self, filled: _Filled) -> Generator[int, None, list[bytes]]:
        found: list[bytes] = []
        for start in range(0, len(filled.missing), BODIES):
            part = filled.missing[start : start + BODIES]
            found += (name for name in part if self._store.get(layout.batch(name)) is None)
            yield len(part)
        return found


def _empty(steps: Generator[int, None, T]) -> Generator[Entries, None, T]:
    """Steps that write nothing."""
    return each(steps, lambda _: [])
