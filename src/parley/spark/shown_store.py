"""What brokers show of the ledger, under the names that their stores have for it: the auditor's checks read one or the other.

Blocks come in order, a page at a time, each proven to be in the certified history; only those around the one that is
being looked at are kept. Roots are those that headers name, of which a quorum approved.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from parley.client.ledger import VerifiedBlock
from parley.consensus.types import Roots
from parley.crypto.hashing import DIGEST_SIZE
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.ledger.audit_blocks import NAMED_WITHIN
from parley.spark.auditing import Ledger


class ShownStore:
    """A `KeyValue` of the blocks `first` to `last`, and of the headers beside them that their checks need."""

    def __init__(self, ledger: Ledger, first: int, last: int, highest: int) -> None:
        low, high = max(1, first - NAMED_WITHIN), min(last + NAMED_WITHIN, highest)
        self._coming = chain(
            ledger.blocks(low, first - 1, bodies=False),
            ledger.blocks(first, last, bodies=True),
            ledger.blocks(last + 1, high, bodies=False),
        )
        self._first = first
        self._next, self._end = low, high
        self._blocks: dict[int, VerifiedBlock] = {}
        self._batches: dict[bytes, tuple[int, bytes]] = {}  # with the last height that has them
        self._nodes: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        kind, rest = layout.split(key)
        match kind:
            case b"c/":
                block = self._block(int.from_bytes(rest, "big"))
                return (
                    None if block is None else layout.encode(layout.StoredBlock(block.header, block.batches))
                )
            case b"e/":
                return self._receipts(int.from_bytes(rest, "big"))
            case b"r/":
                return self._roots(int.from_bytes(rest, "big"))
            case b"b/" | b"d/":
                return self._batches.get(key, (0, None))[1]
            case b"h/":
                self._block(self._first)
                return self._nodes.get(key)
            case _:
                return None

    def scan(self, _prefix: bytes, _start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Nobody can prove that a list is complete, so nothing is listed."""
        return iter(())

    def _receipts(self, height: int) -> bytes | None:
        """Asked for once, when the turn of a block has come: what lies below is not needed any more."""
        block = self._block(height)
        self._batches = {key: kept for key, kept in self._batches.items() if kept[0] >= height}
        for old in [old for old in self._blocks if old < height - 2 * NAMED_WITHIN]:
            del self._blocks[old]
        return None if block is None else layout.encode(block.raw_leaves)

    def _roots(self, height: int) -> bytes | None:
        for above in range(height + 1, height + NAMED_WITHIN + 1):
            block = self._block(above)
            if block is not None and block.header.executed_height == height:
                return layout.encode(Roots(block.header.state_root, block.header.history_root))
            if above >= self._end or (block is not None and block.header.executed_height > height):
                return None
        return None

    def _block(self, height: int) -> VerifiedBlock | None:
        while self._next <= min(height, self._end):
            block = next(self._coming)
            self._blocks[block.height] = block
            self._next = block.height + 1
            self._take(block)
        return self._blocks.get(height)

    def _take(self, block: VerifiedBlock) -> None:
        if block.height == self._first and block.before is not None:
            self._nodes = _nodes(block.before)
        for name, body, remains in zip(block.batches, block.bodies, block.remains, strict=True):
            if body is not None:
                self._batches[layout.batch(name)] = (block.height, body)
            elif remains is not None:
                self._batches[layout.erased(name)] = (block.height, layout.encode(remains))


def _nodes(history: MountainRange) -> dict[bytes, bytes]:
    """The peaks of a history under the names that they have in a store."""
    size, peaks = history.size, history.encode()[8:]
    levels = [level for level in reversed(range(size.bit_length())) if size >> level & 1]
    return {
        layout.history_node(level, (size >> level) - 1): peaks[at : at + DIGEST_SIZE]
        for level, at in zip(levels, range(0, len(peaks), DIGEST_SIZE), strict=True)
    }
